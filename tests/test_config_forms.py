"""What a config.json leaves out or says in another form, as transformers 5.24's classes read it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import rillm
from rillm.checkpoint.config import config_from_json
from rillm.errors import MalformedFile, UnsupportedConfig
from weights import load_case, make_tensors, write_model

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
FULL, SLIDING = "full_attention", "sliding_attention"
PLAIN = {"rope_type": "default"}
LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def read(model_type, without=(), **keys):
    raw = {"model_type": model_type} | SIZES | keys
    return config_from_json(Path("config.json"), {k: v for k, v in raw.items() if k not in without})


def nested(full=None, sliding=None):
    return {"rope_parameters": {FULL: full, SLIDING: sliding}}


@pytest.mark.parametrize(
    "model_type, some, all_said",
    [
        ("cohere2", {}, {"sliding_window": 4096}),
        ("exaone4", {}, {"sliding_window": 4096}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, {"sliding_window": 4096}),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 2}, {"sliding_window": 4096}),
        (
            "exaone4",  # of a pattern in numbers the last layer is as the others
            {"sliding_window": 8},
            {"layer_types": [SLIDING] * 3 + [FULL] + [SLIDING] * 2},
        ),
        (
            "smollm3",
            {"no_rope_layers": [1, 0, 1, 1, 0, 1, 1]},
            {"no_rope_layers": [1, 0, 1, 1, 0, 1]},
        ),
        ("gemma", {"hidden_act": "gelu"}, {"hidden_act": "gelu_pytorch_tanh"}),
        *(
            ("gemma3_text", *forms)
            for forms in (
                (nested(LINEAR | {"rope_theta": 1e6}), nested(LINEAR | {"rope_theta": 1e6}, PLAIN)),
                (nested(PLAIN, PLAIN), {"rope_theta": 1e6, "rope_local_base_freq": 1e4}),
                (nested(None, PLAIN | {"rope_theta": 100.0}), {"rope_local_base_freq": 100.0}),
                (
                    nested(PLAIN, PLAIN) | {"rope_scaling": LINEAR},
                    nested(LINEAR | {"rope_theta": 1e6}, PLAIN),
                ),
                (
                    nested(YARN, PLAIN) | {"original_max_position_embeddings": 16},
                    nested(YARN | {"original_max_position_embeddings": 256}, PLAIN),
                ),
            )
        ),
        (
            "olmo3",
            nested(YARN | {"original_max_position_embeddings": 32}),
            nested(
                YARN | {"original_max_position_embeddings": 32}, PLAIN | {"rope_theta": 500000.0}
            ),
        ),
        *(
            (kind, {"sliding_window": 8, "layer_types": [FULL] * 6}, {"sliding_window": 8})
            for kind in ("phi3", "starcoder2", "ministral3")  # they do not read it
        ),
        (
            "phi3",
            {"max_position_embeddings": 131072, "rope_scaling": LONG},
            {"rope_scaling": LONG | {"type": "su", "original_max_position_embeddings": 4096}},
        ),
        ("llama", {"rope_scaling": YARN | {"llama_4_scaling_beta": 0.1}}, {"rope_scaling": YARN}),
        ("llama", {"rope_scaling": YARN | {"short_factor": [1.0] * 8}}, {"rope_scaling": YARN}),
        (
            "llama",
            {"rope_scaling": {"type": "dynamic", "factor": 4.0, "alpha": 1000.0}},
            {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
        ),
        (
            "llama",
            {"rope_parameters": PLAIN | {"rope_theta": 100.0}, "rope_scaling": LINEAR},
            {"rope_scaling": LINEAR},
        ),
        ("apertus", {"rope_scaling": {}}, {}),
        (
            "ministral3",
            {"rope_parameters": YARN | {"rope_theta": None}},
            {"rope_parameters": YARN | {"rope_theta": 1e4}},
        ),
        (
            "ministral3",
            {
                "rope_parameters": YARN | {"llama_4_scaling_beta": 0.1},
                "original_max_position_embeddings": 64,
            },
            {
                "rope_parameters": YARN
                | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}
            },
        ),
        (
            "ministral3",
            {"rope_parameters": PLAIN | {"llama_4_scaling_beta": 0.1}},
            {"rope_parameters": PLAIN
             | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 256}},
        ),
    ],
)  # fmt: skip
def test_two_forms_of_one_config(model_type, some, all_said):
    ropes = {"rope_parameters", "rope_scaling", "original_max_position_embeddings", "layer_types"}
    replaced = dict.fromkeys(some.keys() & ropes - all_said.keys())
    configs = [read(model_type, **some), read(model_type, **some | replaced | all_said)]
    a, b = (replace(c, arithmetic=replace(c.arithmetic, sliding_theta=None)) for c in configs)
    assert a == b  # what sliding_theta says is in the ropes


@pytest.mark.parametrize(
    "model_type, positions",
    [("mistral", 131072), ("qwen2", 32768), ("gemma2", 8192), ("gemma3_text", 131072),
     ("smollm3", 32768), ("apertus", 65536), ("seed_oss", 524288), ("gpt2", 1024)],
)  # fmt: skip
def test_a_context_that_is_left_out_is_the_classes(model_type, positions):
    assert read(model_type, ["max_position_embeddings"]).context_length == positions


def test_a_text_config_leaves_out_what_its_class_says():
    """As google's Gemma 3 4B and llava-hf's LLaVA 1.5 have it."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    c = config_from_json(Path("config.json"), {"model_type": "gemma3", "text_config": text})
    assert (c.vocab_size, c.n_heads, c.n_kv_heads, c.head_dim) == (262208, 8, 4, 256)
    assert (c.context_length, set(c.windows)) == (131072, {0, 1024})
    text = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}
    whole = {"model_type": "llava", "text_config": text, "rope_theta": 100.0, "head_dim": 7}
    c = config_from_json(Path("config.json"), whole)
    assert (c.dim, c.n_layers, c.n_heads, c.n_kv_heads, c.ffn_dim) == (4096, 32, 32, 32, 11008)
    assert (c.head_dim, c.ropes[0].theta) == (128, 1e4)  # the whole's own keys are not the text's


@pytest.mark.parametrize(
    "model_type, keys, error, words",
    [
        ("llama", {"is_causal": False}, UnsupportedConfig, "is_causal is False, expected True"),
        ("llama", {"layer_types": [SLIDING] * 6}, UnsupportedConfig, "layer_types has 'sliding_"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 6}, UnsupportedConfig, "'chunked_atte"),
        ("qwen3", {"layer_types": [FULL]}, MalformedFile, "expected the types of 6 layers"),
        ("qwen3", {"layer_types": "full"}, MalformedFile, "expected the types of 6 layers"),
        ("qwen3", {"layer_types": [SLIDING] * 6}, MalformedFile, "use_sliding_window is not true"),
        ("gemma2", {"sliding_window": None, "layer_types": [SLIDING] * 6}, MalformedFile, "None"),
        ("qwen2", {"use_sliding_window": "false"}, MalformedFile, "use_sliding_window is 'false'"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": "1"}, MalformedFile, "max_win"),
        ("cohere2", {"sliding_window_pattern": 0}, MalformedFile, "sliding_window_pattern is 0"),
        ("cohere2", {"sliding_window_pattern": [4]}, MalformedFile, "sliding_window_pattern is"),
        ("smollm3", {"no_rope_layer_interval": "4"}, MalformedFile, "no_rope_layer_interval"),
        ("smollm3", {"no_rope_layers": [1, 0]}, MalformedFile, "tells of 2 layers, expected 6"),
        ("smollm3", {"no_rope_layers": 7}, MalformedFile, "no_rope_layers is 7"),
        ("llama", {"rms_norm_eps": 10**400}, MalformedFile, "rms_norm_eps is too large"),
        ("gemma", {"hidden_size": 10**400}, MalformedFile, "hidden_size is 1329 bits long"),
        ("gemma3_text", {"rope_local_base_freq": 0}, MalformedFile, "rope theta is 0"),
        ("llama", {"rope_scaling": {"type": "ntk_alpha", "alpha": 9.0}}, ValueError, "rope type"),
        (
            "glm",
            {"rope_parameters": {FULL: PLAIN | {"partial_rotary_factor": 0.25}, SLIDING: PLAIN}},
            UnsupportedConfig,
            "partial_rotary_factor stands in rope_parameters by layer type",
        ),
        ("llama", {"rope_scaling": {"type": ["yarn"]}}, ValueError, r"rope type is \['yarn'\]"),
        *(
            ("stablelm", {"partial_rotary_factor": share}, MalformedFile, "share of a head")
            for share in (1.5, 40.0, -1.0, float("nan"), float("inf"))
        ),
        (
            "llama",
            {"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            MalformedFile,
            "expected more than 2 dimensions that turn",
        ),
    ],
)
def test_what_would_be_computed_otherwise_is_refused_by_name(model_type, keys, error, words):
    with pytest.raises(error, match=words):
        read(model_type, **keys)


@pytest.mark.parametrize("top, inner", [(True, False), (False, True), (None, None), (True, None)])
@pytest.mark.parametrize("has_head", [True, False])
def test_where_whole_and_text_disagree_the_tensors_say_who_is_tied(tmp_path, top, inner, has_head):
    """transformers 5.24 saves Mistral 3 with true above and false in the text part."""
    case = load_case("mistral")
    tensors = make_tensors(case["config"])
    if not has_head:
        del tensors["lm_head.weight"]
    text = case["config"] | {"tie_word_embeddings": inner}
    whole = {"model_type": "mistral3", "text_config": text, "tie_word_embeddings": top}
    config = config_from_json(Path("config.json"), whole)
    assert config.arithmetic.tied is None
    write_model(tmp_path, case)
    (tmp_path / "config.json").write_text(json.dumps(whole))
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with rillm.Model.from_pretrained(tmp_path, weights="f32") as model, model.session() as session:
        logits = session.prefill([3, 5, 7])
    head = tensors["lm_head.weight" if has_head else "model.embed_tokens.weight"]
    plain = {**case, "config": case["config"] | {"tie_word_embeddings": False}}
    write_model(tmp_path, plain)
    safetensors.numpy.save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    with rillm.Model.from_pretrained(tmp_path, weights="f32") as model, model.session() as session:
        assert np.array_equal(session.prefill([3, 5, 7]), logits)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float64])
def test_masks_and_frequencies_of_any_type_are_not_read(tmp_path, dtype):
    """EleutherAI's Pythia files carry masks in U8."""
    write_model(tmp_path, "gpt_neox")
    file = tmp_path / "model.safetensors"
    extra = {
        f"gpt_neox.layers.0.attention.{name}": np.ones((1, 1, 4, 4), dtype)
        for name in ("bias", "masked_bias", "rotary_emb.inv_freq")
    }
    safetensors.numpy.save_file(safetensors.numpy.load_file(file) | extra, file)
    with rillm.Model.from_pretrained(tmp_path) as model:
        assert model.info()["family"] == "gpt_neox"


def test_two_tensors_of_one_name(tmp_path):
    write_model(tmp_path, "base")
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    tensors["language_model.model.norm.weight"] = tensors["model.norm.weight"]
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(MalformedFile, match="are both model.norm.weight of the language model"):
        rillm.Model.from_pretrained(tmp_path)
