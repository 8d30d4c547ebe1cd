"""A model in a repository of the Hugging Face hub, through huggingface_hub."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rillm.checkpoint import safetensors
from rillm.checkpoint.partial import Progress
from rillm.checkpoint.split import first_parts, parts_of
from rillm.errors import CheckpointError, DownloadError, ModelNotFound, RillmError


@dataclass(frozen=True)
class Repository:
    """A repository of the Hugging Face hub, or one .gguf file of it, through huggingface_hub.

    The hub's own cache is used, shared with other software, unless RILLM_HOME moves it. `tag` is
    a word in the name of the file, or else of its folder, such as Q4_K_M; of a split model all
    parts are fetched.
    """

    repository: str
    file: str | None = None
    tag: str | None = None

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
            if self.tag:
                return self._of_tag(self._cached_files(home)).cached(home)
            path = self._ask(home, local_files_only=True)
            if path.is_dir():
                safetensors.files_of(path)  # raises for a snapshot that was interrupted
            return path
        except (OSError, ValueError, CheckpointError):
            return None

    def fetch(self, home: Path, progress: Progress | None) -> Path:
        try:
            if self.tag:
                import huggingface_hub

                files = huggingface_hub.HfApi().list_repo_files(self.repository)
                return self._of_tag(files).fetch(home, progress)
            path = self._ask(home, tqdm_class=_reporting_bar(progress, self.repository))
        except RillmError:
            raise
        except Exception as error:  # the hub's errors have no common parent
            first_line = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
            raise DownloadError(
                f"{self.repository}: not in the cache ({self.place(home)}), and the hub said: "
                f"{first_line}. Check the name and the network; a gated model needs `hf auth login`"
            ) from error
        if path.is_dir() and not (path / "config.json").exists():
            raise DownloadError(
                f"{self.repository}: holds no config.json; where it holds .gguf files, name one: "
                f"'{self.repository}:file.gguf' or '{self.repository}:Q4_K_M'"
            )
        return path

    def _of_tag(self, files: list[str]) -> "Repository":
        """The one file whose name, or folder, has the tag as a word of its own; ModelNotFound."""
        tag = re.escape(self.tag)
        word = re.compile(rf"(?<![A-Za-z0-9]){tag}(?![A-Za-z0-9_])", re.IGNORECASE)
        models = [file for file in first_parts(sorted(files)) if file.endswith(".gguf")]
        models = [file for file in models if "mmproj" not in file]  # of pictures
        named = [file for file in models if word.search(file.rpartition("/")[2])]
        named = named or [file for file in models if word.search(file)]
        if len(named) != 1:
            found = ", ".join(named or models) or "no .gguf file"
            raise ModelNotFound(
                f"{self.repository}: {'several files are' if named else 'no file is'} called "
                f"{self.tag}: there {'are' if named or models else 'is'} {found}; name one: "
                f"'{self.repository}:file.gguf'"
            )
        return Repository(self.repository, named[0])

    def _cached_files(self, home: Path) -> list[str]:
        place = self.place(home)
        folder = place / "snapshots" / (place / "refs" / "main").read_text().strip()
        return [file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf")]

    def _ask(self, home: Path, **options) -> Path:
        import huggingface_hub

        options["cache_dir"] = self.place(home).parent
        if self.file:
            parts = [
                huggingface_hub.hf_hub_download(self.repository, part, **options)
                for part in parts_of(self.file)
            ]
            return Path(parts[0])
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
