"""Ministral 3: Mistral by yarn, queries far out scaled up by their position."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "ministral3",
    gguf="mistral3",
    gguf_pairs=True,
    gguf_keys={"llama_4_scaling_beta": "attention.temperature_scale"},
    norm_epsilon=Key("rms_norm_eps", 1e-5),
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    window=Key("sliding_window"),
    defaults={"head_dim": 128},
    reads_layer_types=False,
    position_scale=Key("llama_4_scaling_beta", 0.0),
    rope_defaults={
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
    sizes=(131072, 4096, 14336, 34, 32, 8, 262144),
)
