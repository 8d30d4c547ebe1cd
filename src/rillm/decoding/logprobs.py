"""How likely a token was by the model alone, before penalties, temperature and filters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rillm.engine import _engine


@dataclass(frozen=True)
class TokenLogprob:
    """One token's log-probability, natural logarithm.

    Attributes
    ----------
    token : int
    logprob : float
    top : tuple of (int, float)
        The likeliest tokens and their log-probabilities, likeliest first, as many as asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(logits: np.ndarray, token: int, n_top: int) -> TokenLogprob:
    """Of `token` under softmax(logits), float32 [vocab_size].

    Raises
    ------
    BadLogits
        NaN or +inf among the logits, or nothing finite.
    """
    best, log_total = _engine.rank(logits, min(n_top, len(logits)))
    top = tuple((int(each), float(logits[each]) - log_total) for each in best)
    return TokenLogprob(token, float(logits[token]) - log_total, top)
