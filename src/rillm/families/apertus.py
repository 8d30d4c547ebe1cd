"""Apertus: a norm on each head of q and k, and xIELU without gate."""

from rillm.families.base import LLAMA_NAMES, QK_NORM_NAMES, Family, Key, without

FAMILY = Family(
    "apertus",
    gguf="apertus",
    names=without(LLAMA_NAMES, "gate")
    | QK_NORM_NAMES
    | {
        "attention_norm": "model.layers.{}.attention_layernorm.weight",
        "mlp_norm": "model.layers.{}.feedforward_layernorm.weight",
        "activation_parameters": "model.layers.{}.mlp.act_fn.{part}",
    },
    norm_epsilon=Key("rms_norm_eps", 1e-5),
    mlp_bias=False,
    activation=Key("hidden_act", "xielu"),
    rope_theta=12000000.0,
    rope_defaults={
        "rope_type": "llama3",
        "rope_theta": 12000000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    sizes=(131072, 4096, 14336, 32, 32, None, 65536),
)
