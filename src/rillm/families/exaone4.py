"""EXAONE 4: norms after, and of each head; where layers slide, only those turn."""

from rillm.families.base import (
    LLAMA_NAMES,
    POST_NORM_NAMES,
    QK_NORM_NAMES,
    Family,
    Key,
    all_but_every,
    without,
)


def sliding_layers(keys, n_layers):
    """The pattern is a number, or letters of which L slides, but for the last layer."""
    if not isinstance(pattern := keys.raw.get("sliding_window_pattern"), str) or not pattern:
        return all_but_every("sliding_window_pattern", 4)(keys, n_layers)
    return [pattern[i % len(pattern)] == "L" for i in range(n_layers - 1)] + [False]


def rope_layers(keys, sliding):
    return sliding if keys.raw.get("sliding_window") else [True] * len(sliding)


FAMILY = Family(
    "exaone4",
    gguf="exaone4",
    names=without(LLAMA_NAMES, "attention_norm", "mlp_norm") | POST_NORM_NAMES | QK_NORM_NAMES,
    norm_epsilon=Key("rms_norm_eps", 1e-5),
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    window=Key("sliding_window"),
    defaults={"sliding_window": 4096},
    sliding_layers=sliding_layers,
    rope_layers=rope_layers,
    sizes=(102400, 4096, 16384, 32, 32, 32, 2048),
)
