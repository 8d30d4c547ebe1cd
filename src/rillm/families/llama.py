"""Llama 1 to 3, SmolLM2, TinyLlama: RMSNorm, rotary GQA attention, SiLU-gated MLP."""

from rillm.families.base import GGUF_NAMES, Family

FAMILY = Family("llama", gguf_names=GGUF_NAMES, gguf_pairs=True)
