"""Seed-OSS: Llama with biases on q, k, v, and on the output by its own key."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "seed_oss",
    gguf="seed_oss",
    gguf_names={"mlp_norm": "blk.{}.post_attention_norm.weight"},
    attention_bias=Key("attention_bias", True),
    output_bias=Key("attention_out_bias", False),
    defaults={"head_dim": 128},
    sizes=(155136, 4096, 27648, 64, 80, 8, 524288),
)
