"""A session in a file: safetensors of its tokens, and of the pages that it needs to go on."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rillm.checkpoint.mapped import MappedFile
from rillm.checkpoint.safetensors import read_header
from rillm.engine._engine import Cache, Page
from rillm.errors import SessionFileError
from rillm.whole_file import writing

if TYPE_CHECKING:
    from rillm.model import Model
    from rillm.session import Session

VERSION = "1"
_KEY = "rillm_session"


@dataclass(frozen=True)
class Saved:
    """What a file holds."""

    tokens: array
    pages: dict[tuple[int, int], Page]
    surprise_limits: dict[int, tuple[int, float]]


def write(path: Path, session: Session, cache: Cache, model: Model) -> None:
    """Tokens and the pages that it needs; a checksum of all before it comes last."""
    tokens = np.array(session.tokens, np.int32)
    pages = _needed(cache, len(tokens), cache.page)
    table, end = {"tokens": ("I32", [len(tokens)], tokens.nbytes)}, 0
    for ring, number in pages:
        n_bytes = cache.page_bytes[ring]
        table[_name(ring, number)] = ("U8", [n_bytes], n_bytes)
    table["crc32"] = ("U32", [1], 4)
    header: dict = {"__metadata__": _described(session, cache, model)}
    for name, (dtype, shape, n_bytes) in table.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(header).encode()
    with writing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        crc = zlib.crc32(tokens.tobytes(), zlib.crc32(text))
        file.write(tokens.tobytes())
        for ring, number in pages:
            data = cache.copy_page(ring, number)
            crc = zlib.crc32(data, crc)
            file.write(data)
        file.write(crc.to_bytes(4, "little"))


def read(path: Path, session: Session, cache: Cache, model: Model) -> Saved:
    """What is in a file, once every byte of it is checked.

    Raises
    ------
    SessionFileError, TruncatedFile, MalformedFile, FileNotFoundError
    """
    if path.is_file() and not path.stat().st_size:
        raise SessionFileError(f"{path}: the file is empty, expected a saved session")
    file = MappedFile(path)
    extents, metadata = read_header(file)
    wanted = _described(session, cache, model)
    if _KEY not in metadata:
        raise SessionFileError(f"{path}: a safetensors file, but no saved session")
    for key in (_KEY, "model", "activations", "kv"):
        if metadata.get(key) != wanted[key]:
            raise SessionFileError(
                f"{path}: saved with {key} {metadata.get(key)!r}, but here it is {wanted[key]!r}"
            )
    _check_crc(file)
    try:
        tokens = np.frombuffer(_data(file, extents, "tokens", "I32"), np.int32)
        if (n := len(tokens)) > session.limit:
            raise ValueError(f"{n} tokens, but this session holds at most {session.limit}")
        limits = json.loads(metadata["surprise_limits"])
        surprise_limits = {int(at): (int(token), float(x)) for at, (token, x) in limits.items()}
        _check_policy(path, n, metadata, wanted)
        needed = _needed(cache, n, lambda *key: _name(*key) in extents)
        data = {key: _data(file, extents, _name(*key), "U8") for key in needed}
        if len(extents) != len(data) + 2:
            raise ValueError(f"{len(extents)} tensors, expected {len(data) + 2}")
        for (ring, number), page in data.items():
            if len(page) != cache.page_bytes[ring]:
                raise ValueError(f"{_name(ring, number)} has {len(page)} bytes")
        if n and not 0 <= tokens.min() <= tokens.max() < session.vocab_size:
            raise ValueError("a token id is outside the vocabulary")
    except SessionFileError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SessionFileError(f"{path}: not what this session can hold ({error})") from error
    pages = {key: Page.from_bytes(np.frombuffer(page, np.uint8)) for key, page in data.items()}
    return Saved(array("i", tokens.tobytes()), pages, surprise_limits)


def _check_policy(path: Path, n: int, saved: dict[str, str], wanted: dict[str, str]) -> None:
    """Where nothing has slid, keys and values are the same under every policy."""
    keys = ("policy", "context", "n_keep")
    contexts = [int(each["context"]) for each in (saved, wanted) if each["policy"] != "stop"]
    if any(saved[key] != wanted[key] for key in keys) and n > min(contexts, default=n):
        raise SessionFileError(
            f"{path}: {n} tokens were seen with {', '.join(f'{k} {saved[k]}' for k in keys)}, but "
            f"this session has {', '.join(f'{k} {wanted[k]}' for k in keys)}: make one like it"
        )


def _needed(cache: Cache, n: int, is_there: Callable[[int, int], object]) -> list[tuple[int, int]]:
    """To go on; and from one token before where they are there: its logits may be wanted again."""
    before = [key for key in cache.needs(max(n - 1, 0)) if is_there(*key)]
    return sorted({*cache.needs(n), *before})


def _name(ring: int, number: int) -> str:
    return f"ring.{ring}.page.{number}"


def _described(session: Session, cache: Cache, model: Model) -> dict[str, str]:
    return {
        _KEY: VERSION,
        "model": model.fingerprint,
        "activations": model.activations,
        "kv": cache.format,
        "policy": session.context_policy,
        "context": str(session.context),
        "n_keep": str(session.n_keep),
        "surprise_limits": json.dumps(session.surprise_limits),
    }


def _data(file: MappedFile, extents: dict, name: str, dtype: str) -> memoryview:
    found, _, start, end = extents[name]
    if found != dtype:
        raise ValueError(f"{name} is {found}")
    return memoryview(file.map)[start:end]


def _check_crc(file: MappedFile) -> None:
    """Of everything between the length of the header and the sum itself."""
    stored = int.from_bytes(file.map[-4:], "little")
    if zlib.crc32(memoryview(file.map)[8:-4]) != stored:
        raise SessionFileError(f"{file.path}: damaged: its checksum is not that of its bytes")
