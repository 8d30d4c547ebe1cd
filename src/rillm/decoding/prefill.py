"""The prompt, in calls into the engine that are short enough to be stopped between."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from rillm.decoding.logprobs import TokenLogprob, token_logprob
from rillm.errors import SessionBusy

if TYPE_CHECKING:
    from rillm.session import Session

_SECONDS = 0.2  # a call cannot be interrupted, so it should not be longer
_TOKENS = (16, 512)  # of a call
_LOGPROB_TOKENS = (16, 32)  # where the logits of all of them are kept at once


def prefill(
    session: Session,
    ids: list[int],
    n_logprobs: int | None,
    is_interrupted: Callable[[], object],
    on_prefill: Callable[[int, int], None] | None,
) -> tuple[np.ndarray | None, list[TokenLogprob | None] | None]:
    """Append ids.

    Returns
    -------
    float32 [vocab_size] or None
        The logits after the last token that was appended; None if there was none.
    list of (TokenLogprob or None), or None
        With `n_logprobs`: of each token; None for the first of a session, which nothing precedes.

    Raises
    ------
    SessionBusy
        `on_prefill` changed the session.
    """
    logprobs: list[TokenLogprob | None] | None = None
    if n_logprobs is not None:
        before = session.next_logits() if session.position else None
        logprobs = [None if before is None else token_logprob(before, ids[0], n_logprobs)]
    least, most = _TOKENS if logprobs is None else _LOGPROB_TOKENS
    size, begin, logits = least, 0, None
    while begin < len(ids) and not is_interrupted():
        started = perf_counter()
        part = ids[begin : begin + size]
        if logprobs is None:
            logits = session.prefill(part)
        else:
            rows = session.logits(part)
            followed = zip(rows, ids[begin + 1 :], strict=False)
            logprobs += [token_logprob(row, token, n_logprobs) for row, token in followed]
            logits = rows[-1].copy()
        begin += len(part)
        pace = len(part) / max(perf_counter() - started, 1e-6)
        size = min(max(int(pace * _SECONDS), least), most)
        if on_prefill:
            n_changes = session.n_changes
            on_prefill(begin, len(ids))
            check_unchanged(session, n_changes)
    return logits, logprobs


def check_unchanged(session: Session, n_changes: int) -> None:
    """SessionBusy if it has changed since it had this `n_changes`."""
    if session.n_changes != n_changes:
        raise SessionBusy(
            f"the session was changed, and holds {session.position} tokens now: something else, or "
            "a callback, used it while this stream was not at its end"
        )
