"""Granite: Llama with four multipliers."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "granite",
    gguf="granite",
    gguf_pairs=True,
    gguf_keys={
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    },
    embedding_scale=Key("embedding_multiplier", 1.0),
    residual_scale=Key("residual_multiplier", 1.0),
    attention_scale=Key("attention_multiplier", 1.0),
    logit_scale=Key("logits_scaling", 1.0, power=-1),
)
