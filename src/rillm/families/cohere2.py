"""Command R7B: Command R whose layers slide and turn, but every fourth does neither."""

from dataclasses import replace

from rillm.families.base import Key
from rillm.families.cohere import FAMILY as COHERE


def sliding_layers(raw, n_layers):
    pattern = raw.get("sliding_window_pattern") or 4
    return [(i + 1) % pattern != 0 for i in range(n_layers)]


def rope_layers(raw, sliding):
    return sliding


FAMILY = replace(
    COHERE,
    model_type="cohere2",
    gguf="cohere2",
    window=Key("sliding_window"),
    sliding_layers=sliding_layers,
    rope_layers=rope_layers,
    names_if={},
    rope_theta=10000.0,
)
