"""A file that is there whole or not at all: written beside its place, then moved there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import IO


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` at the end; a link stays and leads there.

    On an error `path` is as it was, and nothing else is left. Many may write one path at once: the
    last to end stays.

    Raises
    ------
    OSError
        It cannot be written, or `path` is something else than a file: a folder, a pipe, a device.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is no regular file: expected one to replace, or a new name")
    beside = path.with_name(f".partial-{os.getpid()}-{get_ident()}")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
