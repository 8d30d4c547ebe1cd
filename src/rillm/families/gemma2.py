"""Gemma 2: norms before and after, soft caps, every other layer slides."""

from rillm.families.base import LLAMA_NAMES, Family, Key

GEMMA2_NAMES = LLAMA_NAMES | {
    "attention_post_norm": "model.layers.{}.post_attention_layernorm.weight",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm.weight",
    "mlp_post_norm": "model.layers.{}.post_feedforward_layernorm.weight",
}


def sliding_layers(keys, n_layers):
    return [i % 2 == 0 for i in range(n_layers)]


def query_pre_attn_scalar(raw, layers_of_27b):
    """By which scores are scaled: head_dim, in the 27B a head's share of the model's dimensions."""
    share = raw["hidden_size"] // max(raw["num_attention_heads"], 1)
    of_27b = raw["num_hidden_layers"] == layers_of_27b
    return {"query_pre_attn_scalar": share if of_27b else raw["head_dim"] or share}


def gguf_omits(raw):
    window = {"sliding_window": raw["sliding_window"] or 4096}  # which the first files leave out
    return query_pre_attn_scalar(raw, layers_of_27b=46) | window


FAMILY = Family(
    "gemma2",
    gguf="gemma2",
    gguf_keys={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    gguf_omits=gguf_omits,
    names=GEMMA2_NAMES,
    norm_offset=1.0,
    mlp_bias=False,
    activation=Key("hidden_activation", "gelu_pytorch_tanh"),
    tied=Key("tie_word_embeddings", True),
    embedding_scale=Key("hidden_size", 0, power=0.5),
    attention_scale=Key("query_pre_attn_scalar", 256, power=-0.5),
    attention_softcap=Key("attn_logit_softcapping", 0.0),
    logit_softcap=Key("final_logit_softcapping", 0.0),
    window=Key("sliding_window"),
    sliding_layers=sliding_layers,
    defaults={
        "head_dim": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    sizes=(256000, 2304, 9216, 26, 8, 4, 8192),
)
