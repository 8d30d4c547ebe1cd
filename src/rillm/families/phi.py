"""Phi-1, Phi-1.5, Phi-2: LayerNorm, attention and MLP in parallel, biases everywhere."""

from rillm.families.base import LLAMA_NAMES, Family, Key, without

FAMILY = Family(
    "phi",
    gguf="phi2",
    names=without(LLAMA_NAMES, "mlp_norm", "gate")
    | {
        "output": "model.layers.{}.self_attn.dense.weight",
        "up": "model.layers.{}.mlp.fc1.weight",
        "down": "model.layers.{}.mlp.fc2.weight",
        "final_norm": "model.final_layernorm.weight",
    },
    names_if={
        "qk_layernorm": {
            "q_norm": "model.layers.{}.self_attn.q_layernorm.weight",
            "k_norm": "model.layers.{}.self_attn.k_layernorm.weight",
        }
    },
    norm="layer",
    norm_bias=True,
    norm_epsilon=Key("layer_norm_eps", 1e-5),
    qk_norm_bias=True,
    attention_bias=True,
    output_bias=True,
    mlp_bias=True,
    head_bias=True,
    activation=Key("hidden_act", "gelu_new"),
    parallel=True,
    rotary_share=Key("partial_rotary_factor", 0.5),
    sizes=(51200, 2048, 8192, 24, 32, None, 2048),
)
