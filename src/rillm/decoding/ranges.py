"""Checks of option values: each gives the value in one form, or an error that says the range."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

BIAS_AT_MOST = 1e30  # float32 carries it, and what other options make of it


def integer(name: str, value: Any, lowest: int = 0, below: int | None = None) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected a whole number") from None
    if number < lowest or (below is not None and number >= below):
        span = f"{lowest} or more" if below is None else f"from {lowest} to {below - 1}"
        raise ValueError(f"{name} is {number}: expected {span}")
    return number


def number(name: str, value: Any, lowest: float = 0.0, highest: float = math.inf) -> float:
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        number = float(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected a number") from None
    except OverflowError:  # an int beyond all floats
        number = math.inf
    if not (math.isfinite(number) and lowest <= number <= highest):
        span = f"from {lowest:g} to {highest:g}"
        if highest == math.inf:
            span = "a finite number" + (f", {lowest:g} or more" if lowest > -math.inf else "")
        raise ValueError(f"{name} is {number}: expected {span}")
    return number


def count_or_off(name: str, value: Any, highest: int) -> int:
    """0 and -1 are off; what is beyond `highest` is no other than that."""
    return min(max(0, integer(name, value, lowest=-1)), highest)


def number_or_off(name: str, value: Any) -> float:
    """0 and -1 are off."""
    checked = number(name, value, lowest=-1.0)
    return 0.0 if checked == -1.0 else number(name, value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}: expected True or False")
    return bool(value)


def one_of(name: str, value: Any, values: tuple[int, ...]) -> int:
    if (checked := integer(name, value)) not in values:
        raise ValueError(f"{name} is {checked}: expected {' or '.join(map(str, values))}")
    return checked


def strings(name: str, value: Any) -> tuple[str, ...]:
    """A string or several, none of them empty."""
    try:
        strings = (value,) if isinstance(value, str) else tuple(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected a string or several") from None
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"{name} holds {string!r}: expected strings")
        if not string:
            raise ValueError(f"{name} holds an empty string, which is found everywhere")
    return strings


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """A token id or several."""
    return tuple(integer(name, each) for each in (value if _is_several(value) else (value,)))


def some_token_ids(name: str, value: Any) -> tuple[int, ...]:
    """At least one."""
    if not (ids := token_ids(name, value)):
        raise ValueError(f"{name} is empty: expected one token id or more")
    return ids


def words(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Strings, ids, or sequences of ids: a string stays, an id is a sequence of one."""
    checked: list[str | tuple[int, ...]] = []
    for word in value if _is_several(value) else (value,):
        checked += strings(name, word) if isinstance(word, str) else [token_ids(name, word)]
        if not checked[-1]:
            raise ValueError(f"{name} holds an empty sequence of ids")
    return tuple(checked)


def biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """A mapping from ids, which JSON writes as strings, to what is added to their logits.

    -inf forbids a token.
    """
    try:
        pairs = dict(value).items()
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}: expected a mapping from ids to numbers") from None
    checked: dict[int, float] = {}
    for token, bias in pairs:
        is_written = isinstance(token, str) and token.isascii() and token.isdigit()
        forbids = isinstance(bias, (float, np.floating)) and bias == -math.inf
        checked[integer(name, int(token) if is_written else token)] = (
            -math.inf if forbids else number(name, bias, -BIAS_AT_MOST, BIAS_AT_MOST)
        )
    return tuple(checked.items())


def callables(name: str, value: Any) -> tuple[Callable, ...]:
    functions = tuple(value) if _is_several(value) else (value,)
    for function in functions:
        if not callable(function):
            raise TypeError(f"{name} holds {function!r}: expected functions of (token_ids, logits)")
    return functions


def _is_several(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset, np.ndarray))
