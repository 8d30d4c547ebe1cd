"""Rotary frequencies against those of transformers in float64; R1, R3, R4 of other projects."""

import json
from pathlib import Path

import numpy as np
import pytest

from rillm.checkpoint.config import config_from_json
from rillm.engine._engine import rotation
from rillm.families.rope import frequencies
from weights import FIXTURES

CASES = json.loads((FIXTURES / "rope.json").read_text())
REST = {
    "vocab_size": 97,
    "num_hidden_layers": 1,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
}


def config_of(case, **changes):
    return config_from_json(Path("config.json"), REST | case["config"] | changes)


def turns(case, **changes):
    config = config_of(case, **changes)
    return frequencies(config.ropes[0], config.rotary_dim, case["length"] or 1)


@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_those_of_transformers(name):
    case = CASES[name]
    inverse, amplitude = turns(case)
    np.testing.assert_allclose(inverse, case["inv_freq"], rtol=1e-6)
    assert amplitude == pytest.approx(case["attention_factor"], rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_cosines_and_sines_far_out(name):
    """Within 2e-7 · (1 + position) of float64: the rounding of a float32 frequency grows so."""
    case = CASES[name]
    inverse, amplitude = turns(case)
    for position, cosines, sines in zip(case["positions"], case["cos"], case["sin"], strict=True):
        angles = np.float32(position) * inverse  # float32, as the engine multiplies
        got = np.array([rotation(float(angle)) for angle in angles]) * amplitude
        assert np.abs(got[:, 0] - cosines).max() <= 2e-7 * (1 + position)
        assert np.abs(got[:, 1] - sines).max() <= 2e-7 * (1 + position)


def test_sines_of_our_own_are_those_of_libm():
    for angle in [*np.linspace(-7, 7, 2001).tolist(), 1000.0, 100000.0, 131071.0, 1000000.0]:
        c, s = rotation(np.float32(angle))
        x = float(np.float32(angle))
        assert abs(c - np.cos(x)) < 1e-14 * max(1, abs(x)) and abs(s - np.sin(x)) < 1e-14 * max(
            1, abs(x)
        )


def yarn(**keys):
    return {
        "config": {
            "model_type": "llama",
            "hidden_size": 64,
            "num_attention_heads": 1,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **keys},
        },
        "length": None,
    }


@pytest.mark.parametrize(
    "keys, amplitude",
    [
        ({"factor": 64.0, "attention_factor": 1.0}, 1.0),
        ({"factor": 64.0}, 1.4158883083359673),
        ({"factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"factor": 16.0, "mscale": 1.0}, 1.2772588722239782),
    ],
)
def test_ml_explore_mlx_lm_1507_yarn_amplitudes(keys, amplitude):
    assert turns(yarn(**keys, original_max_position_embeddings=64))[1] == pytest.approx(amplitude)


def test_pytorch_torchtitan_3787_beta_fast_is_the_low_pair():
    """gpt-oss's settings: pairs below low keep their frequency, those above high are divided."""
    case = yarn(factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=4096)  # fmt: skip
    plain = 10000.0 ** (-np.arange(0, 64, 2) / 64)
    low = 64 * np.log(4096 / (32 * 2 * np.pi)) / (2 * np.log(10000.0))
    high = 64 * np.log(4096 / (1 * 2 * np.pi)) / (2 * np.log(10000.0))
    ramp = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(turns(case)[0], plain * (1 - ramp) + plain / 32 * ramp, rtol=1e-6)


@pytest.mark.parametrize("form", ["rope_parameters", "nested", "v4"])
def test_vllm_project_vllm_28542_theta_in_both_layouts(form):
    rope = {"rope_type": "default", "rope_theta": 1e6}
    changes = {
        "rope_parameters": {"rope_parameters": rope},
        "nested": {"rope_parameters": {"full_attention": rope}},
        "v4": {"rope_parameters": None, "rope_theta": 1e6},
    }[form]
    assert config_of(CASES["default"], **changes).ropes[0].theta == 1e6


def test_another_rope_for_layers_that_slide():
    """google's Gemma 3: two thetas, nested in one form and flat in the other."""
    flat = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_parameters": None}
    nested = {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    seen = []
    for form in (flat, nested):
        config = config_of(
            CASES["default"],
            model_type="gemma3_text",
            num_hidden_layers=6,
            num_key_value_heads=1,
            sliding_window=16,
            **form,
        )
        seen.append([config.ropes[i].theta for i in config.layer_ropes])
    assert seen[0] == seen[1] == [1e4] * 5 + [1e6]


def test_a_share_of_heads_is_refused_where_heads_turn_whole():
    with pytest.raises(ValueError, match="partial_rotary_factor is 0.5"):
        config_of(CASES["default"], partial_rotary_factor=0.5)
