"""The metadata of a GGUF file: values by key, their types checked when they are asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rillm.checkpoint import _strings
from rillm.errors import MalformedFile

# type number in the file: (name, struct format)
SCALARS = {
    0: ("u8", "<B"),
    1: ("i8", "<b"),
    2: ("u16", "<H"),
    3: ("i16", "<h"),
    4: ("u32", "<I"),
    5: ("i32", "<i"),
    6: ("f32", "<f"),
    7: ("bool", "<B"),
    10: ("u64", "<Q"),
    11: ("i64", "<q"),
    12: ("f64", "<d"),
}
_FORMATS = dict(SCALARS.values())
INTEGERS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
_REQUIRED: Any = object()
_SHOWN = 8  # values of an array that stand in errors


@dataclass(frozen=True)
class Array:
    """An array, still as bytes: stepping over a vocabulary is cheap, decoding it is not."""

    file: Path
    key: str
    kind: str  # "string" or a scalar's name
    count: int
    data: memoryview
    starts: np.ndarray | None = None  # of strings: see _strings

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        if self.kind == "string" or self.count > _SHOWN:
            return f"an array of {self.count} {self.kind}"
        return repr(self.tolist())

    def tolist(self) -> list:
        """The values; raises MalformedFile for a string that is not UTF-8."""
        if self.kind != "string":
            return self.numbers().tolist()
        try:
            return _strings.texts_of(self.data, self.starts)
        except UnicodeDecodeError as error:
            raise MalformedFile(
                f"{self.file}: {self.key}[{error.index}] is no UTF-8 ({error})"
            ) from error

    def numbers(self) -> np.ndarray:
        """Those of an array that is not of strings."""
        return np.frombuffer(bytes(self.data), _FORMATS[self.kind])

    def find(self, text: str) -> int | None:
        """Where a string stands among the others, if it does."""
        place = _strings.place_of(self.data, self.starts, text.encode())
        return None if place < 0 else place


class Metadata:
    """Typed access; MalformedFile for a key of another type, or absent without a default."""

    def __init__(self, file: Path, prefix: str = ""):
        self.file = file
        self.prefix = prefix  # of every key that is asked for
        self._values: dict[str, tuple[str, Any]] = {}

    def within(self, prefix: str) -> "Metadata":
        """The same metadata, of which only keys with this prefix are asked for, without it."""
        part = Metadata(self.file, prefix)
        part._values = self._values
        return part

    def __contains__(self, key: str) -> bool:
        return self.prefix + key in self._values

    def __iter__(self):
        return iter(self._values)

    def add(self, key: str, kind: str, value: Any) -> None:
        if key in self._values:
            raise MalformedFile(f"{self.file}: the metadata key {key} comes twice")
        self._values[key] = kind, value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        return self._get(key, ("string",), default)

    def integer(self, key: str, default: Any = _REQUIRED, kinds=INTEGERS) -> int:
        return self._get(key, kinds, default)

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        return self._get(key, ("f32", "f64"), default)

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        return self._get(key, ("bool",), default)

    def value(self, key: str, default: Any = _REQUIRED) -> Any:
        """Of whatever kind it is; of an array the `Array`."""
        return self._get(key, ("string", "array", *_FORMATS), default)

    def array(self, key: str, kinds: tuple[str, ...], default: Any = _REQUIRED) -> Array:
        array = self._get(key, ("array",), default)
        if isinstance(array, Array) and array.kind not in kinds:
            raise self._wrong(key, f"an array of {array.kind}", " or ".join(kinds))
        return array

    def _get(self, key: str, kinds: tuple[str, ...], default: Any) -> Any:
        if key not in self:
            if default is _REQUIRED:
                raise MalformedFile(f"{self.file}: the metadata has no {self.prefix}{key}")
            return default
        kind, value = self._values[self.prefix + key]
        if kind not in kinds:
            raise self._wrong(key, kind, " or ".join(kinds))
        return value

    def _wrong(self, key: str, got: str, expected: str) -> MalformedFile:
        return MalformedFile(f"{self.file}: {self.prefix}{key} is {got}, expected {expected}")
