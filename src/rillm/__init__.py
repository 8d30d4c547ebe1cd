"""rillm decodes language models one token at a time on the CPU you have, exactly and fast."""

from importlib.metadata import version as _version

from rillm import errors
from rillm.model import Model
from rillm.session import Session

__version__ = _version("rillm")
__all__ = ["Model", "Session", "__version__", "errors"]
