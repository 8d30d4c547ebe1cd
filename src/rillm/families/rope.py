"""Rotary frequencies in decimal arithmetic: correctly rounded, the same bits on every machine."""

from decimal import Decimal, localcontext

import numpy as np

from rillm.checkpoint.rope_config import Rope

PI = Decimal("3.14159265358979323846264338327950288419716939937510")


def frequencies(
    rope: Rope, n: int, length: int = 1, factors: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """How n dimensions turn in a text of `length` positions.

    Sources: Su et al., arXiv 2104.09864 (default); Chen et al., arXiv 2306.15595 (linear);
    transformers' modeling_rope_utils (dynamic); Peng et al., arXiv 2309.00071 (yarn); Llama 3.1's
    model code (llama3); Ding et al., arXiv 2402.13753 (longrope).

    Parameters
    ----------
    length : int
        Only dynamic and longrope depend on it.
    factors : float32 [n / 2], optional
        Divisors of the frequencies, as GGUF files store a scaled RoPE.

    Returns
    -------
    float32 [n / 2], float
        Radians per position of each pair, and the factor of cosines and sines.
    """
    with localcontext(prec=40):
        theta, factor = Decimal(rope.theta), Decimal(rope.factor)
        is_long = length > rope.original_context
        if rope.kind == "dynamic" and is_long:
            grown = factor * length / rope.original_context - (factor - 1)
            theta *= grown ** (Decimal(n) / (n - 2))
        elif rope.kind == "ntk_alpha":
            theta *= factor ** (Decimal(n) / (n - 2))
        exact = [1 / theta ** (Decimal(2 * i) / n) for i in range(n // 2)]
        amplitude = Decimal(1)
        if rope.kind == "linear":
            exact = [f / factor for f in exact]
        elif rope.kind == "llama3":
            exact = [_llama3(f, rope) for f in exact]
        elif rope.kind == "yarn":
            exact, amplitude = _yarn(exact, theta, rope, n)
        elif rope.kind == "longrope":
            divisors = rope.long_factor if is_long else rope.short_factor
            exact = [f / Decimal(d) for f, d in zip(exact, divisors, strict=True)]
            amplitude = _longrope_amplitude(rope)
        if factors is not None:
            exact = [f / Decimal(float(d)) for f, d in zip(exact, factors, strict=True)]
        return np.array([float(f) for f in exact], np.float32), float(amplitude)


def _llama3(frequency: Decimal, rope: Rope) -> Decimal:
    """Long waves are slowed by `factor`, short ones kept, those between interpolated."""
    low, high = Decimal(rope.low_freq_factor), Decimal(rope.high_freq_factor)
    turns = Decimal(rope.original_context) * frequency / (2 * PI)
    keep = min(max((turns - low) / (high - low), Decimal(0)), Decimal(1))
    return keep * frequency + (1 - keep) * frequency / Decimal(rope.factor)


def _yarn(exact: list[Decimal], theta: Decimal, rope: Rope, n: int):
    """Pairs below `low` keep their frequency, above `high` it is divided, between it is mixed."""

    def pair_that_turns(times: float) -> Decimal:
        return (
            n * (Decimal(rope.original_context) / (Decimal(times) * 2 * PI)).ln() / (2 * theta.ln())
        )

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = low.to_integral_value("ROUND_FLOOR"), high.to_integral_value("ROUND_CEILING")
    low, high = max(low, Decimal(0)), min(high, Decimal(n - 1))
    if low == high:
        high += Decimal("0.001")
    mixed = []
    for i, frequency in enumerate(exact):
        slowed = min(max((i - low) / (high - low), Decimal(0)), Decimal(1))
        mixed.append(slowed * frequency / Decimal(rope.factor) + (1 - slowed) * frequency)
    return mixed, _yarn_amplitude(rope)


def _yarn_amplitude(rope: Rope) -> Decimal:
    """The explicit factor, else the ratio of the mscales, else 0.1 · ln(factor) + 1."""

    def of(mscale: float) -> Decimal:
        if rope.factor <= 1:
            return Decimal(1)
        return Decimal("0.1") * Decimal(mscale) * Decimal(rope.factor).ln() + 1

    if rope.attention_factor is not None:
        return Decimal(rope.attention_factor)
    if rope.mscale and rope.mscale_all_dim:
        return of(rope.mscale) / of(rope.mscale_all_dim)
    return of(1)


def _longrope_amplitude(rope: Rope) -> Decimal:
    if rope.attention_factor is not None:
        return Decimal(rope.attention_factor)
    if rope.factor <= 1:
        return Decimal(1)
    return (1 + Decimal(rope.factor).ln() / Decimal(rope.original_context).ln()).sqrt()
