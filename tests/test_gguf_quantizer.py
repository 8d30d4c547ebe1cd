"""Files of llama.cpp's own quantizer, mixtures and all, keep every bit; skipped without it.

pip install ".[test,peers]"
"""

import gguf
import numpy as np
import pytest

import gguf_writer
import rillm
from gguf_blocks import dequantize
from rillm.checkpoint import open_checkpoint
from rillm.engine._engine import row_bytes
from rillm.errors import UnsupportedTensorKind
from rillm.weights.formats import NATIVE, is_quantized
from test_kquants import pack, run, shapes
from weights import random_tensor

llama_cpp = pytest.importorskip("llama_cpp")

# name after LLAMA_FTYPE_MOSTLY_ -> kinds that must be among the tensors
MIXTURES = {
    "Q4_0": {"Q4_0"},
    "Q4_1": {"Q4_1"},
    "Q5_0": {"Q5_0"},
    "Q5_1": {"Q5_1"},
    "Q8_0": {"Q8_0"},
    "Q2_K": {"Q2_K", "Q3_K"},
    "Q3_K_M": {"Q3_K", "Q5_K"},
    "Q4_K_M": {"Q4_K", "Q6_K"},
    "Q5_K_M": {"Q5_K", "Q6_K"},
    "Q6_K": {"Q6_K"},
    "IQ4_NL": {"IQ4_NL"},
    "IQ4_XS": {"IQ4_XS"},
    "MXFP4": {"MXFP4", "Q8_0"},
}


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    """A llama of two layers, 256 wide, in f32."""
    tensors = {
        f"{name}.weight": ("F32", shape, random_tensor(name, shape).tobytes())
        for name, shape in shapes().items()
    }
    ones = ("F32", (256,), np.ones(256, np.float32).tobytes())
    norms = [f"blk.{i}.{part}_norm.weight" for i in range(2) for part in ("attn", "ffn")]
    tensors |= dict.fromkeys([*norms, "output_norm.weight"], ones)
    metadata = gguf_writer.llama_metadata(
        llama__embedding_length=256, llama__feed_forward_length=512
    )
    return gguf_writer.write(tmp_path_factory.mktemp("floats") / "f32.gguf", metadata, tensors)


def quantized(source, name):
    path = source.with_name(f"{name}.gguf")
    parameters = llama_cpp.llama_model_quantize_default_params()
    if name == "MXFP4":  # of mixtures of experts alone, but for the embedding
        parameters.token_embedding_type, name = gguf.GGMLQuantizationType.MXFP4, "Q8_0"
    parameters.ftype, parameters.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}"), 1
    assert llama_cpp.llama_model_quantize(bytes(source), bytes(path), parameters) == 0
    return path


@pytest.mark.parametrize("name", MIXTURES)
def test_a_quantized_file_keeps_every_bit(floats, name):
    path, seen = quantized(floats, name), set()
    with open_checkpoint(path) as checkpoint:
        for tensor in filter(is_quantized, checkpoint.tensors.values()):
            (n_rows, n_columns), kind = tensor.shape, tensor.kind
            blocks = tensor.data.copy().reshape(n_rows, row_bytes(kind, n_columns))
            weights, stride, n_panels = pack(kind, blocks, n_rows, n_columns)
            got = weights.unpack(NATIVE[kind], 0, stride, n_panels, n_columns)
            assert np.array_equal(got[:n_rows], dequantize(kind, blocks)), tensor.name
            seen.add(kind)
    assert MIXTURES[name] <= seen
    exact, _ = run(path, weights="f32")
    logits, info = run(path, kv="f32")
    assert set(info["weights"]) == {NATIVE[kind] for kind in seen}
    assert np.sqrt(((logits - exact) ** 2).mean() / (exact**2).mean()) < 0.05  # int8 activations


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_a_quantized_file_of_another_kind_is_refused_by_name(floats, name):
    with pytest.raises(UnsupportedTensorKind, match=f": {name}, expected"):
        rillm.Model.from_pretrained(quantized(floats, name))
