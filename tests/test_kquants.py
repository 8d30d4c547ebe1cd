"""Blocks of GGUF files keep every bit: in panels, in every kernel, in a model."""

import gguf
import numpy as np
import pytest

import gguf_writer
import reference
import rillm
from gguf_blocks import (
    KINDS,
    centred,
    dequantize,
    gentle_blocks,
    parts,
    random_blocks,
    with_float,
    with_minimum,
    with_scale,
)
from rillm.cli import info as cli_info
from rillm.engine import _engine, _kernels
from rillm.engine._engine import SOURCE_KINDS, Weights, available_isas, panel_bytes, row_bytes
from rillm.errors import UnsupportedTensorKind
from rillm.weights.formats import NATIVE
from rillm.weights.packing import whole_rows
from test_kernels import fma
from weights import random_tensor

ISAS = available_isas()
# kinds without panels of their own: bytes in memory over bytes in the file
WIDENED = {"Q2_K": 1.95, "Q3_K": 1.93, "IQ4_NL": 1.89, "IQ4_XS": 1.97, "MXFP4": 1.29}
REFUSED = {
    "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19, "IQ3_S": 21, "IQ2_S": 22, "IQ1_M": 29,
    "TQ1_0": 34, "TQ2_0": 35, "NVFP4": 40, "Q1_0": 41, "Q2_0": 42,
}  # fmt: skip


def pack(kind, blocks, n_rows, n_columns, format=None):
    """(weights, stride, n_panels); None if a value was refused."""
    format = format or NATIVE[kind]
    rows, stride = whole_rows(n_rows), panel_bytes(format, n_columns)
    weights = Weights(stride * len(rows) // 16)
    fits = weights.pack(format, kind, blocks.reshape(-1), rows, n_columns, 0, stride)
    return (weights, stride, len(rows) // 16) if fits else None


@pytest.mark.parametrize("kind", KINDS)
def test_panels_hold_what_the_gguf_package_reads(kind):
    n_rows, n_columns = 37, 1280
    blocks = random_blocks(kind, "any", n_rows, n_columns)
    expected = dequantize(kind, blocks).reshape(n_rows, n_columns)
    weights, stride, n_panels = pack(kind, blocks, n_rows, n_columns)
    got = weights.unpack(NATIVE[kind], 0, stride, n_panels, n_columns)
    assert np.array_equal(got[:n_rows], expected)
    assert not got[n_rows:].any()
    assert np.array_equal(_engine.widen(kind, blocks.reshape(-1), n_columns), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_and_every_byte_of_scales_is_kept(kind):
    """Each byte value at each place of a block, with a scale of one."""
    size = KINDS[kind].n_bytes
    blocks = (np.arange(256)[:, None] + 37 * np.arange(size)[None, :]).astype(np.uint8)
    blocks = with_minimum(kind, with_scale(kind, blocks, 1.0), 1.0)
    n_columns = KINDS[kind].n_columns
    weights, stride, n_panels = pack(kind, blocks, 256, n_columns)
    got = weights.unpack(NATIVE[kind], 0, stride, n_panels, n_columns)
    assert np.array_equal(got, dequantize(kind, blocks).reshape(256, n_columns))


def test_every_scale_of_mxfp4_is_kept():
    """2^(e − 128) leaves float16 on both sides; from 253 on, 12 times it leaves float32."""
    blocks = random_blocks("MXFP4", "scales", 253, 32)
    blocks[:, 0] = np.arange(253)
    weights, stride, n_panels = pack("MXFP4", blocks, 253, 32)
    got = weights.unpack("q5b", 0, stride, n_panels, 32)[:253]
    assert np.array_equal(got, dequantize("MXFP4", blocks).reshape(253, 32))
    assert np.isfinite(got).all() and got.any(axis=1).all()
    for exponent in (253, 254, 255):
        blocks[5, 0] = exponent
        assert pack("MXFP4", blocks, 253, 32) is None


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "MXFP4"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_not_finite_is_refused(kind, value):
    for at in (KINDS[kind].scale, KINDS[kind].minimum):
        if at is not None:
            blocks = random_blocks(kind, "bad", 16, 512)
            blocks[3:4] = with_float(blocks[3:4], at, value)
            assert pack(kind, blocks, 16, 512) is None


def test_bytes_paid():
    """At most 1.06 times the file's but for the kinds that are held wider."""
    n_columns = 2048
    paid = {k: panel_bytes(NATIVE[k], n_columns) / (16 * row_bytes(k, n_columns)) for k in KINDS}
    assert {kind: round(ratio, 2) for kind, ratio in paid.items() if ratio > 1.06} == WIDENED
    for kind in KINDS:
        block = KINDS[kind].n_columns
        assert row_bytes(kind, 3 * block) == 3 * KINDS[kind].n_bytes
        assert row_bytes(kind, 3 * block + 16) == 0
    assert set(SOURCE_KINDS) == set(KINDS) | {"F32", "F16", "BF16"} == set(NATIVE)


# ---- kernels -------------------------------------------------------------------------------------


def expected_sum(codes, scales, minima, q, x_scales, group):
    """One row times one vector in the stated order."""
    total = np.float32(0)
    for g, scale in enumerate(scales):
        columns, x_scale = slice(g * group, (g + 1) * group), x_scales[g * group // 32]
        dot = int(codes[columns] @ q[columns])
        assert abs(dot) < 2**24
        total = fma(np.float32(dot), scale * x_scale, total)
        if minima is not None:
            total = fma(minima[g], np.float32(int(q[columns].sum())) * x_scale, total)
    return total


def multiply(isa, kind, packed, n_columns, x):
    weights, stride, n_panels = packed
    panels = _kernels.aligned(stride * n_panels)
    panels[:] = weights.bytes(0, stride * n_panels)
    q, scales, sums = zip(*(_kernels.quantize(isa, row) for row in x), strict=True)
    return _kernels.matmul(
        isa, NATIVE[kind], panels, stride, n_panels, n_columns, np.stack(q), np.stack(scales),
        np.stack(sums), x,
    )  # fmt: skip


def edge_rows(n_columns):
    """Three vectors that quantize to 127, −127 and both by turns, and two random ones."""
    edges = np.ones((3, n_columns), np.float32)
    edges[1], edges[2, ::2] = -1, -1
    return np.concatenate([edges, random_tensor("x", (2, n_columns), 3.0)])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_matmul_is_exact_integer_dots_in_the_stated_order(isa, kind):
    n_rows, n_columns = 19, 512 if KINDS[kind].n_columns == 256 else 96
    blocks = gentle_blocks(kind, "order", n_rows, n_columns)
    packed = pack(kind, blocks, n_rows, n_columns)
    codes, scales, minima = parts(kind, blocks, n_rows)
    x = edge_rows(n_columns)
    got = multiply(isa, kind, packed, n_columns, x)
    for r, row in enumerate(x):
        q, x_scales = reference.quantize_activation(row)
        q = q.astype(np.int64)
        for i in range(n_rows):
            row_minima = None if minima is None else minima[i]
            total = expected_sum(codes[i], scales[i], row_minima, q, x_scales, KINDS[kind].group)
            assert got[r, i] == total, (r, i)
    assert not got[:, n_rows:].any()


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "portable"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_blocks", [1, 2, 5, 9])
def test_matmul_has_the_bits_of_portable_for_any_number_of_rows(isa, kind, n_blocks):
    n_columns = n_blocks * KINDS[kind].n_columns
    packed = pack(kind, gentle_blocks(kind, "rows", 70, n_columns), 70, n_columns)
    x = np.concatenate([edge_rows(n_columns), random_tensor("more", (3, n_columns), 2.0)])
    expected = multiply("portable", kind, packed, n_columns, x)
    for n_rows in range(1, 9):
        got = multiply(isa, kind, packed, n_columns, x[:n_rows])
        assert np.array_equal(got, expected[:n_rows]), n_rows


# ---- models --------------------------------------------------------------------------------------


def shapes():
    """The matrices of a llama of two layers, 256 wide."""
    shapes = {"token_embd": (48, 256)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_q": (256, 256), f"blk.{i}.attn_k": (128, 256),
            f"blk.{i}.attn_v": (128, 256), f"blk.{i}.attn_output": (256, 256),
            f"blk.{i}.ffn_gate": (512, 256), f"blk.{i}.ffn_up": (512, 256),
            f"blk.{i}.ffn_down": (256, 512),
        }  # fmt: skip
    return shapes


def write_model(path, kinds):
    """Such a llama, whose matrices hold random blocks of the kinds in turn."""
    tensors = {}
    for n, (name, (rows, columns)) in enumerate(shapes().items()):
        kind = kinds[n % len(kinds)]
        blocks = centred(kind, random_blocks(kind, name, rows, columns), columns**-0.5)
        number = gguf.GGMLQuantizationType[kind].value
        tensors[f"{name}.weight"] = (number, (rows, columns), blocks.tobytes())
    ones = ("F32", (256,), np.ones(256, np.float32).tobytes())
    norms = [f"blk.{i}.{part}_norm.weight" for i in range(2) for part in ("attn", "ffn")]
    tensors |= dict.fromkeys([*norms, "output_norm.weight"], ones)
    metadata = gguf_writer.llama_metadata(
        llama__embedding_length=256, llama__feed_forward_length=512
    )
    return gguf_writer.write(path, metadata, tensors)


def run(path, n=40, **options):
    tokens = [(7 * i + i * i) % 48 for i in range(n)]
    with rillm.Model.from_pretrained(path, **options) as model, model.session() as session:
        return np.stack([session.step(token) for token in tokens]), model.info()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_keeps_its_files_format(tmp_path, kind):
    path = write_model(tmp_path / "model.gguf", [kind])
    exact, _ = run(path, weights="f32")
    logits, info = run(path, kv="f32")
    assert set(info["weights"]) == {NATIVE[kind]} and info["reencoded"] is None
    assert (info["widened"] is not None) == (kind in WIDENED)
    assert np.abs(exact).max() > 0.1
    assert np.sqrt(((logits - exact) ** 2).mean() / (exact**2).mean()) < 0.05  # int8 activations


def test_a_model_of_all_kinds_has_one_set_of_bits(monkeypatch, tmp_path):
    path = write_model(tmp_path / "model.gguf", list(KINDS))
    expected, info = run(path)
    assert set(info["weights"]) == {NATIVE[kind] for kind in KINDS}
    assert "1 tensors MXFP4 as q5b (1.29 × the bytes)" in info["widened"]
    assert ("held wider", info["widened"]) in cli_info.rows(info)
    for isa in ISAS:
        monkeypatch.setenv("RILLM_ISA", isa)
        assert np.array_equal(run(path, threads=2)[0], expected), isa


@pytest.mark.parametrize("kind", REFUSED)
def test_kinds_that_are_not_read_are_refused_by_name(tmp_path, kind):
    data = bytes(256 * 4)
    file = gguf_writer.write(
        tmp_path / "model.gguf", gguf_writer.llama_metadata(),
        {"token_embd.weight": (REFUSED[kind], (4, 256), data)},
    )  # fmt: skip
    with pytest.raises(UnsupportedTensorKind, match=rf"token_embd\.weight: {kind},"):
        rillm.Model.from_pretrained(file)


def test_a_scale_that_is_not_finite_names_its_tensor(tmp_path):
    path = write_model(tmp_path / "model.gguf", ["Q4_K"])
    data = bytearray(path.read_bytes())
    blocks = random_blocks("Q4_K", "blk.0.ffn_up", 512, 256)
    at = data.find(blocks[5, 4:].tobytes()) - 4
    data[at : at + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises(UnsupportedTensorKind, match=r"blk\.0\.ffn_up\.weight"):
        rillm.Model.from_pretrained(path)
