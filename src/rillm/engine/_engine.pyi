"""Types of the compiled engine; its docstrings say the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float32 = NDArray[np.float32]

LANES_PER_PANEL: int
ROWS_PER_STEP: int
THREADS_AT_MOST: int
HEAD_DIM_AT_MOST: int
POSITIONS_PER_PAGE: int
MOST_POSITIONS: int
ISA_NAMES: tuple[str, ...]
FORMAT_NAMES: tuple[str, ...]
SOURCE_KINDS: tuple[str, ...]
KV_FORMATS: dict[str, int]
ACTIVATION_FORMATS: dict[str, int]
CONTEXT_POLICIES: tuple[str, ...]
NORM_KINDS: tuple[str, ...]
SAMPLERS: tuple[str, ...]
ACTIVATIONS: tuple[str, ...]
STAGES: tuple[str, ...]

def available_isas() -> list[str]: ...
def panel_bytes(format: str, n_columns: int) -> int: ...
def kv_bytes(format: str, head_dim: int) -> int: ...
def row_bytes(kind: str, n_columns: int) -> int: ...
def widen(kind: str, source: NDArray[np.uint8], n_columns: int) -> Float32: ...
def rank(logits: Float32, n_best: int) -> tuple[NDArray[np.int32], float]: ...
def repeats(ids: NDArray[np.int32]) -> NDArray[np.int32]: ...
def gumbel(seed: int, index: int, token: int, completion: int = 0, purpose: int = 0) -> float: ...
def gumbel_of_word(word: int) -> float: ...
def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]: ...
def rotation(angle: float) -> tuple[float, float]: ...

class Weights:
    n_bytes: int
    huge_pages: bool
    def __init__(self, n_bytes: int) -> None: ...
    def vector(self, offset: int, values: Float32) -> None: ...
    def pack(
        self,
        format: str,
        kind: str,
        source: NDArray[np.uint8],
        rows: NDArray[np.int32],
        n_columns: int,
        offset: int,
        stride: int,
    ) -> bool: ...
    def unpack(
        self, format: str, offset: int, stride: int, n_panels: int, n_columns: int
    ) -> Float32: ...
    def view(self) -> Float32: ...
    def checksum(self, offset: int, n_bytes: int) -> int: ...
    def bytes(self, offset: int, n_bytes: int) -> NDArray[np.uint8]: ...

class RopeTable:
    def __init__(self, described: Sequence[tuple[Float32, float]]) -> None: ...

class Engine:
    isa: str
    n_threads: int
    stage_seconds: dict[str, float]
    def __init__(self, plan: Any, weights: Weights, isa: str, n_threads: int) -> None: ...
    def clock(self, is_on: bool) -> None: ...
    def forward(
        self,
        tokens: ArrayLike,
        caches: Cache | Sequence[Cache],
        wants: Sequence[bool] | None = None,
        n_drafts: int = 0,
    ) -> Float32: ...

class Page:
    n_bytes: int
    @staticmethod
    def from_bytes(data: NDArray[np.uint8]) -> Page: ...

class Turn:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...

class Cache:
    engine: Engine
    context: int
    policy: str
    n_keep: int
    limit: int
    format: str
    length: int
    n_bytes: int
    n_shared_bytes: int
    earliest: int
    page_bytes: list[int]
    def __init__(
        self,
        engine: Engine,
        format: str,
        context: int,
        policy: str = "stop",
        n_keep: int = 0,
        limit: int = 0,
    ) -> None: ...
    def close(self) -> None: ...
    def set_ropes(self, ropes: RopeTable) -> None: ...
    def rewind(self, length: int) -> None: ...
    def commit(self, n: int) -> None: ...
    def page(self, ring: int, number: int) -> Page | None: ...
    def copy_page(self, ring: int, number: int) -> NDArray[np.uint8]: ...
    def needs(self, length: int) -> list[tuple[int, int]]: ...
    def resume(self, length: int, pages: Mapping[tuple[int, int], Page]) -> None: ...
    def fill_unseen(self, byte: int) -> None: ...

class Filters:
    def __init__(
        self, steps: Sequence[tuple[Any, ...]], min_keep: int = 1, isa: str | None = None
    ) -> None: ...
    def sample(
        self,
        logits: Float32,
        seed: int,
        index: int,
        completion: int = 0,
        surprise_limit: float = 0.0,
    ) -> tuple[int, float, float]: ...
    def sample_many(
        self, logits: Float32, tokens: NDArray[np.int32], seed: int, first_index: int = 0
    ) -> None: ...
    def kept(
        self,
        logits: Float32,
        seed: int = 0,
        index: int = 0,
        completion: int = 0,
        surprise_limit: float = 0.0,
    ) -> tuple[NDArray[np.int32], Float32]: ...
