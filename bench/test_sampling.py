"""A draw over a whole vocabulary at temperature 1, without filters, by instruction set.

pytest bench/test_sampling.py
"""

from itertools import count

import numpy as np
import pytest

from rillm.engine._engine import Filters, available_isas

N_TOKENS = 262_144


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("isa", available_isas())
def test_draw(benchmark, isa, spread):
    logits = np.random.default_rng(0).standard_normal(N_TOKENS).astype(np.float32) * spread
    filters, indices = Filters([], 1, isa), count()
    benchmark.pedantic(
        lambda: filters.sample(logits, 0, next(indices)), rounds=100, warmup_rounds=3
    )
