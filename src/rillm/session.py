"""One conversation: its cache and its tokens; append, rewind, score."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from rillm.engine import _engine
from rillm.engine._engine import ROWS_PER_STEP, Cache
from rillm.errors import ContextFull, SessionBusy, SessionClosed

PREFILL_ROWS = 64  # rows a step: weights are read once for all of them, Ctrl-C waits for one step
SCORE_ROWS = 32


class Session:
    """Tokens and their keys and values; made by `Model.session`.

    Attributes
    ----------
    context : int
        The most positions it can hold. Memory is taken as they are reached.
    vocab_size : int
    surprise_limits : dict from int to (int, float)
        mirostat's state before the token of a position, and the token before that, after which
        alone it holds; a rewind takes it back too.
    """

    def __init__(self, engine, vocab_size: int, kv: str, context: int, ropes_for=None):
        self.context = context
        self._engine = engine
        self.vocab_size = vocab_size
        self.surprise_limits: dict[int, tuple[int, float]] = {}
        self._cache = Cache(engine, kv, context)
        self._tokens: list[int] = []
        self._last_logits: np.ndarray | None = None
        self._turn = threading.Lock()
        self._ropes_for = ropes_for  # length -> (key, RopeTable), where turns depend on it
        self._ropes_key = None

    @property
    def position(self) -> int:
        """How many tokens it holds, which is the position of the next."""
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """The ids it holds, as a new list."""
        return list(self._tokens)

    def prefill(self, ids: Sequence[int], chunk: int | None = None) -> np.ndarray:
        """Append ids.

        Parameters
        ----------
        ids : sequence of int
            At least one.
        chunk : int, optional
            Rows computed at once, 1 to 512; it changes speed, never a bit of the result.

        Returns
        -------
        float32 [vocab_size]
            The logits after the last of them.

        Raises
        ------
        ContextFull
            They do not fit; nothing was appended.
        SessionBusy, SessionClosed
        """
        with self._exclusively():
            return self._append(self._checked(ids), chunk)

    def step(self, token: int) -> np.ndarray:
        """Append one token: float32 [vocab_size], the logits after it. Errors as `prefill`."""
        with self._exclusively():
            return self._append(self._checked([token]), None)

    def rewind(self, position: int) -> None:
        """Forget every token from `position` on; what follows is as if they had never been.

        Raises
        ------
        ValueError
            position is negative or beyond the present one.
        """
        with self._exclusively():
            if not 0 <= position <= self.position:
                raise ValueError(f"position is {position}, expected 0 to {self.position}")
            if position < self.position:
                self._cache.rewind(position)
                del self._tokens[position:]
                self._last_logits = None
            kept = self.surprise_limits.items()
            self.surprise_limits = {at: limit for at, limit in kept if at <= position + 1}

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Append ids: float32 [len(ids), vocab_size], the logits after each. Errors as above."""
        with self._exclusively():
            ids = self._checked(ids)
            self._turn_for(self.position + len(ids))
            return np.concatenate(list(self._rows(ids)))

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Append ids and tell how likely each was.

        Returns
        -------
        float32 [len(ids)]
            log p(ids[i] | everything before it), natural logarithm; NaN for the very first token
            of a session, which nothing precedes.
        """
        with self._exclusively():
            ids = self._checked(ids)
            before = self._logits_at_end()
            self._turn_for(self.position + len(ids))
            scores = []
            for logits in itertools.chain.from_iterable(self._rows(ids)):
                known = before is not None
                scores.append(_log_probability(before, ids[len(scores)]) if known else np.nan)
                before = logits
            return np.array(scores, np.float32)

    def close(self) -> None:
        """Free its memory now; any further use raises SessionClosed."""
        with self._exclusively():
            self._cache.close()
            self._tokens = []
            self._last_logits = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(SessionClosed):
            self.close()

    @contextmanager
    def _exclusively(self):
        if not self._turn.acquire(blocking=False):
            raise SessionBusy("this session is computing another call; give each thread its own")
        try:
            _ = self._cache.length  # raises SessionClosed
            yield
        finally:
            self._turn.release()

    def _checked(self, ids: Sequence[int]) -> list[int]:
        ids = [int(i) for i in ids]
        if not ids:
            raise ValueError("there are no ids to append: give at least one")
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"token id {i} is outside the vocabulary of {self.vocab_size}")
        if self.position + len(ids) > self.context:
            raise ContextFull(
                f"{len(ids)} tokens after {self.position} do not fit a context of {self.context}: "
                "ask for a larger one with context=, or rewind"
            )
        return ids

    def _forward(self, ids: list[int], wants=None) -> np.ndarray:
        self._tokens += ids
        try:
            return self._engine.forward(ids, self._cache, wants)
        finally:  # Ctrl-C may come before or after the step: the cache knows
            del self._tokens[self._cache.length :]

    def _rows(self, ids: list[int]) -> Iterator[np.ndarray]:
        """Append ids, SCORE_ROWS at a time: the logits after each of them."""
        self._last_logits = None
        for start in range(0, len(ids), SCORE_ROWS):
            part = ids[start : start + SCORE_ROWS]
            rows = self._forward(part, [True] * len(part))
            yield rows
        self._last_logits = np.array(rows[-1])

    def _turn_for(self, length: int) -> None:
        """Frequencies of a text of this length; if they are others, all it holds turns anew."""
        if self._ropes_for is None:
            return
        key, table = self._ropes_for(length)
        if key == self._ropes_key:
            return
        held, self._tokens = self._tokens, []
        self._cache.rewind(0)
        self._cache.set_ropes(table())
        self._ropes_key = key
        for start in range(0, len(held), PREFILL_ROWS):
            part = held[start : start + PREFILL_ROWS]
            self._forward(part, [False] * len(part))

    def _append(self, ids: list[int], chunk: int | None) -> np.ndarray:
        chunk = PREFILL_ROWS if chunk is None else chunk
        if not 1 <= chunk <= ROWS_PER_STEP:
            raise ValueError(f"chunk is {chunk}, expected 1 to {ROWS_PER_STEP}")
        self._last_logits = None
        self._turn_for(self.position + len(ids))
        last = len(ids) - 1
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            is_last = start + len(part) > last
            logits = self._forward(part, None if is_last else [False] * len(part))
        self._last_logits = logits[0]
        return self._last_logits.copy()

    def _logits_at_end(self) -> np.ndarray | None:
        if self._last_logits is None and self._tokens:
            token = self._tokens.pop()
            self._cache.rewind(len(self._tokens))
            self._append([token], None)
        return self._last_logits


def _log_probability(logits: np.ndarray, token: int) -> float:
    return float(logits[token]) - _engine.rank(logits, 0)[1]
