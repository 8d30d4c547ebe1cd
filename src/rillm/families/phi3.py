"""Phi-3, Phi-4 mini: Llama with q, k, v in one matrix, gate and up in another, partial turns."""

from rillm.families.base import LLAMA_NAMES, Family, Key, without

FAMILY = Family(
    "phi3",
    gguf="phi3",
    names=without(LLAMA_NAMES, "q", "k", "v", "gate", "up")
    | {
        "qkv": "model.layers.{}.self_attn.qkv_proj.weight",
        "gate_up": "model.layers.{}.mlp.gate_up_proj.weight",
    },
    norm_epsilon=Key("rms_norm_eps", 1e-5),
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    rotary_share=Key("partial_rotary_factor", 1.0),
    window=Key("sliding_window"),
    reads_layer_types=False,
    rope_kinds={"su": "longrope", "yarn": "longrope"},  # its first names
    rope_original_context=4096,
    sizes=(32064, 3072, 8192, 32, 32, None, 4096),
)
