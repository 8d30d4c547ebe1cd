"""The model types rillm knows, one file each; `family_of` finds one by name."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from rillm.errors import UnknownArchitecture
from rillm.families.base import Family

_NO_FAMILY = {"__init__", "base", "rope"}
MODEL_TYPES = tuple(
    sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in _NO_FAMILY)
)


def family_of(model_type: str | None, file: Path) -> Family:
    """The family of a model type; raises UnknownArchitecture naming the file and the known ones."""
    if model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise UnknownArchitecture(
            f"{file}: the model type is {model_type!r}, expected one of: {known}"
        )
    return import_module(f"rillm.families.{model_type}").FAMILY


def family_of_gguf(architecture: str, has: Callable[[str], bool], file: Path) -> Family:
    """The family of a GGUF architecture; `has` tells whether a key of the metadata is not 0.

    Raises UnknownArchitecture, naming the file and the known ones.
    """
    families = [family_of(model_type, file) for model_type in MODEL_TYPES]
    known = sorted({family.gguf for family in families if family.gguf})
    if architecture not in known:
        raise UnknownArchitecture(
            f"{file}: general.architecture is {architecture!r}, expected one of: {', '.join(known)}"
        )
    own = [family for family in families if family.gguf == architecture]
    marked = [family for family in own if family.gguf_if and has(family.gguf_if)]
    return (marked or [family for family in own if not family.gguf_if])[0]


def table() -> str:
    """The families as README shows them: a Markdown row each, from their files' first lines."""
    rows = ["| model type | what it is | in GGUF |", "|---|---|---|"]
    for model_type in MODEL_TYPES:
        module = import_module(f"rillm.families.{model_type}")
        architecture = f"`{module.FAMILY.gguf}`" if module.FAMILY.gguf else ""
        rows.append(f"| `{model_type}` | {module.__doc__.strip()} | {architecture} |")
    return "\n".join(rows)
