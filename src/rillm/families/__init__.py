"""The model types rillm knows, one file each; `family_of` finds one by name."""

from importlib import import_module

from rillm.errors import UnknownArchitecture
from rillm.families.base import Family

MODEL_TYPES = ("llama",)


def family_of(model_type: str) -> Family:
    """The family of a model type; raises UnknownArchitecture naming the known ones."""
    if model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise UnknownArchitecture(f"model type {model_type!r} is unknown; known are {known}")
    return import_module(f"rillm.families.{model_type}").FAMILY
