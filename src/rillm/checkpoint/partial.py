"""Downloads in the making: in a folder beside their place, which goes away whatever happens."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rillm.errors import DownloadError, RillmError

Progress = Callable[[int, int | None, str], object]  # done bytes, total bytes or None, what

_CHUNK_BYTES = 1 << 20


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """A folder on the same disk as `target`, so that os.replace is atomic; it always goes away."""
    import shutil
    import tempfile

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".partial-", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)
    except OSError as error:
        if isinstance(error, RillmError):
            raise
        free = shutil.disk_usage(target.parent).free if target.parent.exists() else 0
        raise DownloadError(
            f"{target}: {error}; nothing was kept ({free / 1e6:.0f} MB free there). "
            "RILLM_HOME moves the cache"
        ) from error


def copy(
    sources: Iterable[IO[bytes]],
    target: Path,
    total: int | None,
    progress: Progress | None,
    what: str,
) -> str:
    """Copy streams, one after the other, to a file and return its sha256; a wrong length fails."""
    import hashlib

    digest, done = hashlib.sha256(), 0
    with target.open("wb") as file:
        for source in sources:
            while chunk := source.read(_CHUNK_BYTES):
                done += len(chunk)
                if total is not None and done > total:
                    break
                digest.update(chunk)
                file.write(chunk)
                if progress:
                    progress(done, total, what)
    if total is not None and done != total:
        raise DownloadError(f"{what}: got {done} bytes, expected {total}; nothing was kept")
    return digest.hexdigest()
