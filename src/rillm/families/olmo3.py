"""OLMo 3: OLMo 2 most of whose layers slide; a scaling of positions is for the others."""

from dataclasses import replace

from rillm.families.base import Key
from rillm.families.olmo2 import FAMILY as OLMO2


def sliding_layers(keys, n_layers):
    return [(i + 1) % 4 != 0 for i in range(n_layers)]


FAMILY = replace(
    OLMO2,
    model_type="olmo3",
    gguf_if="attention.sliding_window",
    window=Key("sliding_window"),
    sliding_layers=sliding_layers,
    rope_theta=500000.0,
    sliding_theta=Key("rope_theta", 500000.0),
    defaults={"sliding_window": 4096},
)
