"""What the loop gives: a piece for each token, and the whole of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rillm.decoding.logprobs import TokenLogprob
from rillm.decoding.stopping import Finish
from rillm.decoding.timings import Timings


@dataclass(frozen=True)
class Piece:
    """What one turn of the loop gave.

    Attributes
    ----------
    text : str
        Whole characters; "" when the token's text is not certain yet.
    token_ids : tuple of int
        The new tokens: one, or none in a last piece that a limit or `cancel` brought.
    index : int
        The index of the first of them among the new tokens of its completion.
    finish : Finish or None
        In the last piece of a completion: why it is the last.
    seed : int
        The seed in use, given or drawn.
    timings : Timings or None
        In the last piece.
    logprobs : tuple of TokenLogprob, or None
        Of token_ids, if asked for.
    prompt_logprobs : list of (TokenLogprob or None), or None
        In the first piece, if asked for; None for the first token of a session, which nothing
        precedes.
    completion : int
        Which of several.
    from_draft : bool
        Whether a drafter had proposed the tokens.
    """

    text: str
    token_ids: tuple[int, ...]
    index: int
    finish: Finish | None = None
    seed: int = 0
    timings: Timings | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    completion: int = 0
    from_draft: bool = False


@dataclass(frozen=True)
class Result:
    """A whole generation: the pieces of one completion, joined.

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
    logprobs : list of TokenLogprob, or None
        Of token_ids, if asked for.
    prompt_logprobs : list of (TokenLogprob or None), or None
        Of the prompt's tokens, if asked for.
    """

    text: str
    token_ids: list[int]
    seed: int
    timings: Timings
    finish: Finish
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def finish_reason(self) -> str:
        """ "stop", "length" or "cancelled"."""
        return self.finish.reason


def collect(pieces: Iterable[Piece]) -> Result:
    """Join the pieces of one completion; without a last piece it counts as cancelled.

    Raises
    ------
    ValueError
        There is no piece at all.
    """
    pieces = list(pieces)
    if not pieces:
        raise ValueError("there are no pieces to collect")
    first, last = pieces[0], pieces[-1]
    text = "".join(piece.text for piece in pieces)
    token_ids = [id for piece in pieces for id in piece.token_ids]
    logprobs = [each for piece in pieces for each in piece.logprobs or ()]
    return Result(
        text,
        token_ids,
        last.seed,
        last.timings or Timings(n_generated=len(token_ids)),
        last.finish or Finish("cancelled", "cancelled", None, len(token_ids) - 1, len(text)),
        None if last.logprobs is None else logprobs,
        first.prompt_logprobs,
    )
