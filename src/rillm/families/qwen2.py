"""Qwen2, Qwen2.5: Llama with biases on q, k, v; upper layers may slide."""

from rillm.families.base import Family, Key


def sliding_layers(keys, n_layers):
    """transformers 4 writes no layer_types: layers from max_window_layers on slide."""
    first = keys.integer("max_window_layers", 28)
    return [i >= first for i in range(n_layers)]


FAMILY = Family(
    "qwen2",
    gguf="qwen2",
    attention_bias=True,
    output_bias=False,
    mlp_bias=False,
    window=Key("sliding_window"),
    window_if="use_sliding_window",
    defaults={"sliding_window": 4096},
    sliding_layers=sliding_layers,
    sizes=(151936, 4096, 22016, 32, 32, 32, 32768),
)
