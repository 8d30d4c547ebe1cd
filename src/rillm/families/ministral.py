"""Ministral: Mistral some of whose layers see everything, as layer_types says."""

from dataclasses import replace

from rillm.families.mistral import FAMILY as MISTRAL

FAMILY = replace(MISTRAL, model_type="ministral", gguf=None, gguf_if=None)
