"""rillm decodes language models one token at a time on the CPU you have, exactly and fast."""

from rillm import errors
from rillm.model import Model
from rillm.session import Session

__version__ = "0.1.0"
__all__ = ["Model", "Session", "__version__", "errors"]
