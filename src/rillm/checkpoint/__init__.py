"""Model files: found or fetched, opened, and handed on as names, shapes and bytes."""

from rillm.checkpoint.checkpoint import Checkpoint, open_checkpoint
from rillm.checkpoint.config import Config
from rillm.checkpoint.mapped import Tensor
from rillm.checkpoint.rope_config import Rope

__all__ = ["Checkpoint", "Config", "Rope", "Tensor", "open_checkpoint"]
