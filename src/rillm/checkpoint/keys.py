"""Typed access to a JSON object; null means absent."""

import json
from pathlib import Path
from typing import Any

from rillm.errors import MalformedFile


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; MalformedFile if it is none."""
    try:
        raw = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MalformedFile(f"{file}: no valid JSON ({error})") from error
    if not isinstance(raw, dict):
        raise MalformedFile(f"{file}: expected a JSON object, got {type(raw).__name__}")
    return raw


def token_ids(file: Path, key: str, value: Any) -> tuple[int, ...]:
    """An id, a list of ids or null, as a tuple."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in ids):
        raise MalformedFile(f"{file}: {key} is {value!r}, expected an id or a list of ids")
    return tuple(ids)


class Keys:
    """The keys of one object of `file`; a wrong type or a missing key is a MalformedFile."""

    def __init__(self, file: Path, raw: dict[str, Any]):
        self.file, self.raw = file, raw

    def integer(self, key: str, default: int | None = None) -> int:
        if not -(1 << 63) <= (value := self._get(key, (int,), default)) < 1 << 63:
            raise MalformedFile(
                f"{self.file}: {key} is {value.bit_length()} bits long, expected at most 63"
            )
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """An integer that is at least 1."""
        if (value := self.integer(key, default)) < 1:
            raise MalformedFile(f"{self.file}: {key} is {value}, expected at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return self._float(key, self._get(key, (int, float), default))

    def flag(self, key: str, default: bool | None = None) -> bool:
        return self._get(key, (bool,), default)

    def text(self, key: str, default: str | None = None) -> str:
        return self._get(key, (str,), default)

    def numbers(self, key: str) -> tuple[float, ...]:
        values = self._get(key, (list,), None)
        if not all(type(value) in (int, float) for value in values):
            raise MalformedFile(f"{self.file}: {key} holds something that is no number")
        return tuple(self._float(key, value) for value in values)

    def like(self, key: str, default: Any) -> Any:
        """A value of the default's type; an integer passes for a number."""
        getter = {bool: self.flag, int: self.integer, float: self.number, str: self.text}
        return getter[type(default)](key, default)

    def object(self, key: str) -> dict[str, Any]:
        """An object; empty where it is absent."""
        return self._get(key, (dict,), {})

    def _float(self, key: str, value: int | float) -> float:
        try:
            return float(value)
        except OverflowError:
            raise MalformedFile(f"{self.file}: {key} is too large for a number") from None

    def _get(self, key: str, types: tuple[type, ...], default: Any) -> Any:
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        if type(value) not in types:
            names = " or ".join(t.__name__ for t in types)
            got = f"is {value!r}" if key in self.raw else "is missing"
            raise MalformedFile(f"{self.file}: {key} {got}, expected {names}")
        return value
