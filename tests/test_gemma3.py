"""Gemma 3 270M, as people have it: Q4_K_M, dequantized to f32, against transformers."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import rillm
from gguf_blocks import dequantize
from rillm.checkpoint import hub, open_checkpoint
from rillm.checkpoint.mapped import KINDS
from rillm.engine._engine import row_bytes
from rillm.weights.formats import NATIVE
from test_kquants import pack

GOLDEN = json.loads((Path(__file__).parent / "golden/gemma3.json").read_text("utf-8"))
NEEDED = {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}


@pytest.fixture(scope="module")
def path():
    if os.environ.get("RILLM_OFFLINE", "") not in ("", "0"):
        pytest.skip("RILLM_OFFLINE is set: Gemma 3 may not be fetched")
    return hub.find("gemma3-270m")


@pytest.fixture(scope="module")
def gemma3(path):
    if missing := NEEDED - KINDS.keys():
        pytest.skip(f"tensor kinds not read yet: {', '.join(sorted(missing))}")
    with rillm.Model.from_pretrained(path, weights="f32", context=512) as model:
        yield model


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["prompt"][:24])
def test_gemma3_in_f32_says_what_transformers_says(gemma3, golden):
    assert gemma3.encode(golden["prompt"]) == golden["ids"]
    with gemma3.session() as session:
        logits = session.prefill(golden["ids"])
    for token, expected in golden["top8"]:
        assert abs(logits[token] - expected) <= 1e-3
    result = gemma3.generate(golden["prompt"], max_new_tokens=48, ignore_eos=True)
    assert result.token_ids == golden["greedy"]


@pytest.fixture(scope="module")
def int16_gemma3(path):
    with rillm.Model.from_pretrained(path, activations="int16", context=512) as model:
        yield model


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["prompt"][:24])
def test_gemma3_in_its_own_formats_says_the_same_by_int16_activations(int16_gemma3, golden):
    result = int16_gemma3.generate(golden["prompt"], max_new_tokens=48, ignore_eos=True)
    assert result.token_ids == golden["greedy"]


def test_gemma3_is_what_its_file_says(gemma3):
    """The file names neither the local theta nor which layers slide: five of six, by 10000."""
    config = gemma3._config
    assert config.windows == ((512,) * 5 + (0,)) * 3
    assert [config.ropes[i].theta for i in config.layer_ropes] == ([1e4] * 5 + [1e6]) * 3
    assert sorted(gemma3.eos_token_ids) == [1, 106]  # <eos>, <end_of_turn>


@pytest.mark.parametrize("kind", sorted(NEEDED))
def test_gemma3_keeps_every_bit_of_its_blocks(path, kind):
    """They are of llama.cpp's quantizer; what they hold is the gguf package's word."""
    with open_checkpoint(path) as checkpoint:
        tensor = next(t for t in checkpoint.tensors.values() if t.kind == kind)
        n_rows, n_columns = min(tensor.shape[0], 512), tensor.shape[1]
        data = tensor.data[: n_rows * row_bytes(kind, n_columns)].copy()
    blocks = data.reshape(n_rows, -1)
    weights, stride, n_panels = pack(kind, blocks, n_rows, n_columns)
    got = weights.unpack(NATIVE[kind], 0, stride, n_panels, n_columns)[:n_rows]
    assert np.array_equal(got, dequantize(kind, blocks))
