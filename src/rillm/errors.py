"""Every error rillm raises on purpose; each also derives from the builtin a caller would expect."""


class RillmError(Exception):
    """The parent of all."""

    def __str__(self) -> str:
        # KeyError's own __str__ shows the repr of its argument; these are words to be read.
        return Exception.__str__(self)


class CheckpointError(RillmError):
    """A model could not be loaded."""


class ModelNotFound(CheckpointError, FileNotFoundError):
    """Nothing is at that path or of that name."""


class MissingShard(CheckpointError, FileNotFoundError):
    """A file that the index names is not there."""


class TruncatedFile(CheckpointError):
    """A file is shorter than its header says."""


class MalformedFile(CheckpointError, ValueError):
    """A file breaks its format's rules."""


class MissingTensor(CheckpointError, KeyError):
    """A tensor that the model needs is in no file."""


class UnexpectedTensor(CheckpointError, ValueError):
    """A file holds a tensor that nobody uses."""


class ShapeMismatch(CheckpointError, ValueError):
    """A tensor has not the shape that the config asks for."""


class UnsupportedTensorKind(CheckpointError, ValueError):
    """A tensor is stored in a dtype or quantization that is not read yet."""


class UnsupportedTokenizer(CheckpointError, ValueError):
    """The tokenizer is of a kind that is not read yet."""


class UnsupportedConfig(CheckpointError, ValueError):
    """The config asks for something that is not computed yet."""


class UnknownRopeType(UnsupportedConfig):
    """The rotary embedding is of an unknown kind: guessing would give fluent nonsense."""


class UnknownArchitecture(UnsupportedConfig):
    """No family of that name."""


class NotEnoughMemory(CheckpointError, MemoryError):
    """The model needs more memory than is free; said before anything is loaded."""


class DownloadError(RillmError, OSError):
    """A download failed; nothing half-written is left."""


class ChecksumMismatch(DownloadError):
    """A downloaded file is not the one that was pinned."""


class SessionBusy(RillmError, RuntimeError):
    """A second call came while the session was still computing the first."""


class SessionClosed(RillmError, RuntimeError):
    """The session or its model was closed."""


class ContextFull(RillmError, RuntimeError):
    """The tokens would not fit into the session's context."""


class NotHeld(RillmError, ValueError):
    """A session cannot go back that far: a sliding layer no longer has what would be seen there."""


class SessionFileError(RillmError, ValueError):
    """A saved session is damaged, or is of another model, format or version."""


class BadLogits(RillmError, ArithmeticError):
    """The logits hold NaN or infinity, or nothing but minus infinity."""


class TemplateError(RillmError, ValueError):
    """A chat template is wrong, refused the messages, or went over its budget."""


class UnsupportedISA(RillmError, ValueError):
    """The instruction set asked for is unknown, or this machine lacks it."""


class UnsupportedRow(RillmError, NotImplementedError):
    """A row of a step asks for something that the engine does not do yet."""
