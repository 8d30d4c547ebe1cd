"""A model on disk, opened: names, shapes and bytes, config and tokenizer; nothing interpreted."""

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from rillm.checkpoint import gguf, safetensors
from rillm.checkpoint.config import Config, read_config
from rillm.checkpoint.gguf_config import config_from_gguf
from rillm.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from rillm.checkpoint.keys import read_json, token_ids
from rillm.checkpoint.mapped import Tensor
from rillm.checkpoint.split import first_parts
from rillm.checkpoint.tokenizer import Tokenizer, has_tokenizer, read_tokenizer, tokenizer_config
from rillm.errors import MalformedFile, ModelNotFound

_SAMPLING_KEYS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "no_repeat_ngram_size",
    "max_new_tokens",
)


class Checkpoint:
    """What `open_checkpoint` found; a context manager.

    Attributes
    ----------
    path : Path
        The folder or the .gguf file.
    format : "safetensors" or "gguf"
    config : Config
    tensors : dict[str, Tensor]
        By name, without a multimodal wrapping. The llama3 rope factors of a GGUF are among them,
        as ``rope_freqs.weight``.
    skipped : dict[str, int]
        How many tensors of vision and audio parts were left out, by prefix.
    generation : dict[str, Any]
        The sampling options of generation_config.json; {} for GGUF.
    chat_template : str or None
    """

    def __init__(
        self,
        path: Path,
        format: Literal["safetensors", "gguf"],
        config: Config,
        tensors: dict[str, Tensor],
        build_tokenizer: Callable[[], Tokenizer],
        *,
        skipped: dict[str, int] | None = None,
        generation: dict[str, Any] | None = None,
        generation_eos: tuple[int, ...] = (),
        chat_template: str | None = None,
    ):
        self.path = path
        self.format = format
        self.config = config
        self.tensors = tensors
        self.skipped = skipped or {}
        self.generation = generation or {}
        self.chat_template = chat_template
        self._generation_eos = generation_eos
        self._build_tokenizer = build_tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Built on first use, also after close(); raises UnsupportedTokenizer, MalformedFile."""
        tokenizer = self._build_tokenizer()
        del self._build_tokenizer  # it may hold a map
        return tokenizer

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a text: files often name different ones, and any of them may come."""
        ids = [*self._generation_eos, *self.config.eos_token_ids]
        if self.format == "safetensors" and has_tokenizer(self.path):
            ids += [self.tokenizer.eos_token_id]
        return tuple(dict.fromkeys(id for id in ids if id is not None))

    def close(self) -> None:
        """Drop the tensors, and with the last view of it each mapped file."""
        self.tensors.clear()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a model folder (config.json, *.safetensors, tokenizer.json) or a .gguf file.

    Of a model split over several .gguf files give the first, or their folder. In a folder the part
    of a model that sees pictures (mmproj) is passed over.

    When this returns, all files are there and every extent lies inside its file; weights are
    mapped, not read.

    Raises
    ------
    CheckpointError
        One of its classes; the message names file, key, what was got and what was expected.
    """
    path = Path(path)
    if path.is_file():
        return _open_gguf(path)
    if not path.is_dir():
        raise ModelNotFound(f"{path}: no such file; expected a model folder or a .gguf file")
    files = first_parts(sorted(file.name for file in path.glob("*.gguf")))
    files = [file for file in files if "mmproj" not in file]
    if not files or (path / "config.json").exists():
        return _open_folder(path)
    if len(files) > 1:
        raise ModelNotFound(f"{path}: several models: {', '.join(files)}; give one of them")
    return _open_gguf(path / files[0])


def _open_gguf(path: Path) -> Checkpoint:
    metadata, tensors = gguf.read(path)
    return Checkpoint(
        path,
        "gguf",
        config_from_gguf(metadata, tensors),
        tensors,
        partial(tokenizer_from_gguf, metadata),
        chat_template=metadata.text("tokenizer.chat_template", None),
    )


def _open_folder(path: Path) -> Checkpoint:
    config = read_config(path)
    tensors, skipped = safetensors.read_tensors(path)
    file = path / "generation_config.json"
    generation = read_json(file) if file.is_file() else {}
    return Checkpoint(
        path,
        "safetensors",
        config,
        tensors,
        partial(read_tokenizer, path),
        skipped=skipped,
        generation={k: generation[k] for k in _SAMPLING_KEYS if generation.get(k) is not None},
        generation_eos=token_ids(file, "eos_token_id", generation.get("eos_token_id")),
        chat_template=_chat_template(path),
    )


def _chat_template(path: Path) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's: one text, or a list of named ones."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedFile(f"{file}: no UTF-8 ({error})") from error
    template = tokenizer_config(path).get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
