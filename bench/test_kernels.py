"""Each matrix kernel by format, instruction set, rows and shape: GB/s of panels read.

pip install ".[test]" && pytest bench --benchmark-group-by=param:shape
"""

import numpy as np
import pytest

from rillm.engine import _kernels
from rillm.engine._engine import FORMAT_NAMES, available_isas, panel_bytes

SHAPES = {"135m qkv": (960, 576), "135m down": (576, 1536), "1b gate": (8192, 2048)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", FORMAT_NAMES)
@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("n_rows", [1, 4, 8])
def test_matmul(benchmark, shape, format, isa, n_rows):
    n_outputs, n_columns = SHAPES[shape]
    n_panels, stride = n_outputs // 16, panel_bytes(format, n_columns)
    rng = np.random.default_rng(0)
    panels = _kernels.aligned(n_panels * stride)
    panels[:] = rng.integers(0, 60, len(panels), np.uint8)  # as f16 or f32: small and finite
    x = rng.standard_normal((n_rows, n_columns)).astype(np.float32)
    q, scales, sums = map(np.stack, zip(*(_kernels.quantize(isa, row) for row in x), strict=True))
    repeats = max(1, (4 << 20) // len(panels))

    def multiply():
        _kernels.matmul(
            isa, format, panels, stride, n_panels, n_columns, q, scales, sums, x, repeats
        )

    benchmark.pedantic(multiply, rounds=5, warmup_rounds=1)
    seconds = benchmark.stats.stats.median / repeats
    benchmark.extra_info["gigabytes_per_second"] = len(panels) / seconds / 1e9
    benchmark.extra_info["gigamacs_per_second"] = n_outputs * n_columns * n_rows / seconds / 1e9
