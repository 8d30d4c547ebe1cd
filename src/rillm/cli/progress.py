"""A progress bar on stderr, for downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int | None, str], None]]:
    """A callable (done_bytes, total_bytes or None, what) that draws a bar for each `what`.

    Nothing is drawn, and rich is not imported, before the first call.
    """
    bars = None
    tasks = {}

    def report(done_bytes: int, total_bytes: int | None, what: str) -> None:
        nonlocal bars
        if bars is None:
            bars = _bars()
            bars.start()
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total_bytes)
        bars.update(tasks[what], completed=done_bytes, total=total_bytes)

    try:
        yield report
    finally:
        if bars is not None:
            bars.stop()


def _bars():
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
