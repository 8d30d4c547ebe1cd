"""What the user may ask of sampling, checked at the door; the arithmetic is the engine's, in C."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rillm.engine import _engine

_ALIASES = {"max_tokens": "max_new_tokens"}
_SEEDS = 1 << 64  # the key of the noise is 64 bits wide


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The options of one generation, in the names of Hugging Face and vLLM.

    Parameters
    ----------
    max_new_tokens : int, optional
        At most so many tokens; 0 is allowed; None: until the text ends or the context is full.
    temperature : float
        0 (greedy) or more.
    top_k : int
        Sample among the k likeliest tokens; 0 or -1: among all.
    top_p : float
        Sample among the fewest tokens whose probabilities sum to top_p; from 0 (greedy) to 1 (all).
    seed : int, optional
        From 0 to 2**64 - 1; None: the operating system draws one, and the result tells it.
    stop : str or sequence of str
        Strings that end the text; they are not part of it.
    stop_token_ids : int or sequence of int
        Tokens that end the text beside the model's own.
    ignore_eos : bool
        Go on past the model's own end tokens.

    Raises
    ------
    TypeError
        A value of the wrong type.
    ValueError
        A value out of its range.
    """

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checked = {
            "max_new_tokens": _optional_integer("max_new_tokens", self.max_new_tokens),
            "temperature": _number("temperature", self.temperature, math.inf),
            "top_k": max(0, _integer("top_k", self.top_k, lowest=-1)),
            "top_p": _number("top_p", self.top_p, 1.0),
            "seed": _optional_integer("seed", self.seed, below=_SEEDS),
            "stop": _strings("stop", self.stop),
            "stop_token_ids": _integers("stop_token_ids", self.stop_token_ids),
            "ignore_eos": bool(self.ignore_eos),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_options(cls, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Sampling:
        """The options as a user wrote them, over a model's generation_config.json.

        The file counts only where it says `do_sample: true`, and never for a length; an option that
        is None counts as not given.

        Raises
        ------
        TypeError
            An unknown option; the message names it and the known ones.
        """
        known = [field.name for field in fields(cls)]
        chosen: dict[str, Any] = {}
        if defaults.get("do_sample"):
            chosen["temperature"] = 1.0
            for name in ("temperature", "top_k", "top_p"):
                if defaults.get(name) is not None:
                    chosen[name] = defaults[name]
        given: dict[str, str] = {}
        for option, value in options.items():
            name = _ALIASES.get(option, option)
            if name not in known:
                raise TypeError(f"unknown option {option!r}; known are {', '.join(known)}")
            if value is None:
                continue
            if name in given:
                raise TypeError(f"{given[name]} and {option} are the same option: give one of them")
            given[name] = option
            chosen[name] = value
        return cls(**chosen)


def sample(
    logits: np.ndarray, options: Sampling, seed: int, index: int, completion: int = 0
) -> int:
    """The token that these logits, this seed and this index give; a pure function.

    Parameters
    ----------
    logits : float32 array [vocab_size]
    options : Sampling
    seed : int
    index : int
        The token's index among all tokens its session ever held.
    completion : int
        Which of several completions of one prompt.

    Raises
    ------
    BadLogits
        NaN or +inf among the logits, or nothing but -inf.
    """
    top_k = options.top_k if options.top_k < len(logits) else 0
    return _engine.sample(
        logits, options.temperature, top_k, options.top_p, seed, index, completion
    )


def _integer(name: str, value: Any, lowest: int = 0, below: int | None = None) -> int:
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


def _optional_integer(name: str, value: Any, below: int | None = None) -> int | None:
    return None if value is None else _integer(name, value, below=below)


def _number(name: str, value: Any, highest: float) -> float:
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        number = float(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected a number") from None
    except OverflowError:  # an int beyond all floats
        number = math.inf
    if not (math.isfinite(number) and 0.0 <= number <= highest):
        span = "a finite number, 0 or more" if highest == math.inf else f"from 0 to {highest:g}"
        raise ValueError(f"{name} is {number}: expected {span}")
    return number


def _strings(name: str, value: Any) -> tuple[str, ...]:
    try:
        strings = (value,) if isinstance(value, str) else tuple(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected a string or several") from None
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"{name} holds {string!r}: expected strings")
        if not string:
            raise ValueError(f"{name} holds an empty string, which would end every text at once")
    return strings


def _integers(name: str, value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, (list, tuple, set, frozenset, np.ndarray)) else (value,)
    return tuple(_integer(name, each) for each in values)
