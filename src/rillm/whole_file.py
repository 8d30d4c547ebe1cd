"""A file that is there whole or not at all: written beside its place, then moved there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import IO


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` at the end.

    On an error `path` is as it was, and nothing else is left. Many may write one path at once: the
    last to end stays.
    """
    beside = path.with_name(f".partial-{os.getpid()}-{get_ident()}-{path.name}")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
