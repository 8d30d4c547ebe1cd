"""SmolLM3: Llama some of whose layers do not turn; those slide where a window is asked for."""

from rillm.families.base import Family, Key


def turns(raw, n_layers):
    listed = raw.get("no_rope_layers")  # its 1 says that a layer does turn
    interval = raw.get("no_rope_layer_interval") or 4
    return [bool(x) for x in listed] if listed else [(i + 1) % interval for i in range(n_layers)]


def sliding_layers(raw, n_layers):
    return [bool(raw.get("use_sliding_window")) and not t for t in turns(raw, n_layers)]


def rope_layers(raw, sliding):
    return turns(raw, len(sliding))


FAMILY = Family(
    "smollm3",
    gguf="smollm3",
    gguf_pairs=True,
    tied=Key("tie_word_embeddings", True),
    rope_theta=2e6,
    rope_layers=rope_layers,
    window=Key("sliding_window"),
    sliding_layers=sliding_layers,
)
