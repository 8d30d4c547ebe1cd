"""A tokenizer.json written from GGUF metadata: byte-level BPE, built once and kept.

Source of the steps: https://huggingface.co/docs/tokenizers/components; the kinds of tokens and of
pre-tokenizers are llama.cpp's.
"""

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from rillm.checkpoint.gguf_config import special_ids
from rillm.checkpoint.metadata import Array, Metadata
from rillm.checkpoint.tokenizer import Tokenizer, load_backend, set_added_tokens
from rillm.errors import CheckpointError, MalformedFile, UnsupportedTokenizer

_KINDS = _NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)  # token_type
_FORM = 1  # part of the cache's key: raise it when `_build` writes something else

# tokenizer.ggml.pre: the steps that cut text before the merges
_PRE_TOKENIZERS = {
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}

_log = logging.getLogger(__name__)


def tokenizer_from_gguf(metadata: Metadata, home: Path) -> Tokenizer:
    """The tokenizer of a GGUF file; `home`/tokenizers keeps what was built.

    Raises
    ------
    UnsupportedTokenizer
        Its model or pre-tokenizer is not read; the error names it.
    MalformedFile
        The vocabulary contradicts itself.
    """
    steps = _steps(metadata)
    arrays = _arrays(metadata)
    ids = special_ids(metadata)
    file = home / "tokenizers" / f"{_key(steps, arrays)}.json"
    backend = _kept(file) or _build(metadata.file, steps, arrays, file)
    added = {}
    for name in ("bos", "eos"):
        if metadata.flag(f"tokenizer.ggml.add_{name}_token", False):
            if name not in ids:
                raise MalformedFile(
                    f"{metadata.file}: tokenizer.ggml.add_{name}_token is set, but "
                    f"tokenizer.ggml.{name}_token_id is missing"
                )
            added[name] = ids[name]
    if added:
        set_added_tokens(backend, added.get("bos"), added.get("eos"))
    bos, eos = (backend.id_to_token(ids[name]) if name in ids else None for name in ("bos", "eos"))
    return Tokenizer(backend, bos, eos)


def _steps(metadata: Metadata) -> list[dict[str, Any]]:
    model = metadata.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedTokenizer(
            f"{metadata.file}: tokenizer.ggml.model is {model!r}, expected 'gpt2'; "
            "take the model's Hugging Face folder, which brings its tokenizer.json"
        )
    pre = metadata.text("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise UnsupportedTokenizer(
            f"{metadata.file}: tokenizer.ggml.pre is {pre!r}, expected one of: "
            f"{', '.join(_PRE_TOKENIZERS)}; take the model's Hugging Face folder, which brings its "
            "tokenizer.json"
        )
    return _PRE_TOKENIZERS[pre]


def _arrays(metadata: Metadata) -> dict[str, Array]:
    arrays = {
        "tokens": metadata.array("tokenizer.ggml.tokens", ("string",)),
        "kinds": metadata.array("tokenizer.ggml.token_type", ("i32",)),
        "merges": metadata.array("tokenizer.ggml.merges", ("string",)),
    }
    n_tokens, n_kinds = len(arrays["tokens"]), len(arrays["kinds"])
    if n_tokens != n_kinds:
        raise MalformedFile(
            f"{metadata.file}: tokenizer.ggml.token_type has {n_kinds} elements, "
            f"expected one a token, {n_tokens}"
        )
    return arrays


def _key(steps: list[dict[str, Any]], arrays: dict[str, Array]) -> str:
    digest = hashlib.sha256(json.dumps([_FORM, steps]).encode())
    for name, array in arrays.items():
        digest.update(f"{name} {array.count} {len(array.data)}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()[:32]


def _kept(file: Path) -> Any | None:
    try:
        return load_backend(file) if file.is_file() else None
    except CheckpointError as error:
        _log.warning("%s: damaged, building it anew (%s)", file, error)
        return None


def _build(source: Path, steps: list[dict[str, Any]], arrays: dict[str, Array], file: Path) -> Any:
    import tokenizers

    tokens, kinds = arrays["tokens"].tolist(), arrays["kinds"].tolist()
    vocab = {token: id for id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        id = next(id for id, token in enumerate(tokens) if vocab[token] != id)
        raise MalformedFile(
            f"{source}: tokens {id} and {vocab[tokens[id]]} are the same, {tokens[id]!r}"
        )
    for id, kind in enumerate(kinds):
        if kind not in _KINDS:  # among them 6, a token for one byte: byte-level BPE has none
            raise MalformedFile(
                f"{source}: token {id} ({tokens[id]!r}) is of type {kind}, which a gpt2 vocabulary "
                "does not have"
            )
    merges = [_halves(source, merge) for merge in arrays["merges"].tolist()]
    table = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": id,
                "content": tokens[id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != _USER_DEFINED,
            }
            for id, kind in enumerate(kinds)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    text = json.dumps(table, ensure_ascii=False)
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise MalformedFile(f"{source}: its vocabulary and merges do not fit: {error}") from error
    _keep(file, text)
    return backend


def _halves(source: Path, merge: str) -> tuple[str, str]:
    space = merge.find(" ", 1)  # the first half may be a space itself
    left, right = merge[:space], merge[space + 1 :]
    if space < 0 or not right:
        raise MalformedFile(
            f"{source}: tokenizer.ggml.merges has {merge!r}, expected two tokens and a space"
        )
    return left, right


def _keep(file: Path, text: str) -> None:
    """Write the cache whole or not at all; without a writable cache the next load builds again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, prefix=".partial-", delete=False
        ) as partial:
            try:
                partial.write(text)
                partial.close()
                os.replace(partial.name, file)
            except BaseException:
                os.unlink(partial.name)
                raise
    except OSError as error:
        _log.info("%s: not kept (%s)", file, error)
