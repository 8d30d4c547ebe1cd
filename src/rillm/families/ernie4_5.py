"""ERNIE 4.5: Llama turning by interleaved pairs, biases on request."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "ernie4_5",
    gguf="ernie4_5",
    gguf_pairs=True,
    norm_epsilon=Key("rms_norm_eps", 1e-5),
    attention_bias=Key("use_bias", False),
    output_bias=Key("use_bias", False),
    mlp_bias=Key("use_bias", False),
    tied=Key("tie_word_embeddings", True),
    rope_theta=500000.0,
    rotary_pairs=True,
    defaults={"head_dim": 128},
    sizes=(103424, 1024, 3072, 18, 16, 2, 131072),
)
