"""A file mapped read-only, and the tensors in it: extents are checked before bytes are touched."""

import mmap
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from rillm.errors import MalformedFile, TruncatedFile

# kind: (values a block, bytes a block); the names are GGUF's
KINDS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
}


@dataclass(frozen=True)
class Tensor:
    """A named run of bytes in a file; nothing is interpreted."""

    name: str  # as in the file
    kind: str  # a key of KINDS
    shape: tuple[int, ...]  # outermost first: [rows, columns] for a matrix
    file: Path
    data: np.ndarray = field(repr=False)  # uint8 [n_bytes], read-only, a view of the mapped file


class MappedFile:
    """The bytes of a file; the map lives as long as somebody holds a view of it.

    Raises
    ------
    TruncatedFile
        The file is empty.
    MalformedFile
        It is the placeholder that git leaves where Git LFS was not run.
    """

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            try:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:  # an empty file cannot be mapped
                raise TruncatedFile(f"{path}: the file is empty; fetch it again") from error
        self.n_bytes = len(self.map)
        if self.map[:23] == b"version https://git-lfs":
            raise MalformedFile(f"{path}: a Git LFS pointer, not the file: run `git lfs pull`")

    def end_of(self, start: int, count: int, unit_bytes: int, what: str) -> int:
        """Where `count` units from `start` on end; raises TruncatedFile if that is past the file.

        Every size read from a file passes here before anything is allocated or sliced. All three
        are non-negative; Python's integers do not wrap, so the product is exact.
        """
        end = start + count * unit_bytes
        if end > self.n_bytes:
            raise TruncatedFile(
                f"{self.path}: {what} needs bytes {start} to {end}, but the file has "
                f"{self.n_bytes}; it is cut short or damaged: fetch it again"
            )
        return end

    def tensor(self, name: str, kind: str, shape: tuple[int, ...], start: int) -> Tensor:
        """The tensor whose first byte is at `start`."""
        block_values, block_bytes = KINDS[kind]
        if shape and shape[-1] % block_values:
            raise MalformedFile(
                f"{self.path}: tensor {name}: rows of {shape[-1]} values, "
                f"but {kind} comes in blocks of {block_values}"
            )
        n_blocks = prod(shape) // block_values
        end = self.end_of(start, n_blocks, block_bytes, f"tensor {name} {list(shape)} {kind}")
        data = np.frombuffer(self.map, np.uint8, count=end - start, offset=start)
        return Tensor(name, kind, shape, self.path, data)
