"""Qwen2, Qwen2.5: Llama with biases on q, k, v; upper layers may slide."""

from rillm.families.base import Family, Key


def sliding_layers(raw, n_layers):
    """transformers 4 writes no layer_types: layers from max_window_layers on slide, if asked."""
    first = raw.get("max_window_layers", 28)
    return [bool(raw.get("use_sliding_window")) and i >= first for i in range(n_layers)]


FAMILY = Family(
    "qwen2",
    gguf="qwen2",
    attention_bias=True,
    output_bias=False,
    mlp_bias=False,
    window=Key("sliding_window"),
    sliding_layers=sliding_layers,
)
