"""OLMo: Llama with LayerNorm without weights, and q, k, v held within ±clip_qkv."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "olmo",
    gguf="olmo",
    gguf_pairs=True,
    gguf_keys={"clip_qkv": "attention.clamp_kqv"},
    norm="layer",
    norm_weight=False,
    norm_epsilon=1e-5,
    mlp_bias=False,
    qkv_clip=Key("clip_qkv", 0.0),
    sizes=(50304, 4096, 11008, 32, 32, None, 2048),
)
