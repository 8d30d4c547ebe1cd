"""The autoregressive loop: forward, sample, append, check, and again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import index as as_index
from typing import TYPE_CHECKING

import numpy as np

from rillm.decoding.history import History
from rillm.decoding.logprobs import TokenLogprob, token_logprob
from rillm.decoding.pieces import Piece, Result, collect
from rillm.decoding.prefill import check_unchanged, prefill
from rillm.decoding.sampling import Sampler, Sampling
from rillm.decoding.stopping import Ending
from rillm.decoding.timings import Stopwatch, Timings
from rillm.decoding.trace import Step, explain
from rillm.errors import ContextFull, NotHeld, SessionBusy

if TYPE_CHECKING:
    from rillm.checkpoint.tokenizer import Tokenizer
    from rillm.session import Session

__all__ = ["Piece", "Result", "Stream", "collect", "stream"]


class Stream(Iterator[Piece]):
    """The pieces of a generation as they come; made by `stream`.

    `cancel` may be called from any thread: what is being computed ends within a step, or half a
    second in a prompt, and the last piece says "cancelled". `close` does the same and gives no more
    pieces.
    """

    def __init__(
        self, pieces: Generator[Piece], cancelled: threading.Event, watch: Stopwatch
    ) -> None:
        self._pieces, self._cancelled, self._watch = pieces, cancelled, watch

    def __next__(self) -> Piece:
        return next(self._pieces)

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self.cancel()
        try:
            self._pieces.close()
        except ValueError:  # another thread is inside it, and will see that it is cancelled
            return

    @property
    def timings(self) -> Timings:
        """Until now."""
        return self._watch.timings()


def stream(
    session,
    tokenizer,
    eos_token_ids: Collection[int],
    prompt_ids: Sequence[int],
    options: Sampling,
    *,
    reuse: bool = False,
    on_prefill: Callable[[int, int], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
    close_session: bool = False,
    load_seconds: float = 0.0,
    bytes_per_token: int = 0,
) -> Stream:
    """Append the prompt to the session and generate, a piece for each new token.

    The session afterwards holds the prompt and every new token but the last, which nothing has been
    computed from yet; so it does when the iterator is closed early. Of several completions it holds
    the last. With max_new_tokens=0 the prompt is all that it takes up.

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
    reuse : bool
        The prompt is the whole text: what is known of its beginning is not computed again.
    on_prefill : callable(n_done, n_total), optional
        Called while the prompt is evaluated.
    on_step : callable(Step), optional
        Called with each token and why it was chosen.
    close_session : bool
        Close the session at the end; then a prompt that no token may follow is not computed.
    load_seconds : float
    bytes_per_token : int
        For the timings.

    Raises
    ------
    TypeError, ValueError
        The prompt is empty or no ids, or it or an option holds a token id outside the vocabulary.
        Raised by this call, as is the next.
    ContextFull
        The prompt does not fit into the session's context.
    BadLogits
        The model computed NaN or infinity. Raised while iterating, as is the next.
    SessionBusy
        Something else uses the session, or did so between two pieces, or a callback did.
    """
    prompt_ids = list(map(as_index, prompt_ids))
    if not prompt_ids:
        raise ValueError("the prompt has no tokens: give at least one, such as the model's BOS")
    if not reuse and len(prompt_ids) > session.limit - session.position:
        raise ContextFull(
            f"the prompt has {len(prompt_ids)} tokens and the session holds {session.position}, "
            f"but the context is {session.limit}: shorten the prompt or ask for a larger context"
        )
    for each in prompt_ids:
        if not 0 <= each < session.vocab_size:
            raise ValueError(
                f"the prompt holds token id {each}: expected 0 to {session.vocab_size - 1}"
            )
    end_ids = () if options.ignore_eos else eos_token_ids
    sampler = Sampler(options, session.vocab_size, tokenizer, end_ids, session.isa)
    n_prompt, n_reused = len(prompt_ids), session.reuse(prompt_ids) if reuse else 0
    prompt_ids = prompt_ids[n_reused:]
    watch = Stopwatch(n_prompt, load_seconds, bytes_per_token, n_reused)
    generation = _Generation(
        session,
        tokenizer,
        eos_token_ids,
        prompt_ids,
        options,
        sampler,
        watch,
        on_prefill,
        on_step,
        keeps_prompt=reuse or not close_session,
    )
    pieces = generation.run(session if close_session else nullcontext())
    return Stream(pieces, generation.cancelled, watch)


@dataclass
class _Generation:
    """What one call of `stream` works on."""

    session: Session
    tokenizer: Tokenizer
    eos_token_ids: Collection[int]
    prompt_ids: list[int]
    options: Sampling
    sampler: Sampler
    watch: Stopwatch
    on_prefill: Callable[[int, int], None] | None
    on_step: Callable[[Step], None] | None
    keeps_prompt: bool  # by the session or the prefix cache, for what comes after

    def __post_init__(self) -> None:
        self.history = History([*self.session.tokens, *self.prompt_ids])
        seed = self.options.seed
        self.seed = int.from_bytes(os.urandom(4)) if seed is None else seed
        self.cancelled = threading.Event()
        self.prompt_logprobs: list[TokenLogprob | None] | None = None

    def run(self, session_until_the_end) -> Generator[Piece]:
        """The prompt once, then each completion from its end."""
        with session_until_the_end:
            self.watch.start()
            held = self.history.n_prompt - len(self.prompt_ids)
            if self.session.tokens != self.history.tokens[:held].tolist():
                raise SessionBusy("something else used the session since this stream was made")
            logits = self.prefill()
            for completion in range(self.options.n):
                self.back_to_prompt()
                self.history.forget_new()
                yield from self.complete(completion, logits)

    def back_to_prompt(self) -> None:
        """Forget what the last completion appended; read the prompt again if it slid."""
        session, n = self.session, self.history.n_prompt
        if session.position <= n:
            return
        try:
            session.rewind(n)
        except NotHeld:
            session.rewind(0)
            session.prefill(self.history.tokens[:n])

    def complete(self, completion: int, logits: np.ndarray | None) -> Generator[Piece]:
        """From the logits of the prompt: sample, check, append, forward, until the text ends."""
        session, watch = self.session, self.watch
        ending = self.ending()
        first = index = session.position
        stop = ending.interruption() or ending.limit()
        while stop is None:
            n_changes = session.n_changes
            place = (self.seed, index, completion, self.surprise_limit(index))
            scores = self.sampler.adjust(logits, self.history)
            choice = self.sampler.choose(scores, *place)  # sample
            if self.options.mirostat_mode:
                session.surprise_limits[index + 1] = choice.token, choice.surprise_limit
            text, finish = ending.check(choice.token)  # check
            watch.token(is_step=index > first)
            piece = self.piece(text, choice.token, index - first, finish, completion, logits)
            if self.on_step:
                self.on_step(explain(self, logits, scores, place, choice, piece))
            yield piece
            if not finish or completion + 1 < self.options.n:  # at its end it looks no more
                check_unchanged(session, n_changes)
            if finish:
                return
            watch.resume()
            index += 1
            self.history.append(choice.token)  # append
            logits = session.step(choice.token)  # forward
            stop = ending.interruption()
        text, finish = ending.end(*stop)
        yield self.piece(text, None, index - first, finish, completion, None)

    def prefill(self) -> np.ndarray | None:
        """The logits after the prompt; None if nothing is wanted of it."""
        check, n_logprobs = self.ending(), self.options.prompt_logprobs
        if check.limit() and n_logprobs is None and not self.keeps_prompt:
            return None
        logits, self.prompt_logprobs = prefill(
            self.session, self.prompt_ids, n_logprobs, check.interruption, self.on_prefill
        )
        self.watch.prefilled()
        return logits

    def surprise_limit(self, index: int) -> float:
        """mirostat's, of the token at `index`: steered by the ones sampled right before it."""
        token, limit = self.session.surprise_limits.get(index, (None, 0.0))
        same = token == self.history.tokens[-1]
        return limit if same else self.sampler.first_surprise_limit

    def ending(self) -> Ending:
        options, room = self.options, self.session.limit - self.history.n_prompt
        limit, cause = room, "context"
        if options.max_new_tokens is not None and options.max_new_tokens <= room:
            limit, cause = options.max_new_tokens, "max_new_tokens"
        deadline = None if options.max_time is None else self.watch.started + options.max_time
        is_cancelled = self.cancelled.is_set
        return Ending(
            self.tokenizer, self.eos_token_ids, options, limit, cause, deadline, is_cancelled
        )

    def piece(self, text, token, index, finish, completion, logits) -> Piece:
        logprobs = None
        if self.options.logprobs is not None:
            wanted = () if token is None else (token,)
            logprobs = tuple(token_logprob(logits, each, self.options.logprobs) for each in wanted)
        return Piece(
            text,
            () if token is None else (token,),
            index,
            finish,
            self.seed,
            self.watch.timings() if finish else None,
            logprobs,
            self.prompt_logprobs if index == 0 else None,
            completion,
        )
