"""The model types rillm knows, one file each; `family_of` finds one by name."""

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


def table() -> str:
    """The families as README shows them: a Markdown row each, from their files' first lines."""
    rows = ["| model type | what it is | from GGUF |", "|---|---|---|"]
    for model_type in MODEL_TYPES:
        module = import_module(f"rillm.families.{model_type}")
        gguf = "yes" if module.FAMILY.gguf_names else ""
        rows.append(f"| `{model_type}` | {module.__doc__.strip()} | {gguf} |")
    return "\n".join(rows)
