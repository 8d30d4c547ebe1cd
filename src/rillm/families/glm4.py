"""GLM-4-0414 (glm4): glm with norms also of what attention and MLP add."""

from dataclasses import replace

from rillm.families.glm import FAMILY as GLM

FAMILY = replace(
    GLM,
    model_type="glm4",
    gguf="glm4",
    names=GLM.names
    | {
        "attention_post_norm": "model.layers.{}.post_self_attn_layernorm.weight",
        "mlp_post_norm": "model.layers.{}.post_mlp_layernorm.weight",
    },
)
