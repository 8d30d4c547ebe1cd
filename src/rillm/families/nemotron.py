"""Nemotron, Minitron: LayerNorm stored as w − 1, squared ReLU without gate, half a head turning."""

from rillm.families.base import LLAMA_NAMES, Family, Key, without

FAMILY = Family(
    "nemotron",
    gguf="nemotron",
    names=without(LLAMA_NAMES, "gate"),
    norm="layer",
    norm_bias=True,
    norm_offset=1.0,
    norm_epsilon=Key("norm_eps", 1e-5),
    activation=Key("hidden_act", "relu2"),
    rotary_share=Key("partial_rotary_factor", 0.5),
    sizes=(256000, 6144, 24576, 32, 48, None, 4096),
)
