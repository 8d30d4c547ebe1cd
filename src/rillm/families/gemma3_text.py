"""Gemma 3: Gemma 2 with norms on q and k instead of caps, and another theta where layers slide."""

from rillm.families.base import QK_NORM_NAMES, Family, Key, all_but_every
from rillm.families.gemma2 import GEMMA2_NAMES, query_pre_attn_scalar


def gguf_omits(raw):
    return query_pre_attn_scalar(raw, layers_of_27b=62)


FAMILY = Family(
    "gemma3_text",
    gguf="gemma3",
    gguf_keys={"final_logit_softcapping": "final_logit_softcapping"},
    gguf_omits=gguf_omits,
    names=GEMMA2_NAMES | QK_NORM_NAMES,
    norm_offset=1.0,
    mlp_bias=False,
    activation=Key("hidden_activation", "gelu_pytorch_tanh"),
    tied=Key("tie_word_embeddings", True),
    rope_theta=1e6,
    sliding_theta=Key("rope_local_base_freq", 1e4),
    embedding_scale=Key("hidden_size", 0, power=0.5),
    attention_scale=Key("query_pre_attn_scalar", 256, power=-0.5),
    logit_softcap=Key("final_logit_softcapping", 0.0),
    window=Key("sliding_window"),
    sliding_layers=all_but_every("sliding_window_pattern", 6),
    defaults={"head_dim": 256, "sliding_window": 4096},
    refused={"use_bidirectional_attention": False},
    sizes=(262208, 2304, 9216, 26, 8, 4, 131072),
)
