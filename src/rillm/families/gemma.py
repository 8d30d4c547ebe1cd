"""Gemma: Llama with tied, scaled embeddings, norms stored as w − 1, GELU."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "gemma",
    gguf="gemma",
    norm_offset=1.0,
    mlp_bias=False,
    activation=Key("hidden_act", "gelu_pytorch_tanh"),
    activation_names={"gelu": "gelu_pytorch_tanh"},  # as the first files have it
    tied=Key("tie_word_embeddings", True),
    embedding_scale=Key("hidden_size", 0, power=0.5),
    defaults={"head_dim": 256},
    refused={"use_bidirectional_attention": False},
    sizes=(256000, 3072, 24576, 28, 16, 16, 8192),
)
