"""One step of the loop laid open: what could have come, what came, why, and what was checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from rillm.decoding.stopping import CAUSES
from rillm.engine import _engine

N_CANDIDATES = 8


@dataclass(frozen=True)
class Candidate:
    """A token that could be next."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True)
class Step:
    """A token and why.

    Attributes
    ----------
    index : int
        Among the new tokens of its completion.
    position : int
        Among all tokens of the session.
    completion : int
    before : tuple of Candidate
        The likeliest by the model alone.
    after : tuple of Candidate
        The likeliest that penalties and filters left, with the probabilities of the draw.
    n_kept : int
        How many were left.
    token : int
    text : str
        The token by itself.
    probability : float
        Its own, of the draw.
    why : str
    appended : str
        What this added to the text; text that is not certain yet is held back.
    checks : tuple of (str, bool)
        The checks that ran, in order; the last one, if true, ended the text.
    """

    index: int
    position: int
    completion: int
    before: tuple[Candidate, ...]
    after: tuple[Candidate, ...]
    n_kept: int
    token: int
    text: str
    probability: float
    why: str
    appended: str
    checks: tuple[tuple[str, bool], ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def explain(generation, logits: np.ndarray, scores: np.ndarray, place, choice, piece) -> Step:
    """The record of one turn of the loop, before its token is appended."""
    seed, index, completion, _ = place
    tokenizer, options = generation.tokenizer, generation.options

    def candidates(ids, probabilities) -> tuple[Candidate, ...]:
        pairs = zip(ids, probabilities, strict=True)
        return tuple(Candidate(int(id), _text(tokenizer, id), float(p)) for id, p in pairs)

    best, log_total = _engine.rank(logits, min(N_CANDIDATES, len(logits)))
    kept, probabilities = generation.sampler.kept(scores, *place)
    order = np.argsort(-probabilities, kind="stable")[:N_CANDIDATES]
    if options.temperature == 0.0:
        why = "temperature 0: the largest logit"
    elif len(kept) == 1:
        why = "the only one left"
    else:
        noise = _engine.gumbel(seed, index, choice.token, completion)
        why = (
            f"the largest (logit - max) / temperature + noise of {len(kept)}: "
            f"{choice.score - noise:.3f} + {noise:.3f} = {choice.score:.3f}"
        )
    return Step(
        piece.index,
        index,
        completion,
        candidates(best, np.exp(logits[best] - log_total)),
        candidates(kept[order], probabilities[order]),
        len(kept),
        choice.token,
        _text(tokenizer, choice.token),
        float(probabilities[np.searchsorted(kept, choice.token)]),
        why,
        piece.text,
        _checks(options, piece.finish),
    )


def _checks(options, finish) -> tuple[tuple[str, bool], ...]:
    is_on = {
        "eos": not options.ignore_eos,
        "stop_token": bool(options.stop_token_ids),
        "stop_string": bool(options.stop),
        "max_new_tokens": options.max_new_tokens is not None,
        "max_time": options.max_time is not None,
    }
    ran = []
    for cause in CAUSES:
        ended = finish is not None and finish.cause == cause
        if ended or is_on.get(cause, True):
            ran.append((cause, ended))
        if ended:
            break
    return tuple(ran)


def _text(tokenizer, token: int) -> str:
    return tokenizer.decode([int(token)], skip_special_tokens=False)
