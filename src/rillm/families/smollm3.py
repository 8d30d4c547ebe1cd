"""SmolLM3: Llama some of whose layers do not turn; those slide where a window is asked for."""

from rillm.errors import MalformedFile
from rillm.families.base import Family, Key, all_but_every


def turns(keys, n_layers):
    if not keys.raw.get("no_rope_layers"):
        return all_but_every("no_rope_layer_interval", 4)(keys, n_layers)
    listed = keys.numbers("no_rope_layers")  # its 1 says that a layer does turn
    if len(listed) < n_layers:
        raise MalformedFile(
            f"{keys.file}: no_rope_layers tells of {len(listed)} layers, expected {n_layers}"
        )
    return [bool(x) for x in listed[:n_layers]]


def sliding_layers(keys, n_layers):
    return [not turn for turn in turns(keys, n_layers)]


def rope_layers(keys, sliding):
    return turns(keys, len(sliding))


FAMILY = Family(
    "smollm3",
    gguf="smollm3",
    gguf_pairs=True,
    tied=Key("tie_word_embeddings", True),
    rope_theta=2e6,
    rope_layers=rope_layers,
    window=Key("sliding_window"),
    window_if="use_sliding_window",
    sliding_layers=sliding_layers,
    sizes=(128256, 2048, 11008, 36, 16, 4, 32768),
)
