"""Record rotary frequencies of transformers, as it computes them and as float64 would have them.

Run as record.py is:

    PYTHONPATH=tests python tests/recording/rope.py

One entry of rope.json holds the config keys that matter, the length asked for, inv_freq of each
pair in float64 and in float32, the attention factor, and cos and sin (times the factor, float64,
[position][pair]) at some positions.
"""

import json
from unittest.mock import patch

import torch
import transformers

from weights import FIXTURES

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0}
YARN |= {"original_max_position_embeddings": 4096}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 4096,
    "short_factor": [round(1 + 0.0125 * i, 4) for i in range(24)],
    "long_factor": [round(1.07 * 1.17**i, 4) for i in range(24)],
}  # fmt: skip

# name -> (model type, head_dim, max_position_embeddings, rope_parameters, length)
ROPES = {
    "default": ("llama", 64, 2048, {"rope_theta": 10000.0}, None),
    "default_5e5": ("llama", 128, 8192, {"rope_theta": 500000.0}, None),
    "linear": ("llama", 64, 8192, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, None),
    "dynamic_1": ("llama", 64, 4096, DYNAMIC, 1),
    "dynamic_max": ("llama", 64, 4096, DYNAMIC, 4096),
    "dynamic_above": ("llama", 64, 4096, DYNAMIC, 4097),
    "dynamic_far": ("llama", 64, 4096, DYNAMIC, 8 * 4096),
    "yarn": ("llama", 128, 131072, {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
        "original_max_position_embeddings": 32768}, None),
    "yarn_attention_factor": ("llama", 64, 262144, YARN | {
        "factor": 64.0, "attention_factor": 1.0}, None),
    "yarn_equal_mscales": ("llama", 64, 65536, YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, None),
    "yarn_mscales": ("llama", 64, 65536, YARN | {"mscale": 1.0, "mscale_all_dim": 0.707}, None),
    "yarn_one_mscale": ("llama", 64, 65536, YARN | {"mscale": 2.0}, None),
    "yarn_betas": ("llama", 64, 65536, YARN | {"beta_fast": 8.0, "beta_slow": 2.0}, None),
    "yarn_untruncated": ("llama", 64, 131072, YARN | {
        "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False}, None),
    "yarn_partial": ("phi", 64, 65536, YARN | {"partial_rotary_factor": 0.5}, None),
    "llama3": ("llama", 128, 131072, LLAMA3, None),
    "llama3_32": ("llama", 64, 131072, LLAMA3 | {"factor": 32.0}, None),
    "longrope_short": ("phi3", 64, 131072, LONGROPE | {"partial_rotary_factor": 0.75}, 4096),
    "longrope_long": ("phi3", 64, 131072, LONGROPE | {"partial_rotary_factor": 0.75}, 4097),
    "longrope_factors": ("llama", 48, 131072, LONGROPE | {"factor": 4.0}, 5000),
    "longrope_attention_factor": ("llama", 48, 131072, LONGROPE | {"attention_factor": 1.3}, 9),
    "partial": ("phi", 80, 2048, {"rope_theta": 10000.0, "partial_rotary_factor": 0.4}, None),
    "partial_quarter": ("gpt_neox", 64, 2048, {
        "rope_theta": 10000.0, "partial_rotary_factor": 0.25}, None),
    "partial_linear": ("phi", 64, 8192, {
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0,
        "partial_rotary_factor": 0.5}, None),
    "ntk_alpha": ("hunyuan_v1_dense", 64, 32768, DYNAMIC | {"factor": 1.0, "alpha": 1000.0}, None),
}  # fmt: skip


def config_of(model_type: str, head_dim: int, context: int, rope: dict):
    """A config of one head; phi3 keeps its original context outside of rope_parameters."""
    keys = {"hidden_size": head_dim, "num_attention_heads": 1, "max_position_embeddings": context}
    if model_type in ("llama", "hunyuan_v1_dense"):
        keys["head_dim"] = head_dim
    if model_type == "phi3":
        keys["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    rope = {"rope_type": "default", **rope}
    return transformers.AutoConfig.for_model(
        model_type, **keys, num_key_value_heads=1, intermediate_size=8, num_hidden_layers=1,
        vocab_size=8, bos_token_id=0, eos_token_id=0, pad_token_id=None, rope_parameters=rope,
    ), {"model_type": model_type, **keys, "rope_parameters": rope}  # fmt: skip


def rotary(config, length: int | None) -> tuple[torch.Tensor, float]:
    """inv_freq and attention factor of transformers' module after a forward of that length."""
    model = transformers.AutoModel.from_config(config)
    module = type(model.rotary_emb)(config)  # anew: loading may have rounded its buffers
    module(torch.zeros(1, dtype=torch.float), torch.tensor([[(length or 1) - 1]]))
    return module.inv_freq, float(module.attention_scaling)


def record(name: str) -> dict:
    """The entry of one case."""
    model_type, head_dim, context, rope, length = ROPES[name]
    config, keys = config_of(model_type, head_dim, context, rope)
    single, _ = rotary(config, length)
    double = torch.float64
    torch.set_default_dtype(double)
    with (
        patch.multiple(torch, float=double, float32=double),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        inv_freq, factor = rotary(config, length)
    torch.set_default_dtype(torch.float32)
    assert single.dtype is torch.float32
    assert inv_freq.dtype is double
    assert (single / inv_freq - 1).abs().max() < 5e-7

    original = keys["rope_parameters"].get("original_max_position_embeddings", context)
    positions = [1, original, original + 1, 100_000]
    angles = torch.tensor(positions, dtype=double)[:, None] * inv_freq
    return {
        "config": keys, "length": length, "inv_freq": inv_freq.tolist(),
        "inv_freq_float32": [float(f"{x:.9g}") for x in single.tolist()],
        "attention_factor": factor, "positions": positions,
        "cos": rounded(angles.cos() * factor), "sin": rounded(angles.sin() * factor),
    }  # fmt: skip


def rounded(rows: torch.Tensor) -> list[list[float]]:
    """To ten decimals."""
    return [[round(x, 10) for x in row] for row in rows.tolist()]


if __name__ == "__main__":
    entries = []
    for name in ROPES:
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in record(name).items()]
        entries.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    file = FIXTURES / "rope.json"
    file.write_text("{\n" + ",\n".join(entries) + "\n}\n")
    print(f"rope: {file.stat().st_size} bytes")
