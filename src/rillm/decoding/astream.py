"""A stream in an event loop: threads compute its pieces, and who cancels it waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rillm.decoding.loop import Stream
    from rillm.decoding.pieces import Piece


async def in_threads(pieces: Stream) -> AsyncIterator[Piece]:
    """The pieces, each computed in a thread; the session is free when the iterator has ended."""
    import asyncio  # slow to import, and seldom wanted
    from contextvars import copy_context

    in_thread, run, turn = asyncio.get_running_loop().run_in_executor, copy_context().run, None
    try:
        while True:
            turn = in_thread(None, run, next, pieces, None)
            if (piece := await asyncio.shield(turn)) is None:
                return
            yield piece
    finally:
        pieces.cancel()  # what is computed ends soon, and then the session is free
        try:
            if turn is not None:
                await _ended(turn)
        finally:
            pieces.close()


async def _ended(turn) -> None:
    """Wait for a future, however often the task that waits is cancelled meanwhile."""
    import asyncio

    cancelled = None
    while not turn.done():
        try:
            await asyncio.wait([turn])
        except asyncio.CancelledError as error:
            cancelled = error
    if not turn.cancelled():
        turn.exception()  # or asyncio would report it as never seen
    if cancelled:
        raise cancelled
