"""A model at an https address: one .gguf file."""

import os
import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from rillm.checkpoint.partial import Progress, copy, folder_beside
from rillm.checkpoint.split import parts_of
from rillm.errors import DownloadError, RillmError


@dataclass(frozen=True)
class Url:
    """The https address of one .gguf file."""

    url: str

    def place(self, home: Path) -> Path:
        import hashlib

        name = urllib.parse.unquote(urllib.parse.urlsplit(self.url).path.rpartition("/")[2])
        if not re.fullmatch(r"[^/\\\x00-\x1f]+\.gguf", name):
            raise DownloadError(f"{self.url}: expected the address of a .gguf file, got {name!r}")
        if (n_parts := len(parts_of(name))) > 1:
            raise DownloadError(
                f"{self.url}: one of {n_parts} parts; download them all into one folder, and give "
                "the path of the first"
            )
        key = hashlib.sha256(self.url.encode()).hexdigest()[:16]  # two hosts may share a file name
        return home / "models" / key / name

    def cached(self, home: Path) -> Path | None:
        path = self.place(home)
        return path if path.is_file() else None

    def fetch(self, home: Path, progress: Progress | None) -> Path:
        import http.client
        import urllib.request

        target = self.place(home)
        with folder_beside(target) as folder:
            partial = folder / target.name
            try:
                with urllib.request.urlopen(self.url, timeout=60) as response:
                    length = response.headers.get("Content-Length")
                    total = int(length) if length and length.isdigit() else None
                    copy([response], partial, total, progress, target.name)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, RillmError):
                    raise
                raise DownloadError(
                    f"{self.url}: {error or type(error).__name__}; nothing was kept. Check the "
                    f"address, the network and the disk, or put the file at {target} yourself"
                ) from error
            with partial.open("rb") as file:
                if (magic := file.read(4)) != b"GGUF":
                    raise DownloadError(f"{self.url}: starts with {magic!r}, expected b'GGUF'")
            os.replace(partial, target)
        return target
