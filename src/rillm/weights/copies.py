"""The packed copies of this machine: made, listed, and removed when they take too much room."""

import os
from dataclasses import dataclass
from pathlib import Path

from rillm import cpu
from rillm.checkpoint import open_checkpoint
from rillm.plan import make_plan
from rillm.weights import packed
from rillm.weights.formats import canonical
from rillm.weights.packing import Layout


@dataclass(frozen=True)
class Copy:
    """A packed copy; `model` is the path of what it was made of, or None if it is damaged."""

    path: Path
    n_bytes: int
    used: float  # seconds since the epoch: when it was written or last loaded
    model: Path | None
    weights: str | None


def add(model: Path, weights: str, max_bytes: int) -> tuple[Copy, list[Copy]]:
    """Make the packed copy of a model, unless it is there; and what was removed to make room.

    Copies that were not used for longest go first, until all together take `max_bytes` at most.

    Raises
    ------
    ValueError
        The copy alone would take more than that.
    OSError
        It cannot be written; nothing is left of it.
    CheckpointError
        The model cannot be loaded.
    """
    weights, n_threads = canonical(weights), cpu.default_threads().count
    path, layout = packed.place(model, weights), Layout()
    with open_checkpoint(model) as checkpoint:
        make_plan(checkpoint, weights, layout)
        if layout.n_bytes > max_bytes:
            raise ValueError(
                f"{model}: its packed copy takes {layout.n_bytes:,} bytes, but --max-bytes allows "
                f"{max_bytes:,}"
            )
        if packed.load(checkpoint, weights, layout, n_threads) is None:
            removed = _make_room(max_bytes - layout.n_bytes, but=path)
            header = packed.describe(checkpoint, weights, layout)
            packed.write(path, header, layout.pack(n_threads))
        else:
            removed = _make_room(max_bytes - layout.n_bytes, but=path)
    return _copy(path), removed


def copies() -> list[Copy]:
    """All of them, the one that was used last first."""
    found = [_copy(path) for path in packed.folder().glob("*.packed")]
    return sorted(found, key=lambda copy: copy.used, reverse=True)


def clear(model: Path | None = None) -> list[Copy]:
    """Removes all copies, or those of a model; returns what was removed."""
    wanted = None if model is None else model.resolve()
    removed = [copy for copy in copies() if wanted is None or copy.model == wanted]
    for copy in removed:
        copy.path.unlink(missing_ok=True)
    if model is None:
        for left_over in packed.folder().glob(".partial-*"):  # of processes that were killed
            left_over.unlink(missing_ok=True)
    return removed


def _make_room(n_bytes: int, but: Path) -> list[Copy]:
    """Removes copies until all, but one, take n_bytes at most."""
    kept, removed = [copy for copy in copies() if copy.path != but], []
    while sum(copy.n_bytes for copy in kept) > n_bytes:
        removed.append(kept.pop())
        removed[-1].path.unlink(missing_ok=True)
    return removed


def _copy(path: Path) -> Copy:
    stat = path.stat()
    file = os.open(path, os.O_RDONLY)
    try:
        header, _ = packed.read_header(file)
        model, weights = Path(header["model"]), str(header["weights"])
    except (ValueError, KeyError, TypeError):
        model = weights = None
    finally:
        os.close(file)
    return Copy(path, stat.st_size, stat.st_mtime, model, weights)
