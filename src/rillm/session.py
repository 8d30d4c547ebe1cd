"""One conversation: its cache and its tokens; append, rewind, reuse, fork, score, save."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rillm.engine import _engine
from rillm.engine._engine import POSITIONS_PER_PAGE, ROWS_PER_STEP, Cache, Turn
from rillm.errors import ContextFull, NotHeld, SessionClosed

if TYPE_CHECKING:
    from rillm.model import Model

PREFILL_ROWS = 64  # rows a step: weights are read once for all of them, Ctrl-C waits for one step
SCORE_ROWS = 32


class Session:
    """Tokens and their keys and values; made by `Model.session`.

    Attributes
    ----------
    context : int
        The most positions a token sees, its own included. Memory is taken as they are reached.
    context_policy : str
        What comes after that: "stop", "slide" or "sink", as `Model.session` explains.
    n_keep : int
        How many of the first tokens stay to be seen.
    limit : int
        The most tokens it can ever hold.
    vocab_size : int
    surprise_limits : dict from int to (int, float)
        mirostat's state before the token of a position, and the token before that, after which
        alone it holds; a rewind takes it back too.
    n_changes : int
        Grows whenever what it holds changes, until it is closed: a stream sees by it that it is
        not alone.
    """

    def __init__(self, model: Model, cache: Cache):
        self.context, self.context_policy = cache.context, cache.policy
        self.n_keep, self.limit = cache.n_keep, cache.limit
        self.vocab_size = model.vocab_size
        self.surprise_limits: dict[int, tuple[int, float]] = {}
        self.n_changes = 0
        self._model, self._cache = model, cache
        self._tokens = array("i")
        self._last_logits: np.ndarray | None = None
        self._ropes: tuple = (None, None)  # where turns depend on the length: of which, and how
        self._turn = Turn()
        self._n_stored = 0  # positions that the prefix cache has heard of

    @property
    def engine(self) -> _engine.Engine:
        """The compiled engine that it runs on."""
        return self._cache.engine

    @property
    def position(self) -> int:
        """How many tokens it holds, which is the position of the next."""
        return len(self._tokens)

    @property
    def isa(self) -> str:
        """The instruction set that computes its steps."""
        return self._cache.engine.isa

    @property
    def tokens(self) -> list[int]:
        """The ids it holds, as a new list."""
        return self._tokens.tolist()

    @property
    def memory(self) -> int:
        """Bytes of its pages, shared ones included; a rewind keeps them for what comes."""
        return self._cache.n_bytes

    @property
    def shared_memory(self) -> int:
        """Of these, bytes that a fork or a prefix cache holds too."""
        return self._cache.n_shared_bytes

    @property
    def earliest(self) -> int:
        """`rewind` can go back to any position from here on, and always to 0."""
        return self._cache.earliest

    # ---- forward ----------------------------------------------------------------------------

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
        KeyboardInterrupt
            It may have appended a part of them, and where turns depend on the length (longrope,
            dynamic) have lost a part of what it held: `position` says how many it holds.
        """
        with self._turn:
            self._check_open()
            return self._append(self._checked(ids), chunk)

    def step(self, token: int) -> np.ndarray:
        """Append one token: float32 [vocab_size], the logits after it. Errors as `prefill`."""
        with self._turn:
            self._check_open()
            return self._append(self._checked([token]), None)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Append ids: float32 [len(ids), vocab_size], the logits after each. Errors as above."""
        with self._turn:
            self._check_open()
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
        with self._turn:
            self._check_open()
            ids = self._checked(ids)
            before = self._logits_at_end()
            self._turn_for(self.position + len(ids))
            scores = []
            for logits in itertools.chain.from_iterable(self._rows(ids)):
                known = before is not None
                scores.append(_log_probability(before, ids[len(scores)]) if known else np.nan)
                before = logits
            return np.array(scores, np.float32)

    def next_logits(self) -> np.ndarray | None:
        """float32 [vocab_size], the logits after all it holds; None if that is nothing.

        After a rewind or a load they are computed anew: `n_changes` may grow.
        """
        with self._turn:
            self._check_open()
            logits = self._logits_at_end()
            return None if logits is None else logits.copy()

    # ---- back, and elsewhere -----------------------------------------------------------------

    def rewind(self, position: int) -> None:
        """Forget every token from `position` on; what follows is as if they had never been.

        Raises
        ------
        ValueError
            position is negative or beyond the present one.
        NotHeld
            A layer that slides no longer has what was seen there; nothing has changed. `earliest`
            says how far back it can go.
        """
        with self._turn:
            self._check_open()
            self._rewind(position)

    def reuse(self, ids: Sequence[int]) -> int:
        """Hold the longest beginning of ids that is known, but not their last.

        Of what it holds the common beginning stays and the rest is forgotten; more may come from
        the model's `prefix_cache`. ``prefill(ids[n:])`` then gives the bits of ``prefill(ids)`` in
        a new session.

        Returns
        -------
        int
            n, how many it holds.
        """
        with self._turn:
            self._check_open()
            ids = self._checked(ids, held=0)
            n = _n_common(self._tokens, ids[:-1])
            if n < self.position:
                self._rewind(n if n >= self._cache.earliest else 0)
            self._turn_for(len(ids))
            if (prefixes := self._model.prefixes) is not None:
                most = min(len(ids) - 1, self.context)
                n, pages = prefixes.find(self._ropes[0], ids[:most], self._cache)
                if n:
                    self._take(ids[:n], pages)
                    self._n_stored = n
            return self.position

    def fork(self) -> Session:
        """A second session that goes on from here by itself.

        Keys and values are shared; who writes into a page of 256 positions first copies that page.
        """
        with self._turn:
            self._check_open()
            cache = self._cache
            like = (cache.format, cache.context, cache.policy, cache.n_keep, cache.limit)
            other = Session(self._model, Cache(cache.engine, *like))
            pages = range(-(-self.position // POSITIONS_PER_PAGE))
            held = {
                (ring, number): page
                for ring in range(len(cache.page_bytes))
                for number in pages
                if (page := cache.page(ring, number))
            }
            other._set_ropes(*self._ropes)
            other._take(self._tokens, held)
            other.surprise_limits = dict(self.surprise_limits)
            other._last_logits = self._last_logits
            return other

    def save(self, path: str | Path) -> None:
        """Write tokens, keys and values to one safetensors file, which `load` goes on from.

        Raises
        ------
        OSError
            It could not be written; a file that was there before still is, whole.
        """
        from rillm import session_file

        with self._turn:
            self._check_open()
            if self._tokens:
                self._turn_for(self.position)  # as `load` will have it
            session_file.write(Path(path), self, self._cache, self._model)

    def load(self, path: str | Path) -> None:
        """Hold what was saved, in place of what it holds; what follows has the same bits.

        Raises
        ------
        SessionFileError, TruncatedFile, MalformedFile
            The file is damaged, or of another model, KV format or context; nothing has changed.
        FileNotFoundError
        """
        from rillm import session_file

        with self._turn:
            self._check_open()
            saved = session_file.read(Path(path), self, self._cache, self._model)
            self._rewind(0)
            self._turn_for(len(saved.tokens))
            self._take(saved.tokens, saved.pages)
            self.surprise_limits = saved.surprise_limits

    def close(self) -> None:
        """Free its memory now; any further use raises SessionClosed."""
        with self._turn:
            self._check_open()
            self._store(is_last=True)
            self._cache.close()
            self._tokens = array("i")
            self._last_logits = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(SessionClosed):
            self.close()

    # ---- inside: the turn is taken --------------------------------------------------------------

    def _check_open(self) -> None:
        _ = self._cache.length  # raises SessionClosed

    def _checked(self, ids: Sequence[int], held: int | None = None) -> list[int]:
        ids = [index(i) for i in ids]
        held = self.position if held is None else held
        if not ids:
            raise ValueError("there are no ids to append: give at least one")
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"token id {i} is outside the vocabulary of {self.vocab_size}")
        if held + len(ids) > self.limit:
            what = "a context" if self.context_policy == "stop" else "the model's range"
            raise ContextFull(
                f"{len(ids)} tokens after {held} do not fit {what} of {self.limit}: "
                "ask for a larger one with context=, or rewind"
            )
        return ids

    def _forward(self, ids: list[int], wants=None) -> np.ndarray:
        self.n_changes += 1
        try:
            self._tokens.extend(ids)
            return self._cache.engine.forward(ids, self._cache, wants)
        finally:  # Ctrl-C may come before or after the step: the cache knows
            del self._tokens[self._cache.length :]
            self._store()

    def _rows(self, ids: list[int]) -> Iterator[np.ndarray]:
        """Append ids, SCORE_ROWS at a time: the logits after each of them."""
        self._last_logits = None
        for start in range(0, len(ids), SCORE_ROWS):
            part = ids[start : start + SCORE_ROWS]
            rows = self._forward(part, [True] * len(part))
            yield rows
        self._last_logits = np.array(rows[-1])

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
            held = self._tokens.tolist()
            at = self.position - 1
            self._rewind(at if at >= self._cache.earliest else 0)
            self._append(held[self.position :], None)
        return self._last_logits

    def _rewind(self, position: int) -> None:
        position = index(position)
        if not 0 <= position <= self.position:
            raise ValueError(f"position is {position}, expected 0 to {self.position}")
        if position < self.position:
            self.n_changes += 1
            self._last_logits = None
            try:
                self._cache.rewind(position)
            except NotHeld as error:
                raise NotHeld(
                    f"cannot go back to {position}: a layer that slides holds what was seen from "
                    f"{self._cache.earliest} on; rewind to {self._cache.earliest} to "
                    f"{self.position}, or to 0"
                ) from error
            finally:
                del self._tokens[self._cache.length :]
            self._n_stored = min(self._n_stored, position)
        kept = self.surprise_limits.items()
        self.surprise_limits = {at: limit for at, limit in kept if at <= position + 1}

    def _take(self, tokens: Sequence[int], pages: dict) -> None:
        """Go on from tokens whose pages these are."""
        self.n_changes += 1
        self._last_logits = None
        try:
            self._cache.resume(len(tokens), pages)
        finally:
            self._tokens = array("i", tokens[: self._cache.length])

    def _turn_for(self, length: int) -> None:
        """Frequencies of a text of this length; if they are others, all it holds turns anew."""
        if self._model.ropes_for is None:
            return
        is_near = self.context_policy == "sink"  # no two positions are seen further apart
        key, table = self._model.ropes_for(min(length, self.context) if is_near else length)
        if key == self._ropes[0]:
            return
        held = self._tokens.tolist()
        self._rewind(0)
        self._set_ropes(key, table())
        for start in range(0, len(held), PREFILL_ROWS):
            part = held[start : start + PREFILL_ROWS]
            self._forward(part, [False] * len(part))

    def _set_ropes(self, key, table) -> None:
        if table is not None:
            self._cache.set_ropes(table)
        self._ropes = key, table

    def _store(self, is_last: bool = False) -> None:
        """Tell the prefix cache of the pages that became full; in the end of the last one too."""
        n, prefixes = self.position, self._model.prefixes
        if prefixes is None or not self._n_stored < n <= self.context:
            return
        if is_last or n // POSITIONS_PER_PAGE > self._n_stored // POSITIONS_PER_PAGE:
            prefixes.store(self._ropes[0], self._tokens, self._cache, is_last)
            self._n_stored = n if is_last else n - n % POSITIONS_PER_PAGE


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    same = np.asarray(a[:n], np.int32) == np.asarray(b[:n], np.int32)
    return n if same.all() else int(np.argmin(same))


def _log_probability(logits: np.ndarray, token: int) -> float:
    return float(logits[token]) - _engine.rank(logits, 0)[1]
