"""Packed copies: an arena as one file, read back instead of packing the source anew.

A copy is written on request alone. It is used for exactly the source, the `weights=` and the plan
it was made of; whatever differs or is damaged is said by `logging`, and the source is packed.

A file is a magic word, length and CRC-32 of a JSON header, the header, zeros up to a page, and the
bytes of the arena. The header holds a checksum of each chunk, which is checked as it is read.
"""

import contextlib
import json
import logging
import os
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rillm.checkpoint import Checkpoint, hub
from rillm.engine._engine import Weights
from rillm.weights.packing import Layout, in_threads
from rillm.whole_file import writing

PACKING = 3  # raised when the same source and plan are packed to other bytes

_MAGIC = b"rillmpak"
_PREFIX = struct.Struct("<8sII")  # magic, bytes of the header, their CRC-32
_PAGE = 4096
_CHUNK = 1 << 20
_EDGE = 32  # bytes of each end of a tensor that are part of the fingerprint

_log = logging.getLogger(__name__)


def folder() -> Path:
    """Where packed copies lie."""
    return hub.home() / "packed"


def place(source: Path, weights: str) -> Path:
    """The file of the copy of a model in a choice of weights: there is one at most."""
    import hashlib

    digest = hashlib.sha256(f"{source.resolve()}\0{weights}".encode())
    return folder() / f"{source.stem}-{weights}-{digest.hexdigest()[:16]}.packed"


def load(checkpoint: Checkpoint, weights: str, layout: Layout, n_threads: int) -> Weights | None:
    """The arena from its packed copy, or None, with a reason logged if there is a copy."""
    if not folder().exists():
        return None
    path = place(checkpoint.path, weights)
    if not path.exists():
        return None
    try:
        arena = _read(path, describe(checkpoint, weights, layout), n_threads)
    except (OSError, ValueError) as error:
        _log.warning("%s: packed copy not used: %s; packing the model itself", path, error)
        return None
    with contextlib.suppress(OSError):  # a cache that is read-only works too
        os.utime(path)  # when it was used
    return arena


def describe(checkpoint: Checkpoint, weights: str, layout: Layout) -> dict[str, Any]:
    """What a copy must have been made of: all of its header but the checksums."""
    import hashlib

    files = {tensor.file for tensor in checkpoint.tensors.values()}
    files = sorted(file.resolve() for file in files)
    stats = [(file, file.stat()) for file in files]
    tensors = hashlib.sha256()
    for name, tensor in sorted(checkpoint.tensors.items()):
        tensors.update(repr((name, tensor.kind, tensor.shape)).encode())
        tensors.update(tensor.data[:_EDGE].tobytes() + tensor.data[-_EDGE:].tobytes())
    return {
        "packing": PACKING,
        "model": str(checkpoint.path.resolve()),
        "weights": weights,
        "files": [[str(file), stat.st_size, stat.st_mtime_ns] for file, stat in stats],
        "tensors": tensors.hexdigest(),
        "layout": layout.digest(),
        "n_bytes": layout.n_bytes,
        "chunk_bytes": _CHUNK,
    }


def write(path: Path, header: dict[str, Any], arena: Weights) -> int:
    """Writes a copy whole or not at all; returns its bytes. OSError, such as a full disk."""
    checksums = [arena.checksum(*chunk) for chunk in _chunks(arena.n_bytes)]
    text = json.dumps({**header, "checksums": checksums}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        file.write(_PREFIX.pack(_MAGIC, len(text), zlib.crc32(text)) + text)
        file.write(bytes(_data_start(len(text)) - file.tell()))
        file.write(_bytes_of(arena))
    return path.stat().st_size


def read_header(file: int) -> tuple[dict[str, Any], int]:
    """The header of an open copy and where its arena starts; ValueError for no copy."""
    magic, n_bytes, checksum = _PREFIX.unpack(_exactly(file, _PREFIX.size, 0))
    if magic != _MAGIC or n_bytes > os.fstat(file).st_size:
        raise ValueError("it is no packed copy, or cut short")
    text = _exactly(file, n_bytes, _PREFIX.size)
    if zlib.crc32(text) != checksum:
        raise ValueError("its header is damaged")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return header, _data_start(n_bytes)


def _read(path: Path, expected: dict[str, Any], n_threads: int) -> Weights:
    file = os.open(path, os.O_RDONLY)
    try:
        header, start = read_header(file)
        for key, value in expected.items():
            if header.get(key) != value:
                raise ValueError(f"its {key} differ from the model's: made of another file or plan")
        n_bytes, n_file_bytes = expected["n_bytes"], os.fstat(file).st_size
        if n_file_bytes != start + n_bytes:
            raise ValueError(f"it has {n_file_bytes} bytes, expected {start + n_bytes}")
        chunks, checksums = _chunks(n_bytes), header.get("checksums")
        if not isinstance(checksums, list) or len(checksums) != len(chunks):
            raise ValueError("its checksums are missing")
        arena = Weights(n_bytes)
        jobs = (
            partial(_read_chunk, file, start, arena, *chunk, checksum)
            for chunk, checksum in zip(chunks, checksums, strict=True)
        )
        in_threads(n_threads, jobs)
        return arena
    finally:
        os.close(file)


def _read_chunk(file: int, start: int, arena: Weights, at: int, size: int, checksum: int) -> None:
    n_bytes = os.preadv(file, [_bytes_of(arena)[at : at + size]], start + at)
    if n_bytes != size or arena.checksum(at, size) != checksum:
        raise ValueError(f"its bytes from {start + at} on are damaged")


def _bytes_of(arena: Weights) -> memoryview:
    return memoryview(arena.view().view(np.uint8))


def _chunks(n_bytes: int) -> list[tuple[int, int]]:
    """(first byte, bytes) of each."""
    return [(at, min(_CHUNK, n_bytes - at)) for at in range(0, n_bytes, _CHUNK)]


def _exactly(file: int, n_bytes: int, at: int) -> bytes:
    data = os.pread(file, n_bytes, at)
    if len(data) != n_bytes:
        raise ValueError("it is cut short")
    return data


def _data_start(header_bytes: int) -> int:
    return -(-(_PREFIX.size + header_bytes) // _PAGE) * _PAGE
