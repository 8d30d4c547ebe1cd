"""Hunyuan dense: Llama with a norm on each head of q and k after it has turned."""

from rillm.families.base import LLAMA_NAMES, Family, Key

FAMILY = Family(
    "hunyuan_v1_dense",
    gguf="hunyuan-dense",
    names=LLAMA_NAMES
    | {
        "q_norm": "model.layers.{}.self_attn.query_layernorm.weight",
        "k_norm": "model.layers.{}.self_attn.key_layernorm.weight",
    },
    norm_epsilon=Key("rms_norm_eps", 1e-5),
    qk_norm_after_rope=True,
    mlp_bias=False,
    rope_kinds={"dynamic": "ntk_alpha"},  # by a fixed alpha, not by length
    sizes=(290943, 4096, 11008, 32, 32, None, 2048),
)
