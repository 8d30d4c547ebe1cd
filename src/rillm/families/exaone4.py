"""EXAONE 4: norms after, and of each head; where layers slide, only those turn."""

from rillm.families.base import LLAMA_NAMES, POST_NORM_NAMES, QK_NORM_NAMES, Family, Key, without


def sliding_layers(raw, n_layers):
    """The pattern is a number, or letters of which L slides; the last layer never does."""
    pattern = raw.get("sliding_window_pattern") or 4
    if isinstance(pattern, str):
        slides = [pattern[i % len(pattern)] == "L" for i in range(n_layers)]
    else:
        slides = [(i + 1) % pattern != 0 for i in range(n_layers)]
    return [*slides[:-1], False]


def rope_layers(raw, sliding):
    return sliding if raw.get("sliding_window") else [True] * len(sliding)


FAMILY = Family(
    "exaone4",
    gguf="exaone4",
    names=without(LLAMA_NAMES, "attention_norm", "mlp_norm") | POST_NORM_NAMES | QK_NORM_NAMES,
    norm_epsilon=Key("rms_norm_eps", 1e-5),
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    window=Key("sliding_window"),
    sliding_layers=sliding_layers,
    rope_layers=rope_layers,
)
