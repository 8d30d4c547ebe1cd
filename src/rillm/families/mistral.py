"""Mistral: Llama whose layers all slide where sliding_window is given."""

from rillm.families.base import Family, Key

FAMILY = Family(
    "mistral",
    gguf="llama",
    gguf_if="attention.sliding_window",
    gguf_pairs=True,
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    window=Key("sliding_window"),
    defaults={"sliding_window": 4096},
    sizes=(32000, 4096, 14336, 32, 32, 8, 131072),
)
