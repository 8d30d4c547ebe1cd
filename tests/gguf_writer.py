"""A small writer of GGUF files, honest ones and, piece by piece, dishonest ones."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TYPES = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<B"),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}
KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q6_K": 14, "BF16": 30}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(content: Any) -> bytes:
    """Type number and value: str, bool, int (u32), float (f32), lists of them (int: i32), or
    ("u64", 7) and ("u64", [7, 8]) to choose the type."""
    if isinstance(content, str):
        return struct.pack("<I", 8) + string(content)
    if isinstance(content, tuple):
        kind, content = content
    elif isinstance(content, list):
        first = content[0] if content else ""
        kind = {bool: "bool", int: "i32", float: "f32"}.get(type(first), "string")
    else:
        kind = {bool: "bool", int: "u32", float: "f32"}[type(content)]
    if not isinstance(content, list):
        number, layout = TYPES[kind]
        return struct.pack("<I", number) + struct.pack(layout, content)
    if kind == "string":
        number, elements = 8, b"".join(map(string, content))
    else:
        number, layout = TYPES[kind]
        elements = struct.pack(f"<{len(content)}{layout[1]}", *content)
    return struct.pack("<IIQ", 9, number, len(content)) + elements


def tensor_entry(name: str, kind: str | int, shape: tuple[int, ...], offset: int) -> bytes:
    """One row of the tensor table; `shape` is outermost first, as everywhere but in the file."""
    number = KINDS[kind] if isinstance(kind, str) else kind
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return string(name) + dimensions + struct.pack("<IQ", number, offset)


def preamble(n_tensors: int, n_entries: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_entries)


def encode(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    version: int = 3,
) -> bytes:
    """A whole file; `tensors` maps a name to (kind, shape, bytes)."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 4096:
        alignment = 32  # one that readers refuse
    table, data = b"", b""
    for name, (kind, shape, content) in tensors.items():
        table += tensor_entry(name, kind, shape, len(data))
        data += content + bytes(-len(content) % alignment)
    header = preamble(len(tensors), len(metadata), version)
    header += b"".join(string(key) + value(content) for key, content in metadata.items())
    header += table
    return header + bytes(-len(header) % alignment) + data


def write(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
) -> Path:
    path.write_bytes(encode(metadata, tensors))
    return path


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """The metadata of a small llama; keyword ``a__b`` changes key ``a.b``, None takes it out."""
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": 48,
    } | {key.replace("__", "."): content for key, content in changes.items()}
    return {key: content for key, content in metadata.items() if content is not None}
