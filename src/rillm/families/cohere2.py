"""Command R7B: Command R whose layers slide and turn, but every fourth does neither."""

from dataclasses import replace

from rillm.families.base import Key, all_but_every
from rillm.families.cohere import FAMILY as COHERE


def rope_layers(keys, sliding):
    return sliding


FAMILY = replace(
    COHERE,
    model_type="cohere2",
    gguf="cohere2",
    window=Key("sliding_window"),
    defaults={"sliding_window": 4096},
    sliding_layers=all_but_every("sliding_window_pattern", 4),
    rope_layers=rope_layers,
    names_if={},
    rope_theta=10000.0,
)
