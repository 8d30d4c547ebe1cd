"""GPT-2: learned positions, LayerNorm, matrices stored [columns, rows]."""

from rillm.families.base import Family, Key

NAMES = {
    "embedding": "transformer.wte.weight",
    "positions": "transformer.wpe.weight",
    "attention_norm": "transformer.h.{}.ln_1.weight",
    "qkv": "transformer.h.{}.attn.c_attn.weight",
    "output": "transformer.h.{}.attn.c_proj.weight",
    "mlp_norm": "transformer.h.{}.ln_2.weight",
    "up": "transformer.h.{}.mlp.c_fc.weight",
    "down": "transformer.h.{}.mlp.c_proj.weight",
    "final_norm": "transformer.ln_f.weight",
    "head": "lm_head.weight",
}

FAMILY = Family(
    "gpt2",
    gguf="gpt2",
    names=NAMES,
    config_keys={
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
    },
    norm="layer",
    norm_bias=True,
    norm_epsilon=Key("layer_norm_epsilon", 1e-5),
    attention_bias=True,
    output_bias=True,
    mlp_bias=True,
    activation=Key("activation_function", "gelu_new"),
    tied=Key("tie_word_embeddings", True),
    rotary_share=0.0,
    attention_scale=Key("scale_attn_weights", True),
    scales_by_layer=Key("scale_attn_by_inverse_layer_idx", False),
    transposed=True,
    refused={"add_cross_attention": False},
    sizes=(50257, 768, None, 12, 12, None, 1024),
)
