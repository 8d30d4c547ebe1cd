"""StarCoder2: LayerNorm, biases, an MLP without gate; all layers slide where a window is given."""

from rillm.families.base import LLAMA_NAMES, Family, Key, without

FAMILY = Family(
    "starcoder2",
    gguf="starcoder2",
    names=without(LLAMA_NAMES, "gate")
    | {
        "up": "model.layers.{}.mlp.c_fc.weight",
        "down": "model.layers.{}.mlp.c_proj.weight",
    },
    norm="layer",
    norm_bias=True,
    norm_epsilon=Key("norm_epsilon", 1e-5),
    attention_bias=Key("use_bias", True),
    output_bias=Key("use_bias", True),
    mlp_bias=Key("use_bias", True),
    activation=Key("hidden_act", "gelu_pytorch_tanh"),
    tied=Key("tie_word_embeddings", True),
    window=Key("sliding_window"),
    reads_layer_types=False,
    sizes=(49152, 3072, 12288, 30, 24, 2, 4096),
)
