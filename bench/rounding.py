"""What formats lose: the rms of rounding over that of the weights, the median of all matrices.

python bench/rounding.py [FILE.safetensors]     normal numbers, or the matrices of a file
"""

import sys

import numpy as np
from safetensors import safe_open

from rillm.engine._engine import Weights, panel_bytes
from rillm.weights.packing import whole_rows

FORMATS = ("q8", "q4", "q4m", "q4_64")


def loss(format: str, matrix) -> float:
    n_rows, n_columns = matrix.shape
    rows, stride = whole_rows(n_rows), panel_bytes(format, n_columns)
    weights, source = Weights(stride * (len(rows) // 16)), np.ascontiguousarray(matrix, np.float32)
    bits = source.view(np.uint8).reshape(-1)
    assert weights.pack(format, "F32", bits, rows, n_columns, 0, stride)
    held = weights.unpack(format, 0, stride, len(rows) // 16, n_columns)[:n_rows]
    return float(np.sqrt(((held - source) ** 2).mean() / (source**2).mean()))


def matrices(path: str | None):
    if path is None:
        yield np.random.default_rng(0).standard_normal((512, 1024))
        return
    with safe_open(path, "np") as file:
        yield from (m for m in map(file.get_tensor, file.keys()) if m.ndim == 2)


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else None
    for format in FORMATS:
        print(f"{format:<6} {np.median([loss(format, matrix) for matrix in matrices(path)]):.5f}")
