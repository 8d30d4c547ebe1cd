"""rillm decodes language models one token at a time on the CPU you have, exactly and fast."""

from typing import TYPE_CHECKING

from rillm import errors

if TYPE_CHECKING:
    from rillm.model import Model
    from rillm.session import Session

    __version__: str

__all__ = ["Model", "Session", "__version__", "errors"]


def __getattr__(name: str):
    """Imports what is asked for, when it is: a program that only may need a model does not wait."""
    if name == "Model":
        from rillm.model import Model as value
    elif name == "Session":
        from rillm.session import Session as value
    elif name == "__version__":
        from importlib.metadata import version

        value = version("rillm")
    else:
        raise AttributeError(f"module 'rillm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
