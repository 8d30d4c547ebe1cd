"""Command R: one LayerNorm for attention and MLP in parallel, interleaved turns, scaled logits."""

from rillm.families.base import LLAMA_NAMES, QK_NORM_NAMES, Family, Key, without

FAMILY = Family(
    "cohere",
    gguf="command-r",
    gguf_pairs=True,
    gguf_keys={"logit_scale": "logit_scale"},
    names=without(LLAMA_NAMES, "mlp_norm"),
    norm="layer",
    norm_epsilon=Key("layer_norm_eps", 1e-5),
    mlp_bias=False,
    tied=Key("tie_word_embeddings", True),
    parallel=True,
    rope_theta=500000.0,
    rotary_pairs=True,
    logit_scale=Key("logit_scale", 0.0625),
    qk_norm="heads",
    names_if={"use_qk_norm": QK_NORM_NAMES},
    sizes=(256000, 8192, 22528, 40, 64, None, 8192),
)
