"""Every kernel of every instruction set: exact where arithmetic is, equal to portable always."""

import math
from fractions import Fraction

import numpy as np
import pytest

import reference
from rillm.engine import _kernels
from rillm.engine._engine import Weights, available_isas, panel_bytes, philox
from rillm.weights.packing import whole_rows
from weights import random_tensor

ISAS = available_isas()
OTHER_ISAS = [isa for isa in ISAS if isa != "portable"]
INTEGER_FORMATS = ["q8", "q4", "q4m"]  # that floats are encoded in; the others: test_kquants.py
FORMATS = ["f32", "f16", "bf16", *INTEGER_FORMATS]
COLUMNS = [1, 31, 32, 33, 40, 64, 96, 576]


def to_f32(x: Fraction) -> np.float32:
    """The float32 nearest to x, ties to even: exact integer arithmetic (normal range)."""
    if x == 0:
        return np.float32(0)
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    shift = 24 - exponent
    scaled = abs(x) * (Fraction(2) ** shift)
    while scaled >= 2**24:
        scaled, shift = scaled / 2, shift - 1
    while scaled < 2**23:
        scaled, shift = scaled * 2, shift + 1
    rounded = round(scaled)  # Python rounds a Fraction half to even
    value = Fraction(rounded) / (Fraction(2) ** shift)
    return np.float32(float(value if x > 0 else -value))  # 24 bits: float() is exact


def fma(a, b, c) -> np.float32:
    return to_f32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def packed(format, values):
    """A one-matrix arena: (panels as uint8, stride, n_panels, what the panels stand for)."""
    n_rows, n_columns = values.shape
    rows = whole_rows(n_rows)
    stride, n_panels = panel_bytes(format, n_columns), len(rows) // 16
    weights = Weights(stride * n_panels)
    source = np.ascontiguousarray(values, np.float32)
    data = source.view(np.uint8).reshape(-1)
    assert weights.pack(format, "F32", data, rows, n_columns, 0, stride)
    return weights, stride, n_panels


def codes_of(format, weights, stride, n_panels, n_columns):
    """Integer codes [n_rows, columns padded to 32], scales and minima [n_rows, groups], as rillm.h
    says where they stand: a line of scales, then the values of 64 columns, or of 32 with minima."""
    bits, columns = 8 if format == "q8" else 4, 32 if format == "q4m" else 64
    raw = np.stack([weights.bytes(i * stride, stride) for i in range(n_panels)])
    codes, scales, minima = [], [], []
    for column in range(0, n_columns, 32):
        start = column // columns * (64 + columns * 2 * bits)
        at = start + column % columns
        scales.append(raw[:, at : at + 32].copy().view(np.float16))
        minima.append(raw[:, at + 32 : at + 64].copy().view(np.float16))
        at = start + 64 + column % columns * 2 * bits
        lines = raw[:, at : at + 64 * bits].reshape(n_panels, -1, 16, 4)
        if bits == 4:
            lines = np.concatenate([lines & 15, lines >> 4], axis=-1)
        codes.append(lines.transpose(0, 2, 1, 3).reshape(n_panels * 16, 32).view(np.int8))
    scales, minima = ([part.reshape(-1) for part in each] for each in (scales, minima))
    return np.hstack(codes), np.stack(scales, -1), np.stack(minima, -1)


def panels_of(weights, n_bytes):
    panels = _kernels.aligned(n_bytes)
    panels[:] = weights.bytes(0, n_bytes)
    return panels


def multiply(isa, format, weights, stride, n_panels, n_columns, x):
    q, scales, sums = zip(*(_kernels.quantize(isa, row) for row in x), strict=True)
    panels = panels_of(weights, stride * n_panels)
    return _kernels.matmul(
        isa, format, panels, stride, n_panels, n_columns, np.stack(q), np.stack(scales),
        np.stack(sums), x,
    )  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", INTEGER_FORMATS)
@pytest.mark.parametrize("n_columns", [1, 31, 33, 96])
def test_integer_matmul_is_exact_integer_dots_and_one_fma_a_group(isa, format, n_columns):
    values = random_tensor(f"exact {format}", (19, n_columns), 1.0)
    x = random_tensor("activation", (2, n_columns), 3.0)
    weights, stride, n_panels = packed(format, values)
    got = multiply(isa, format, weights, stride, n_panels, n_columns, x)
    codes, scales, minima = codes_of(format, weights, stride, n_panels, n_columns)
    zero = 8 if format == "q4" else 0
    for r, row in enumerate(x):
        q, x_scales = reference.quantize_activation(np.pad(row, (0, -n_columns % 32)))
        for i in range(19):
            total = np.float32(0)
            for g in range(len(x_scales)):
                group = slice(32 * g, 32 * g + 32)
                dot = int((codes[i, group].astype(np.int64) - zero) @ q[group].astype(np.int64))
                scale = np.float32(scales[i, g]) * np.float32(x_scales[g])
                total = fma(np.float32(dot), scale, total)
                if format == "q4m":
                    weight = np.float32(int(q[group].astype(np.int64).sum())) * x_scales[g]
                    total = fma(minima[i, g], weight, total)
            assert got[r, i] == total
    assert not got[:, 19:].any()


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("n_columns", COLUMNS)
def test_matmul_has_the_bits_of_portable_for_any_number_of_rows(isa, format, n_columns):
    values = random_tensor(f"weights {format}", (70, n_columns), 1.0)
    x = random_tensor("rows", (8, n_columns), 2.0)
    weights, stride, n_panels = packed(format, values)
    expected = multiply("portable", format, weights, stride, n_panels, n_columns, x)
    for n_rows in range(1, 9):
        got = multiply(isa, format, weights, stride, n_panels, n_columns, x[:n_rows])
        assert np.array_equal(got, expected[:n_rows]), n_rows


@pytest.mark.parametrize("format", FORMATS)
def test_matmul_is_near_float64(format):
    n_columns = 576
    values = random_tensor("near", (48, n_columns), 1.0)
    x = random_tensor("x", (3, n_columns), 1.0)
    weights, stride, n_panels = packed(format, values)
    stored = weights.unpack(format, 0, stride, n_panels, n_columns).astype(np.float64)
    rounded = x.astype(np.float64)
    if format in INTEGER_FORMATS:
        for r, row in enumerate(x):
            q, scales = reference.quantize_activation(row)
            rounded[r] = q * np.repeat(scales, 32).astype(np.float64)
    got = multiply(ISAS[-1], format, weights, stride, n_panels, n_columns, x)
    assert np.abs(got - rounded @ stored.T).max() < 2e-5


@pytest.mark.parametrize("isa", ISAS)
def test_saturating_instructions_are_exact_over_the_whole_range(isa):
    """ikawrakow/ik_llama.cpp#427 and ggml-org/ggml#1393: pair sums above 32767, −128 times −1."""
    extremes = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    for weight in extremes:
        for activation in (-127, -1, 1, 127):
            blocks = np.zeros((16, 34), np.uint8)
            blocks[:, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
            blocks[:, 2:] = np.uint8(int(weight) & 255)
            weights = Weights(panel_bytes("q8", 32))
            assert weights.pack("q8", "Q8_0", blocks.reshape(-1), whole_rows(16), 32, 0,
                                panel_bytes("q8", 32))  # fmt: skip
            x = np.full((1, 32), activation, np.float32)
            scale = np.float32(abs(activation)) / np.float32(127)
            q = np.full((1, 32), int(np.sign(activation)) * 127, np.int8)
            got = _kernels.matmul(isa, "q8", panels_of(weights, panel_bytes("q8", 32)),
                                  panel_bytes("q8", 32), 1, 32, q, np.array([[scale]]),
                                  np.array([[-int(q.sum())]], np.int32), x)  # fmt: skip
            dot = 32 * int(weight) * int(q[0, 0])
            assert (got == np.float32(dot) * scale).all(), (weight, activation)


@pytest.mark.parametrize("isa", ISAS)
def test_nibbles_are_exact_over_the_whole_range(isa):
    for code in range(16):
        for activation in (-127, 127):
            block = np.zeros((16, 20), np.uint8)
            block[:, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
            block[:, 4:] = code | code << 4
            size = panel_bytes("q4m", 32)
            weights = Weights(size)
            assert weights.pack("q4m", "Q4_1", block.reshape(-1), whole_rows(16), 32, 0, size)
            q = np.full((1, 32), activation, np.int8)
            got = _kernels.matmul(isa, "q4m", panels_of(weights, size), size, 1, 32, q,
                                  np.ones((1, 1), np.float32),
                                  np.array([[-32 * activation]], np.int32),
                                  np.full((1, 32), activation, np.float32))  # fmt: skip
            assert (got == 32 * code * activation).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("largest", [0, 1e-45, 1e-38, 1e-30, 1e-8, 1, 1e4, 3e38])
def test_activations_quantize_as_the_formula_says(isa, largest):
    """ggml-org/llama.cpp#7313: near-zero groups give zeros, never NaN."""
    x = random_tensor("group", (96,), 1.0) * np.float32(largest)
    x[3] = largest
    q, scales, minus_sums = _kernels.quantize(isa, x)
    expected_q, expected_scales = reference.quantize_activation(x)
    assert np.array_equal(q, expected_q)
    assert np.array_equal(scales, expected_scales)
    assert np.array_equal(minus_sums, -q.astype(np.int64).reshape(-1, 32).sum(1))


def erf(x):
    return np.array([math.erf(v) for v in x])


XIELU = (0.7, 1.1, 0.5, -1e-6)
ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "xielu": lambda x: np.where(
        x > 0, 0.7 * x * x + 0.5 * x, 1.1 * (np.expm1(np.minimum(x, -1e-6)) - x) + 0.5 * x
    ),
}


def layer_norm(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def assert_near_and_equal(outputs, expected, tolerance=1e-6):
    assert np.abs(outputs[0] - expected).max() <= tolerance * max(1, np.abs(expected).max())
    assert all(np.array_equal(outputs[0], other) for other in outputs[1:])


@pytest.mark.parametrize("n", [1, 15, 16, 17, 24, 64, 576])
def test_norms_and_sums_are_near_float64_and_equal_everywhere(n):
    x, y, b = (random_tensor(name, (n,), 4.0) for name in ("x", "y", "b"))
    exact = x.astype(np.float64)
    rms = [_kernels.norm(isa, "rms", x, y, None, 1e-5) for isa in ISAS]
    assert_near_and_equal(rms, exact / np.sqrt((exact**2).mean() + 1e-5) * y)
    layer = [_kernels.norm(isa, "layer", x, y, b, 1e-5) for isa in ISAS]
    assert_near_and_equal(layer, layer_norm(exact) * y + b, 3e-6)
    bare = [_kernels.norm(isa, "layer", x, y, None, 1e-5) for isa in ISAS]
    assert_near_and_equal(bare, layer_norm(exact) * y, 3e-6)
    assert_near_and_equal([_kernels.add(isa, x, y) for isa in ISAS], exact + y)


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_activations_are_near_float64_and_equal_everywhere(function):
    x = np.concatenate([random_tensor("x", (300,), 12.0), [0, -1e-7, 1e-7, -80, 80, 60000]])
    x, up = x.astype(np.float32), random_tensor("up", (306,), 2.0)
    expected = ACTIVATIONS[function](x.astype(np.float64))
    with np.errstate(over="ignore"):
        alone = [_kernels.activate(isa, function, x, None, XIELU) for isa in ISAS]
        gated = [_kernels.activate(isa, function, x, up, XIELU) for isa in ISAS]
    error = np.abs(alone[0] - expected) / np.maximum(1, np.abs(expected))
    assert error.max() < 2e-6
    assert all(np.array_equal(alone[0], other) for other in alone)
    assert all(np.array_equal(gated[0], other) for other in gated)
    assert np.array_equal(gated[0], alone[0] * up)


def test_a_soft_cap_is_near_float64_and_equal_everywhere():
    x = random_tensor("capped", (100,), 200.0)
    expected = 30.0 * np.tanh(x.astype(np.float64) / 30.0)
    assert_near_and_equal([_kernels.softcap(isa, x, 30.0) for isa in ISAS], expected)


def test_silu_of_extremes():
    x = np.array([-1e30, -200, -100, -88, 0, 88, 200, 1e30], np.float32)
    for isa in ISAS:
        got = _kernels.activate(isa, "silu", x)
        assert np.isfinite(got).all()
        assert np.array_equal(got[4:], x[4:])
        assert np.abs(got[1:4]).max() < 1e-30


@pytest.mark.parametrize("isa", ISAS)
def test_read_sum_reads_everything(isa):
    assert _kernels.read_sum(isa, np.arange(640, dtype=np.float32)) == 640 * 639 / 2


@pytest.mark.parametrize("half", [5, 8, 12, 16, 32, 64])
def test_rotation_turns_pairs(half):
    head = random_tensor("head", (2 * half,), 1.0)
    angle = random_tensor("angle", (half,), 3.0).astype(np.float64)
    c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = head[:half].astype(np.float64), head[half:].astype(np.float64)
    expected = np.concatenate([a * c - b * s, b * c + a * s])
    outputs = [_kernels.rope_half(isa, head, c, s) for isa in ISAS]
    assert np.abs(outputs[0] - expected).max() < 1e-6
    assert all(np.array_equal(outputs[0], other) for other in outputs)


def as_cached(kv, x):
    """float64 of what a cache of this format holds: of int8, one scale a position."""
    if kv == "q8":
        scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
        inverse = np.float32(127) / np.abs(x).max(1, keepdims=True)
        return np.rint(x * inverse).astype(np.float64) * scale
    return x.astype(np.float16 if kv == "f16" else np.float32).astype(np.float64)


@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
@pytest.mark.parametrize("dim", [16, 48, 64, 80, 128])
@pytest.mark.parametrize("n_heads", [1, 3, 4, 9])
def test_attention_is_near_float64_and_equal_everywhere(kv, dim, n_heads):
    queries = random_tensor("q", (n_heads, dim), 1.0)
    keys, values = random_tensor("k", (300, dim), 1.0), random_tensor("v", (300, dim), 1.0)
    k, v = as_cached(kv, keys), as_cached(kv, values)
    scale = float(np.float32(dim**-0.5))
    for first, last in [(0, 1), (0, 17), (5, 128), (0, 129), (100, 300), (127, 130)]:
        outputs = [
            _kernels.attend(isa, kv, queries, keys, values, first, last, scale) for isa in ISAS
        ]
        scores = queries.astype(np.float64) @ k[first:last].T * scale
        weights = np.exp(scores - scores.max(1, keepdims=True))
        expected = weights / weights.sum(1, keepdims=True) @ v[first:last]
        assert np.abs(outputs[0] - expected).max() < 2e-6
        assert all(np.array_equal(outputs[0], other) for other in outputs)


@pytest.mark.parametrize("isa", ISAS)
def test_noise_is_philox_token_by_token(isa):
    """Counter (token / 4, index, completion, 0), key the seed."""
    for seed, index, completion, block in ((0, 0, 0, 0), (2**64 - 5, 2**32 - 1, 7, 2**28)):
        words, least = _kernels.noise(isa, seed, index, completion, block)
        key = (seed & 0xFFFFFFFF, seed >> 32)
        expected = [philox((block + i, index, completion, 0), key) for i in range(64)]
        assert words.tolist() == [word for four in expected for word in four]
        assert np.array_equal(least, words.reshape(8, 8, 4).min((0, 2)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [1, 7, 16, 33, 1000])
def test_extremes_order_floats_as_numbers(isa, n):
    x = random_tensor("extremes", (n,), 1e30)
    least, greatest = _kernels.extremes(isa, x)
    bits = x.view(np.int32).astype(np.int64)
    orders = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    assert (least, greatest) == (orders[x.argmin()], orders[x.argmax()])
    x[n // 2] = math.nan
    assert _kernels.extremes(isa, x)[1] > np.float32(math.inf).view(np.int32)
