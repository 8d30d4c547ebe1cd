"""The autoregressive loop: forward, sample, append, check, and again."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

import numpy as np

from rillm.decoding.sampling import Sampling, sample
from rillm.decoding.stopping import Ending, Finish
from rillm.decoding.timings import Stopwatch, Timings
from rillm.errors import ContextFull

_PREFILL_SECONDS = 0.2  # a call into the engine cannot be interrupted, so it should not be longer
_PREFILL_TOKENS = (16, 512)


@dataclass(frozen=True)
class Piece:
    """What one turn of the loop gave.

    Attributes
    ----------
    text : str
        Whole characters; "" when the token's text is not certain yet.
    token_ids : tuple of int
        The new tokens: one, or none in the only piece of an empty generation.
    index : int
        The index of the first of them among all new tokens.
    finish : Finish or None
        In the last piece: why it is the last.
    seed : int
        The seed in use, given or drawn.
    timings : Timings
        Until this piece.
    """

    text: str
    token_ids: tuple[int, ...]
    index: int
    finish: Finish | None = None
    seed: int = 0
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True)
class Result:
    """A whole generation: the pieces of a stream, joined.

    Attributes
    ----------
    text : str
        The new text only, without end tokens and stop strings.
    token_ids : list of int
        Every sampled token, an end token included.
    seed : int
        The same seed and prompt give the same tokens again.
    timings : Timings
    finish : Finish
    """

    text: str
    token_ids: list[int]
    seed: int
    timings: Timings
    finish: Finish

    @property
    def finish_reason(self) -> str:
        """ "stop", "length" or "cancelled"."""
        return self.finish.reason


def stream(
    session,
    tokenizer,
    eos_token_ids: Collection[int],
    prompt_ids: Sequence[int],
    options: Sampling,
) -> Iterator[Piece]:
    """Append the prompt to the session and generate, a piece for each new token.

    The session afterwards holds the prompt and every new token but the last, which nothing has been
    computed from yet; so it does when the iterator is closed early.

    Parameters
    ----------
    session : Session
        It may hold tokens already: the prompt follows them.
    tokenizer : Tokenizer
    eos_token_ids : collection of int
        The model's own end tokens.
    prompt_ids : sequence of int
        At least one.
    options : Sampling

    Raises
    ------
    ValueError
        The prompt is empty. Raised by this call, as is the next.
    ContextFull
        The prompt does not fit into the session's context.
    BadLogits
        The model computed NaN or infinity. Raised while iterating.
    """
    prompt_ids = list(prompt_ids)
    if not prompt_ids:
        raise ValueError("the prompt has no tokens: give at least one, such as the model's BOS")
    room = session.context - session.position - len(prompt_ids)
    if room < 0:
        raise ContextFull(
            f"the prompt has {len(prompt_ids)} tokens and the session holds {session.position}, "
            f"but the context is {session.context}: shorten the prompt or ask for a larger context"
        )
    limit, cause = room, "context"
    if options.max_new_tokens is not None and options.max_new_tokens <= room:
        limit, cause = options.max_new_tokens, "max_new_tokens"
    ending = Ending(tokenizer, eos_token_ids, options, limit, cause)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    return _loop(session, ending, prompt_ids, options, seed)


def _loop(session, ending: Ending, prompt_ids, options: Sampling, seed: int) -> Iterator[Piece]:
    if ending.full:
        yield Piece("", (), 0, ending.limit_reached(), seed, Timings(len(prompt_ids)))
        return
    watch = Stopwatch(len(prompt_ids))
    logits = _prefill(session, prompt_ids)
    watch.prefilled()
    for index in count():
        token = sample(logits, options, seed, session.position)
        text, finish = ending.check(token)
        yield Piece(text, (token,), index, finish, seed, watch.token())
        if finish:
            return
        watch.resume()
        logits = session.step(token)  # append the token, and forward


def _prefill(session, ids: list[int]) -> np.ndarray:
    """Append all ids, in calls short enough for Ctrl-C; float32 [vocab_size], of the last."""
    least, most = _PREFILL_TOKENS
    size, begin = least, 0
    while True:
        started = perf_counter()
        logits = session.prefill(ids[begin : begin + size])
        begin += size
        if begin >= len(ids):
            return logits
        pace = size / max(perf_counter() - started, 1e-6)
        size = min(max(int(pace * _PREFILL_SECONDS), least), most)


def collect(pieces: Iterable[Piece]) -> Result:
    """Join the pieces of one stream; without a last piece it counts as cancelled.

    Raises
    ------
    ValueError
        There is no piece at all.
    """
    texts: list[str] = []
    token_ids: list[int] = []
    piece = None
    for piece in pieces:
        texts.append(piece.text)
        token_ids += piece.token_ids
    if piece is None:
        raise ValueError("there are no pieces to collect")
    finish = piece.finish or Finish("cancelled", "cancelled", None, len(token_ids) - 1)
    return Result("".join(texts), token_ids, piece.seed, piece.timings, finish)
