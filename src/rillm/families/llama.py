"""Llama 1 to 3, SmolLM2, TinyLlama: RMSNorm, rotary GQA attention, SiLU-gated MLP."""

from rillm.families.base import Family

FAMILY = Family("llama", gguf="llama", gguf_pairs=True)
