"""Granite: Llama with four multipliers."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "granite",
    embedding_scale=Key("embedding_multiplier", 1.0),
    residual_scale=Key("residual_multiplier", 1.0),
    attention_scale=Key("attention_multiplier", 1.0),
    logit_scale=Key("logits_scaling", 1.0, power=-1),
)
