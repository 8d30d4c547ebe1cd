"""When a text ends: by end token, by stop string, by length; one record says which."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rillm.decoding.sampling import Sampling
from rillm.decoding.text import Detokenizer


@dataclass(frozen=True)
class Finish:
    """Why a generation ended.

    Attributes
    ----------
    reason : "stop", "length" or "cancelled"
    cause : "eos", "stop_token", "stop_string", "max_new_tokens", "context" or "cancelled"
    detail : str, int or None
        The stop string, the id of the end token, or the number of tokens that was the limit.
    token_index : int
        The index among the new tokens of the one that ended it; -1 when there is none.
    """

    reason: str
    cause: str
    detail: str | int | None
    token_index: int


class StopStrings:
    """Finds stop strings in a text that grows, and holds back what may yet become one.

    After each push the text so far is looked at; of several stop strings in it the one that starts
    first wins, and the text ends before it.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, unsettled: str = "") -> str:
        """Take more text; return what can be shown. `unsettled` is looked at, but not taken."""
        text = self._held + text
        whole = text + unsettled
        starts = {stop: start for stop in self._stops if (start := whole.find(stop)) >= 0}
        if starts:
            self.found = min(starts, key=starts.__getitem__)
            self._held = ""
            return whole[: starts[self.found]]
        certain = self._certain(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The text held back, now that no more follows."""
        text, self._held = self._held, ""
        return text

    def _certain(self, text: str) -> int:
        """How many characters come before the longest end of `text` that begins a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)


class Ending:
    """The check after each token: the text it makes certain, and the finish record at the end.

    Parameters
    ----------
    tokenizer : Tokenizer
    eos_token_ids : collection of int
    options : Sampling
    limit : int
        The greatest number of new tokens.
    limit_cause : "max_new_tokens" or "context"
        Why that is the limit.
    """

    def __init__(
        self,
        tokenizer,
        eos_token_ids: Collection[int],
        options: Sampling,
        limit: int,
        limit_cause: str,
    ) -> None:
        self._text = Detokenizer(tokenizer)
        self._stops = StopStrings(options.stop)
        self._eos = frozenset(() if options.ignore_eos else eos_token_ids)
        self._stop_tokens = frozenset(options.stop_token_ids)
        self._limit, self._limit_cause = limit, limit_cause
        self._n_tokens = 0

    def check(self, token: int) -> tuple[str, Finish | None]:
        """Take the next token; a token that ends the text gives none itself."""
        index = self._n_tokens
        self._n_tokens += 1
        text = ""
        if token in self._eos:
            finish = Finish("stop", "eos", token, index)
        elif token in self._stop_tokens:
            finish = Finish("stop", "stop_token", token, index)
        else:
            text = self._stops.push(self._text.push(token), self._text.unsettled)
            if self._stops.found is not None:
                return text, Finish("stop", "stop_string", self._stops.found, index)
            if not self.full:
                return text, None
            finish = self.limit_reached()
        return text + self._stops.push(self._text.flush()) + self._stops.flush(), finish

    @property
    def full(self) -> bool:
        """Whether no further token is allowed."""
        return self._n_tokens >= self._limit

    def limit_reached(self) -> Finish:
        return Finish("length", self._limit_cause, self._limit, self._n_tokens - 1)
