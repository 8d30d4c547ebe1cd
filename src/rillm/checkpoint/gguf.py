"""GGUF files, versions 2 and 3: metadata and the table of tensors, read in one pass.

Every count is held against the bytes that are left before anything is done with it. Arrays are only
stepped over, so that a vocabulary of 262k tokens costs milliseconds.
"""

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from rillm.checkpoint import _strings
from rillm.checkpoint.mapped import KINDS, MappedFile, Tensor
from rillm.checkpoint.metadata import SCALARS, Array, Metadata
from rillm.checkpoint.split import parts_of
from rillm.errors import MalformedFile, MissingShard, TruncatedFile, UnsupportedTensorKind

_STRING, _ARRAY = 8, 9  # type numbers, beside those of SCALARS
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20
_MAX_NAME_BYTES = (1 << 16) - 1  # of keys and tensors, for they stand in errors
_ENTRY_BYTES = 8 + 4 + 1  # the least that a metadata entry takes: key length, type, value
_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # and a tensor: name length, rank, a dimension, kind, offset

# ggml's tensor types; those that are not read are here to be named
_TENSOR_KINDS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip
_REORDERED = re.compile(r"(Q4_0|IQ4_NL)(?=_\d_\d)")  # for one kind of CPU, by older converters


def read(path: Path) -> tuple[Metadata, dict[str, Tensor]]:
    """The metadata and the tensors of a .gguf file; of a split model, when given its first part.

    Raises
    ------
    MissingShard
        A part of a split model is not there.
    TruncatedFile
        A count or an extent goes past the end of the file.
    MalformedFile
        The file breaks the format, or is none.
    UnsupportedTensorKind
        A tensor is quantized in a way that is not read, which the error names.
    """
    metadata, tensors = _Reader(MappedFile(path)).read()
    n_parts = metadata.integer("split.count", 1)
    if n_parts <= 1:
        return metadata, tensors
    names = parts_of(path.name)
    if len(names) != n_parts or path.name != names[0] or metadata.integer("split.no"):
        first = names[0] if len(names) == n_parts else f"…-00001-of-{n_parts:05}.gguf"
        raise MalformedFile(
            f"{path}: part {metadata.integer('split.no') + 1} of a model split into {n_parts} "
            f"files; give the first one, {first}, beside the others"
        )
    if missing := [name for name in names if not (path.parent / name).is_file()]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise MissingShard(
            f"{path}: {', '.join(missing[:3])}{more} not found beside it; fetch all {n_parts} parts"
        )
    for number, name in enumerate(names[1:], 1):
        own, others = _Reader(MappedFile(path.parent / name)).read()
        if (own.integer("split.no"), own.integer("split.count")) != (number, n_parts):
            raise MalformedFile(
                f"{own.file}: split.no and split.count are {own.integer('split.no')} and "
                f"{own.integer('split.count')}, expected {number} and {n_parts}"
            )
        if twice := tensors.keys() & others.keys():
            raise MalformedFile(f"{own.file}: tensor {min(twice)} comes twice, also in {path.name}")
        tensors |= others
    if (stated := metadata.integer("split.tensors.count", len(tensors))) != len(tensors):
        raise MalformedFile(
            f"{path}: split.tensors.count is {stated}, but its {n_parts} parts hold {len(tensors)}"
        )
    return metadata, tensors


class _Reader:
    def __init__(self, file: MappedFile):
        self.file = file
        self.view = memoryview(file.map)
        self.at = 0

    def read(self) -> tuple[Metadata, dict[str, Tensor]]:
        n_tensors, n_entries = self.preamble()
        metadata = Metadata(self.file.path)
        self.need(n_entries, _ENTRY_BYTES, f"{n_entries} metadata entries")
        for _ in range(n_entries):
            key = self.name("a metadata key")
            metadata.add(key, *self.value(key))
        self.need(n_tensors, _TENSOR_BYTES, f"a table of {n_tensors} tensors")
        table = [self.tensor_entry() for _ in range(n_tensors)]
        return metadata, self.tensors(table, self.alignment(metadata))

    def preamble(self) -> tuple[int, int]:
        if (magic := self.file.map[:4]) != b"GGUF":
            raise self.malformed(
                f"no GGUF file: it starts with {magic!r}, expected b'GGUF'; of a Hugging Face "
                "model give the folder"
            )
        self.at = 4
        version = self.scalar("<I", "the version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            raise self.malformed(
                f"GGUF version {version}, expected 2 or 3"
                + (" (this file is big-endian: convert it on a little-endian machine)" * swapped)
            )
        return self.scalar("<Q", "the number of tensors"), self.scalar("<Q", "that of metadata")

    def tensor_entry(self) -> tuple[str, str, tuple[int, ...], int]:
        name = self.name("a tensor's name")
        n_dimensions = self.scalar("<I", f"tensor {name}")
        if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
            raise self.malformed(
                f"tensor {name}: {n_dimensions} dimensions, expected 1 to {_MAX_DIMENSIONS}"
            )
        dimensions = tuple(self.scalar("<Q", f"tensor {name}") for _ in range(n_dimensions))
        if 0 in dimensions:
            raise self.malformed(f"tensor {name}: a dimension is 0 in {list(dimensions)}")
        number = self.scalar("<I", f"tensor {name}")
        kind = _TENSOR_KINDS.get(number, f"type {number}")
        if kind not in KINDS:
            plain = _REORDERED.match(kind)
            way_out = f"take the {plain[0]} file" if plain else "choose such a file"
            raise UnsupportedTensorKind(
                f"{self.file.path}: tensor {name}: {kind}, expected one of {', '.join(KINDS)}; "
                f"{way_out}, or quantize the original anew"
            )
        offset = self.scalar("<Q", f"tensor {name}")
        while len(dimensions) > 1 and dimensions[-1] == 1:  # a vector as a matrix of one row
            dimensions = dimensions[:-1]
        return name, kind, dimensions[::-1], offset  # innermost first in the file

    def tensors(self, table: list, alignment: int) -> dict[str, Tensor]:
        data_start = -(-self.at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        for name, kind, shape, offset in table:
            if offset % alignment:
                raise self.malformed(f"tensor {name}: offset {offset} is not {alignment}-aligned")
            if name in tensors:
                raise self.malformed(f"tensor {name} comes twice")
            tensors[name] = self.file.tensor(name, kind, shape, data_start + offset)
        return tensors

    def alignment(self, metadata: Metadata) -> int:
        alignment = metadata.integer("general.alignment", 32, kinds=("u32",))
        if not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.malformed(
                f"general.alignment is {alignment}, expected a power of two up to {_MAX_ALIGNMENT}"
            )
        return alignment

    def value(self, key: str) -> tuple[str, Any]:
        number = self.scalar("<I", key)
        if number == _STRING:
            return "string", self.string(key)
        if number == _ARRAY:
            return "array", self.array(key)
        if number not in SCALARS:
            raise self.malformed(f"{key}: unknown value type {number}")
        kind, format = SCALARS[number]
        value = self.scalar(format, key)
        if kind == "bool":
            if value > 1:
                raise self.malformed(f"{key}: a bool is {value}, expected 0 or 1")
            value = bool(value)
        return kind, value

    def array(self, key: str) -> Array:
        number, count = self.scalar("<I", key), self.scalar("<Q", key)
        start, starts = self.at, None
        if number == _STRING:
            kind, starts = "string", self.step_over_strings(count, key)
        elif number in SCALARS:
            kind, format = SCALARS[number]
            self.at = self.need(count, struct.calcsize(format), key)
        else:
            raise self.malformed(f"{key}: an array of value type {number} is not read")
        return Array(self.file.path, key, kind, count, self.view[start : self.at], starts)

    def step_over_strings(self, count: int, key: str) -> np.ndarray:
        """Where each of them starts."""
        self.need(count, 8, key)  # each has at least its length
        try:
            starts = _strings.starts_of(self.view[self.at :], count)
        except ValueError as error:
            raise TruncatedFile(
                f"{self.file.path}: {key}: {error} of the file ({self.file.n_bytes} bytes); it is "
                "cut short or damaged: fetch it again"
            ) from error
        self.at += int(starts[-1]) - 8
        return starts

    def name(self, what: str) -> str:
        start = self.at
        name = self.string(what)
        if self.at - start - 8 > _MAX_NAME_BYTES:
            raise self.malformed(
                f"{what} has {self.at - start - 8} bytes, expected at most {_MAX_NAME_BYTES}: "
                f"{name[:60]!r}…"
            )
        return name

    def string(self, what: str) -> str:
        n_bytes = self.scalar("<Q", what)
        start, self.at = self.at, self.need(n_bytes, 1, what)
        try:
            return str(self.view[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise self.malformed(f"{what} is no UTF-8 ({error})") from error

    def scalar(self, format: str, what: str) -> Any:
        start, self.at = self.at, self.need(1, struct.calcsize(format), what)
        return struct.unpack_from(format, self.view, start)[0]

    def need(self, count: int, unit_bytes: int, what: str) -> int:
        """The end of what comes next; see MappedFile.end_of."""
        return self.file.end_of(self.at, count, unit_bytes, what)

    def malformed(self, why: str) -> MalformedFile:
        return MalformedFile(f"{self.file.path}: {why}")
