"""GPT-NeoX, Pythia: q, k, v of each head in one matrix, a quarter of a head turning."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "gpt_neox",
    gguf="gptneox",
    gguf_keys={"use_parallel_residual": "use_parallel_residual"},
    names={
        "embedding": "gpt_neox.embed_in.weight",
        "attention_norm": "gpt_neox.layers.{}.input_layernorm.weight",
        "qkv": "gpt_neox.layers.{}.attention.query_key_value.weight",
        "output": "gpt_neox.layers.{}.attention.dense.weight",
        "mlp_norm": "gpt_neox.layers.{}.post_attention_layernorm.weight",
        "up": "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight",
        "down": "gpt_neox.layers.{}.mlp.dense_4h_to_h.weight",
        "final_norm": "gpt_neox.final_layer_norm.weight",
        "head": "embed_out.weight",
    },
    config_keys={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
    norm="layer",
    norm_bias=True,
    norm_epsilon=Key("layer_norm_eps", 1e-5),
    fused="heads",
    attention_bias=Key("attention_bias", True),
    output_bias=Key("attention_bias", True),
    mlp_bias=True,
    activation=Key("hidden_act", "gelu"),
    parallel=Key("use_parallel_residual", True),
    rotary_share=Key("partial_rotary_factor", 0.25),
    sizes=(50432, 6144, 24576, 44, 64, None, 2048),
)
