"""From logits to a token: adjust, filter, draw; pure in logits, tokens, seed and index."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from rillm.decoding.adjust import adjustments
from rillm.decoding.history import History
from rillm.decoding.options import Sampling
from rillm.decoding.order import steps
from rillm.engine import _engine

__all__ = ["Choice", "Sampler", "Sampling", "sample"]


@dataclass(frozen=True)
class Choice:
    """A chosen token.

    Attributes
    ----------
    token : int
    score : float
        (logit - max) / temperature + noise, the largest among the kept tokens.
    surprise_limit : float
        For the next token, where mirostat is on.
    """

    token: int
    score: float
    surprise_limit: float


class Sampler:
    """The options of a generation, made ready for a vocabulary.

    Parameters
    ----------
    options : Sampling
    vocab_size : int
    tokenizer : Tokenizer, optional
        For options that hold strings.
    end_ids : collection of int
        The tokens that `min_new_tokens` puts off, beside `stop_token_ids`.
    isa : str, optional
        The instruction set to compute with, by default the portable one; the choice is the same.

    Attributes
    ----------
    first_surprise_limit : float
        mirostat's limit before any token, in bits.

    Raises
    ------
    ValueError
        An option holds a token id outside the vocabulary.
    """

    def __init__(
        self,
        options: Sampling,
        vocab_size: int,
        tokenizer=None,
        end_ids: Collection[int] = (),
        isa: str | None = None,
    ) -> None:
        self._adjustments = adjustments(options, vocab_size, tokenizer, end_ids)
        self._filters = _engine.Filters(steps(options), options.min_keep, isa)
        self._tau, self._eta = options.mirostat_tau, options.mirostat_eta
        self.first_surprise_limit = 2.0 * self._tau

    def adjust(self, logits: np.ndarray, history: History) -> np.ndarray:
        """The scores that the filters see: logits after penalties and bans, float32 [vocab_size].

        Parameters
        ----------
        logits : float32 [vocab_size]
        history : History
            The tokens so far.
        """
        if not self._adjustments:
            return logits
        scores = logits.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # what becomes of them is checked later
            for adjustment in self._adjustments:
                changed = adjustment(scores, history.tokens, history.n_prompt)
                scores = scores if changed is None else changed
        return scores

    def choose(
        self,
        scores: np.ndarray,
        seed: int,
        index: int,
        completion: int = 0,
        surprise_limit: float = 0.0,
    ) -> Choice:
        """The next token.

        Parameters
        ----------
        scores : float32 [vocab_size]
            Of `adjust`.
        seed : int
        index : int
            The token's index among all tokens its session ever held.
        completion : int
            Which of several completions of one prompt.
        surprise_limit : float
            mirostat's, of this token.

        Raises
        ------
        BadLogits
            NaN or +inf among the scores, or nothing but -inf.
        """
        token, score, surprise = self._filters.sample(
            scores, seed, index, completion, surprise_limit
        )
        following = surprise_limit - self._eta * (surprise - self._tau)
        return Choice(token, score, following)

    def kept(
        self,
        scores: np.ndarray,
        seed: int,
        index: int,
        completion: int = 0,
        surprise_limit: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `choose` draws from: ids int32 [n], ascending; their probabilities float32 [n]."""
        return self._filters.kept(scores, seed, index, completion, surprise_limit)


def sample(
    logits: np.ndarray,
    options: Sampling,
    seed: int,
    index: int,
    completion: int = 0,
    tokens: Sequence[int] = (),
    n_prompt: int = 0,
) -> int:
    """The token that these logits give after `tokens`, of which `n_prompt` are the prompt.

    `Sampler.choose` for one token by itself; with mirostat, for the first.
    """
    sampler = Sampler(options, len(logits))
    history = History(tokens)
    history.n_prompt = n_prompt
    limit = sampler.first_surprise_limit
    scores = sampler.adjust(logits, history)
    return sampler.choose(scores, seed, index, completion, limit).token
