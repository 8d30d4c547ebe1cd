"""Rotary frequencies in decimal arithmetic: correctly rounded, the same bits on every machine."""

from decimal import Decimal, localcontext

import numpy as np

from rillm.checkpoint import Rope

PI = Decimal("3.14159265358979323846264338327950288419716939937510")


def inverse_frequencies(rope: Rope, head_dim: int, factors=None) -> np.ndarray:
    """The angle per position, in radians, of each rotated pair: float32 [head_dim / 2].

    Sources: Su et al., arXiv 2104.09864 (default), Chen et al., arXiv 2306.15595 (linear),
    Llama 3.1's model code (llama3).

    Parameters
    ----------
    factors : float32 [head_dim / 2], optional
        Divisors of the frequencies, as GGUF files store a scaled RoPE.
    """
    with localcontext(prec=40):
        theta, pairs = Decimal(rope.theta), head_dim // 2
        exact = [1 / theta ** (Decimal(2 * i) / head_dim) for i in range(pairs)]
        if rope.kind == "linear":
            exact = [f / Decimal(rope.factor) for f in exact]
        elif rope.kind == "llama3":
            exact = [_llama3(f, rope) for f in exact]
        if factors is not None:
            exact = [f / Decimal(float(d)) for f, d in zip(exact, factors, strict=True)]
        return np.array([float(f) for f in exact], np.float32)


def _llama3(frequency: Decimal, rope: Rope) -> Decimal:
    """Long waves are slowed by `factor`, short ones kept, those between interpolated."""
    low, high = Decimal(rope.low_freq_factor), Decimal(rope.high_freq_factor)
    turns = Decimal(rope.original_context) * frequency / (2 * PI)
    keep = min(max((turns - low) / (high - low), Decimal(0)), Decimal(1))
    return keep * frequency + (1 - keep) * frequency / Decimal(rope.factor)
