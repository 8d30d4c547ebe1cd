"""The tiny checkpoints as GGUF files, tensor by tensor as llama.cpp's converter writes them.

What it writes is recorded in fixtures/gguf: names, kinds, shapes, checksums, metadata.
"""

import base64
import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np

import gguf_writer
from weights import FIXTURES, load_case, make_tensors

CASES = sorted(path.stem for path in (FIXTURES / "gguf").glob("*.json"))

# the last words of a Hugging Face name -> GGUF's; inside a layer, and outside of layers
IN_LAYERS = {
    "input_layernorm": "attn_norm",
    "ln_1": "attn_norm",
    "attention_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "attention.query_key_value": "attn_qkv",
    "attn.c_attn": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.dense": "attn_output",
    "attention.dense": "attn_output",
    "attn.c_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "ln_2": "ffn_norm",
    "feedforward_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.fc1": "ffn_up",
    "mlp.c_fc": "ffn_up",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.fc2": "ffn_down",
    "mlp.c_proj": "ffn_down",
    "mlp.dense_4h_to_h": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
OUTSIDE = {
    "embed_tokens": "token_embd",
    "embed_in": "token_embd",
    "wte": "token_embd",
    "wpe": "position_embd",
    "norm": "output_norm",
    "final_layernorm": "output_norm",
    "final_layer_norm": "output_norm",
    "ln_f": "output_norm",
    "lm_head": "output",
    "embed_out": "output",
}
# where post_attention_layernorm is a norm of what attention adds, or is called so
POST_NORMED = ("gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4", "seed_oss")
IN_PAIRS = ("llama", "mistral", "ministral3", "granite", "smollm3", "olmo")
ONE_PLUS = ("gemma", "gemma2", "gemma3_text", "nemotron")


def load_manifest(name: str) -> dict:
    """One recorded file, and under "config" and "tokens" what it was made from and read.

    "llama_cpp_logits" is float32 [vocab] after the last token, where llama.cpp computes the same.
    """
    manifest = json.loads((FIXTURES / "gguf" / f"{name}.json").read_text())
    case = load_case(manifest["fixture"])
    manifest |= {"config": case["config"] | manifest["changes"], "tokens": case["tokens"]}
    if row := manifest.get("llama_cpp_logits"):
        manifest["llama_cpp_logits"] = np.frombuffer(base64.b64decode(row), "<f4")
    return manifest


def gguf_name(name: str, model_type: str) -> str:
    name, _, part = name.rpartition(".")
    if match := re.search(r"\.(?:layers|h)\.(\d+)\.(.*)", name):
        layer, inner = match.groups()
        slot = IN_LAYERS[inner.partition(".norms.")[0]]
        if inner == "post_attention_layernorm" and model_type in POST_NORMED:
            slot = "post_attention_norm"
        return f"blk.{layer}.{slot}.{part}"
    return f"{OUTSIDE[name.rpartition('.')[2]]}.{part}"


def in_pairs(values: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows i and i + half of each head side by side."""
    halves = values.reshape(n_heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def gguf_tensors(config: dict) -> dict[str, np.ndarray]:
    """Float32 arrays by GGUF's names."""
    model_type, tensors = config["model_type"], {}
    n_heads = config.get("num_attention_heads") or config["n_head"]
    for name, values in make_tensors(config).items():
        if "act_fn" in name:
            continue
        new = gguf_name(name, model_type)
        slot = new.split(".")[-2]
        if model_type in IN_PAIRS and slot in ("attn_q", "attn_k"):
            kv_heads = config.get("num_key_value_heads") or n_heads
            values = in_pairs(values, n_heads if slot == "attn_q" else kv_heads)
        elif model_type in ONE_PLUS and new.endswith("norm.weight"):
            values = values + np.float32(1)
        elif model_type == "gpt_neox" and slot == "attn_qkv":
            by_head = values.reshape(n_heads, 3, -1, *values.shape[1:])
            values = by_head.swapaxes(0, 1).reshape(values.shape)
        elif model_type == "gpt2" and slot in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
            values = values.T
        if ".norms." in name:  # StableLM's, one a head
            values = np.vstack([*tensors.get(new, ()), values])
        tensors[new] = values
    return tensors | rope_tensors(config)


def rope_tensors(config: dict) -> dict[str, np.ndarray]:
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        names = {"short_factor": "rope_factors_short", "long_factor": "rope_factors_long"}
        return {f"{new}.weight": np.array(rope[key], np.float32) for key, new in names.items()}
    if rope.get("rope_type") != "llama3":
        return {}
    n = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    one, f32 = np.float32(1), np.float32
    powers = f32(rope["rope_theta"] ** (np.arange(0, n, 2) / n))
    frequencies = one / powers
    waves = f32(2 * math.pi) / frequencies
    low, high, factor = (f32(rope[f"{k}factor"]) for k in ("low_freq_", "high_freq_", ""))
    original = f32(rope["original_max_position_embeddings"])
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": one / ((one - smooth) / factor + smooth)}


def write_gguf(path: Path, manifest: dict, change=None) -> Path:
    """The file of a manifest: its metadata, over tensors made here; `change` edits both before."""
    types = {"uint32": "u32", "float32": "f32", "bool": "bool", "string": "string"}
    metadata = {
        key: content if kind == "string" else (types[kind], content)
        for key, (kind, content) in manifest["metadata"].items()
    }
    n_tokens = manifest["config"]["vocab_size"]
    metadata["tokenizer.ggml.tokens"] = [f"token{i}" for i in range(n_tokens)]
    tensors = gguf_tensors(manifest["config"])
    if change:
        change(metadata, tensors)
    encoded = {
        name: ("F32", values.shape, np.ascontiguousarray(values, "<f4").tobytes())
        for name, values in tensors.items()
    }
    return gguf_writer.write(path, metadata, encoded)


def checksums(tensors: dict[str, np.ndarray]) -> dict[str, list]:
    """As a manifest has them."""
    return {
        name: [
            "F32",
            list(values.shape),
            hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest(),
        ]
        for name, values in tensors.items()
    }
