"""Tensors of a file become panels in the arena: planned first, then packed in parallel."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from rillm.checkpoint import Tensor
from rillm.engine._engine import LANES_PER_PANEL as LANES
from rillm.engine._engine import Weights, panel_bytes, row_bytes, widen
from rillm.errors import MalformedFile, UnsupportedTensorKind
from rillm.weights.formats import NATIVE, is_quantized

BYTES_PER_JOB = 1 << 20  # of the arena: enough that a thread seldom asks, too few to wait for


@dataclass(frozen=True)
class Segment:
    """A run of panels of one format: `n_panels` of them, `stride` bytes apart, from `offset`."""

    format: str
    offset: int
    stride: int
    n_panels: int


@dataclass(frozen=True)
class Matrix:
    """Rows of several tensors as one; bias: the offset of float32 [n_panels · 16], or None."""

    n_columns: int
    segments: tuple[Segment, ...]
    bias: int | None = None

    def panel_bytes(self, segment: Segment) -> int:
        return panel_bytes(segment.format, self.n_columns)

    @property
    def n_bytes(self) -> int:
        return sum(s.n_panels * self.panel_bytes(s) for s in self.segments)


@dataclass(frozen=True)
class Part:
    """A tensor in its format; rows: the tensor's row of each panel row, int32 [n_panels · 16]."""

    tensor: Tensor
    format: str
    rows: np.ndarray
    bias: Tensor | None = None


@dataclass
class Layout:
    """Places matrices and vectors one after the other; `pack` then fills them."""

    n_bytes: int = 0
    matrices: list[tuple[Part, Segment]] = field(default_factory=list)
    vectors: list[tuple[int, np.ndarray]] = field(default_factory=list)

    def _take(self, n_bytes: int) -> int:
        offset, self.n_bytes = self.n_bytes, self.n_bytes + -(-n_bytes // 64) * 64
        return offset

    def vector(self, values: np.ndarray) -> int:
        """Plans float32 values, padded with zeros to 16; returns their offset."""
        offset = self._take(-(-len(values) // LANES) * LANES * 4)
        self.vectors.append((offset, np.ascontiguousarray(values, np.float32)))
        return offset

    def matrix(self, *parts: Part) -> Matrix:
        """Plans the rows of the parts one after the other."""
        n_columns, segments = parts[0].tensor.shape[1], []
        for part in parts:
            stride, n_panels = panel_bytes(part.format, n_columns), len(part.rows) // LANES
            segments.append(Segment(part.format, self._take(stride * n_panels), stride, n_panels))
        return self._planned(parts, segments)

    def alternating(self, *parts: Part) -> tuple[Matrix, ...]:
        """Plans matrices of equal shape whose panels alternate in memory."""
        n_columns, n_panels = parts[0].tensor.shape[1], len(parts[0].rows) // LANES
        sizes = [panel_bytes(part.format, n_columns) for part in parts]
        offset, matrices = self._take(sum(sizes) * n_panels), []
        for part, size in zip(parts, sizes, strict=True):
            segment = Segment(part.format, offset, sum(sizes), n_panels)
            matrices.append(self._planned([part], [segment]))
            offset += size
        return tuple(matrices)

    def _planned(self, parts, segments) -> Matrix:
        self.matrices += zip(parts, segments, strict=True)
        bias = None
        if any(part.bias for part in parts):
            bias = self.vector(np.concatenate([_bias_of(part) for part in parts]))
        return Matrix(parts[0].tensor.shape[1], tuple(segments), bias)

    def reencoded(self) -> str | None:
        """In words, which quantized tensors are not held as their file holds them."""
        changes = Counter(
            f"{part.tensor.kind} as {part.format}"
            for part, _ in self.matrices
            if is_quantized(part.tensor) and part.format != NATIVE[part.tensor.kind]
        )
        words = _tensors(changes)
        return words + ", from dequantized values" if words else None

    def widened(self) -> str | None:
        """In words, which tensors are held exactly but in more bytes than in their file."""
        changes = Counter()
        for part, segment in self.matrices:
            kind, n_columns = part.tensor.kind, part.tensor.shape[1]
            ratio = panel_bytes(segment.format, n_columns) / (LANES * row_bytes(kind, n_columns))
            if is_quantized(part.tensor) and part.format == NATIVE[kind] and ratio > 1.1:
                changes[f"{kind} as {part.format} ({ratio:.2f} × the bytes)"] += 1
        return _tensors(changes)

    def digest(self) -> str:
        """Of all that decides what the arena holds, beside the tensors' bytes."""
        import hashlib

        digest = hashlib.sha256()
        for part, segment in self.matrices:
            digest.update(repr((part.tensor.name, part.tensor.kind, segment)).encode())
            digest.update(part.rows.data)
        for offset, values in self.vectors:
            digest.update(repr((offset, len(values))).encode())
            digest.update(values.data)
        return digest.hexdigest()

    def pack(self, n_threads: int) -> Weights:
        """Reads every tensor once, straight into the arena.

        Raises
        ------
        UnsupportedTensorKind
            A value is not finite, or too large for the format's scale; names the tensor.
        """
        weights = Weights(self.n_bytes)
        for offset, values in self.vectors:
            weights.vector(offset, values)
        in_threads(n_threads, (partial(self._pack_some, weights, *job) for job in self._jobs()))
        return weights

    def _jobs(self):
        """(part, segment, first panel, n_panels), of about as many bytes each."""
        for part, segment in self.matrices:
            step = max(1, BYTES_PER_JOB // panel_bytes(part.format, part.tensor.shape[1]))
            for first in range(0, segment.n_panels, step):
                yield part, segment, first, step

    @staticmethod
    def _pack_some(weights: Weights, part: Part, segment: Segment, first: int, n_panels: int):
        tensor, rows = part.tensor, part.rows[first * LANES : (first + n_panels) * LANES]
        offset = segment.offset + first * segment.stride
        source = (tensor.kind, *_in_rows(tensor.data, rows), tensor.shape[1])
        if not weights.pack(segment.format, *source, offset, segment.stride):
            or_wider = "" if segment.format == "f32" else "load with weights='f32', or "
            raise UnsupportedTensorKind(
                f"{tensor.file}: tensor {tensor.name} holds a value that is not finite, or too "
                f"large for {segment.format}: {or_wider}repair the file"
            )


def in_threads(n_threads: int, jobs: Iterable[Callable[[], None]]) -> None:
    """Calls all jobs, each thread the next one when it is free; raises the first error."""
    from concurrent.futures import ThreadPoolExecutor

    jobs = iter(list(jobs))  # of a list: threads may share it

    def work(_) -> None:
        try:
            for job in jobs:
                job()
        except BaseException:
            list(jobs)  # nothing is left for the others
            raise

    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(work, range(n_threads)):
            pass


def _in_rows(data: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and the places of rows in them: the tensor, or of a transposed view these rows."""
    if data.ndim == 1:
        return data, rows
    some = np.ascontiguousarray(data[np.maximum(rows, 0)])
    places = np.where(rows < 0, -1, np.arange(len(rows), dtype=np.int32))
    return some.reshape(-1).view(np.uint8), places


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two tensors' data are equal, without a copy of their size."""
    pieces = range(0, len(a), BYTES_PER_JOB)
    return len(a) == len(b) and all(
        np.array_equal(a[at : at + BYTES_PER_JOB], b[at : at + BYTES_PER_JOB]) for at in pieces
    )


def _tensors(changes: Counter) -> str | None:
    return ", ".join(f"{count} tensors {change}" for change, count in changes.items()) or None


def whole_rows(n_rows: int) -> np.ndarray:
    """Row map of a plain matrix, padded to whole panels."""
    rows = np.full(-(-n_rows // LANES) * LANES, -1, np.int32)
    rows[:n_rows] = np.arange(n_rows)
    return rows


def head_rows(
    n_heads: int, head_dim: int, pairs: int = 0, first: int = 0, stride: int | None = None
) -> np.ndarray:
    """Row map of attention heads, each padded to whole panels.

    pairs : in the first `pairs` dimensions of a head, those that turn together stand side by side
        in the file; they are put half of `pairs` apart, as the engine turns them.
    first, stride : the file's row of the first head, and rows from a head to the next.
    """
    rows = np.full((n_heads, -(-head_dim // LANES) * LANES), -1, np.int32)
    within = np.arange(head_dim)
    within[:pairs] = within[:pairs].reshape(-1, 2).T.reshape(-1)
    starts = first + np.arange(n_heads) * (head_dim if stride is None else stride)
    rows[:, :head_dim] = starts[:, None] + within
    return rows.reshape(-1)


def pad_heads(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Numbers of heads [n_heads, head_dim] in the order of a row map, zeros where it has none."""
    return np.where(rows < 0, 0, values.reshape(-1)[rows]).astype(np.float32)


def values_of(tensor: Tensor) -> np.ndarray:
    """A vector of a file as float32; MalformedFile if a value is not finite."""
    values = widen(tensor.kind, tensor.data, tensor.shape[-1]).reshape(-1)
    if not np.isfinite(values).all():
        raise MalformedFile(f"{tensor.file}: tensor {tensor.name} holds a value that is not finite")
    return values


def _bias_of(part: Part) -> np.ndarray:
    out = np.zeros(len(part.rows), np.float32)
    if part.bias:
        out[part.rows >= 0] = values_of(part.bias)[part.rows[part.rows >= 0]]
    return out
