"""Qwen3: Qwen2 without biases, with a norm on each head of q and k."""

from rillm.families.base import LLAMA_NAMES, QK_NORM_NAMES, Family, Key
from rillm.families.qwen2 import sliding_layers

FAMILY = Family(
    "qwen3",
    gguf="qwen3",
    names=LLAMA_NAMES | QK_NORM_NAMES,
    mlp_bias=False,
    window=Key("sliding_window"),
    window_if="use_sliding_window",
    defaults={"head_dim": 128, "sliding_window": 4096},
    sliding_layers=sliding_layers,
    sizes=(151936, 4096, 22016, 32, 32, 32, 32768),
)
