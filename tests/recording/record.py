"""Record golden logits: each case is a tiny model built and run by transformers in float32.

Run in its own environment (torch 2.13.0, transformers 5.24.0, numpy, safetensors):

    PYTHONPATH=tests python tests/recording/record.py [CASE ...]

Without names every case is recorded. A new model type is one entry of CASES and, if its tensors
differ, a line of tensor_shapes in tests/weights.py: a missing or extra tensor stops the recording.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from weights import FIXTURES, random_integers, write_model

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
LLAMA3_ROPE = {  # head_dim 16: one wavelength below 64/4, two between, five above 64/1
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
ALTERNATING = ["sliding_attention", "full_attention"]
# Hidden states keep a large first component which no layer reads and the head takes times -2.
NEGATIVE = {"model.embed_tokens.weight": 8.0, "lm_head.weight": -2.0}
for norm in ("input_layernorm", "post_attention_layernorm"):
    NEGATIVE |= {f"model.layers.{layer}.{norm}.weight": 0.0 for layer in range(2)}

# name -> (model_type, what differs from SIZES, further keys of the fixture)
CASES = {
    "base": ("llama", {"rms_norm_eps": 1e-3}, {}),  # large enough to be seen when missing
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "head_dim": ("llama", {"hidden_size": 48, "head_dim": 32}, {}),
    "head_dim_24": ("llama", {"head_dim": 24}, {}),
    "tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama3_rope": ("llama", {"rope_parameters": LLAMA3_ROPE}, {"config_v4": "rope_type"}),
    "linear_rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        {"config_v4": "type"},
    ),
    "theta": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"config_v4": None},
    ),
    "vocab_negative": ("llama", {"vocab_size": 101}, {"first_column": NEGATIVE}),
    "mha": ("llama", {"num_key_value_heads": 4}, {}),
    "odd_sizes": ("llama", {"hidden_size": 40, "intermediate_size": 72, "vocab_size": 131}, {}),
    "one_layer": ("llama", {"num_hidden_layers": 1}, {}),
    "long": (
        "llama",
        {"num_hidden_layers": 1, "hidden_size": 32, "max_position_embeddings": 1024},
        {"positions": range(592, 600)},
    ),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 32}, {}),
    "mistral": ("mistral", {"sliding_window": 16}, {}),
    "gemma": ("gemma", {"head_dim": 32}, {}),
    "gemma2": (
        "gemma2",
        {"head_dim": 32, "sliding_window": 16, "layer_types": ALTERNATING,
         "query_pre_attn_scalar": 24,
         "attn_logit_softcapping": 4.0, "final_logit_softcapping": 5.0},
        {},
    ),
    "gemma3_text": (
        "gemma3_text",
        {"head_dim": 32, "sliding_window": 16, "layer_types": ALTERNATING,
         "query_pre_attn_scalar": 24, "rope_parameters": GEMMA3_ROPE},
        {},
    ),
    "phi3": ("phi3", {}, {}),
    "granite": (
        "granite",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5,
         "logits_scaling": 0.75},
        {},
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}, {}),
    "olmo2": ("olmo2", {}, {}),
    "cohere": ("cohere", {"logit_scale": 0.5}, {}),
}  # fmt: skip


def config_as_written(model_type: str, changes: dict) -> dict:
    """The config.json that transformers writes for a model of these sizes."""
    config = transformers.AutoConfig.for_model(model_type, **(SIZES | changes))
    with tempfile.TemporaryDirectory() as folder:
        transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
        return json.loads((Path(folder) / "config.json").read_text())


def config_v4(config: dict, type_key: str | None) -> dict:
    """The same config as transformers 4 wrote it; both must mean the same to transformers 5."""
    old = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype")}
    rope = dict(config["rope_parameters"])
    old["rope_theta"] = rope.pop("rope_theta")
    old["rope_scaling"] = None if type_key is None else {type_key: rope.pop("rope_type"), **rope}
    old |= {"torch_dtype": "float32", "transformers_version": "4.57.0"}
    # on a copy: transformers writes rope_theta into the rope_scaling it is given
    read = transformers.AutoConfig.for_model(**copy.deepcopy(old)).rope_parameters
    assert {k: read[k] for k in config["rope_parameters"]} == config["rope_parameters"], read
    return old


def run(config: dict, first_column: dict | None, tokens: list[int]) -> torch.Tensor:
    """Logits [n_tokens, vocab] with the generated weights: eager attention, float32."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, {"config": config, "first_column": first_column})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
    assert not any(info.values()), info  # no missing, unexpected or mismatched keys
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens]), use_cache=False).logits[0]


def record(name: str) -> None:
    """Run one case and write its fixture, a row of logits a line."""
    model_type, changes, extra = CASES[name]
    config = config_as_written(model_type, changes)
    # 64 rows: a few early ones, where errors are easy to follow, and all from the middle on
    positions = list(extra.get("positions", [*range(8), *range(24, 80)]))
    tokens = [int(z % config["vocab_size"]) for z in random_integers("tokens", positions[-1] + 1)]
    first_column = extra.get("first_column")
    logits = run(config, first_column, tokens)[positions]
    fixture = {
        "recorded_with": {"transformers": transformers.__version__, "torch": torch.__version__},
        "config": config,
    }
    if "config_v4" in extra:
        fixture["config_v4"] = config_v4(config, extra["config_v4"])
    if first_column:
        fixture["first_column"] = first_column
        assert logits.max() < 0, f"{name}: a logit is not negative: {logits.max()}"
    fixture |= {"tokens": tokens, "positions": positions}

    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in fixture.items()]
    rounded = [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]
    rows = [json.dumps(row, separators=(",", ":")) for row in rounded]
    lines.append(' "logits": [\n' + ",\n".join(rows) + "\n ]")
    file = FIXTURES / f"{name}.json"
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    size, mean, largest = file.stat().st_size, logits.abs().mean(), logits.abs().max()
    print(f"{name}: {size} bytes, |logit| mean {mean:.2f}, max {largest:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        record(case)
