"""When a text ends: by its own end, by a stop, by a limit, by the caller; one record says which."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import perf_counter

from rillm.decoding.options import Sampling
from rillm.decoding.text import Detokenizer

CAUSES = {  # in the order in which they are checked
    "eos": "stop",
    "stop_token": "stop",
    "stop_string": "stop",
    "max_new_tokens": "length",
    "context": "length",
    "max_time": "length",
    "cancelled": "cancelled",
}


@dataclass(frozen=True)
class Finish:
    """Why a generation ended.

    Attributes
    ----------
    reason : "stop", "length" or "cancelled"
    cause : str
        One of `CAUSES`.
    detail : str, int, float or None
        The stop string, the id of the end token, or the limit: tokens or seconds.
    token_index : int
        The index among the new tokens of the one that ended it; -1 when there is none.
    character_index : int
        Where in the text: where the stop string begins, else the text's length.
    """

    reason: str
    cause: str
    detail: str | int | float | None
    token_index: int
    character_index: int


class StopStrings:
    """Finds stop strings in a text that grows, and holds back what may yet become one.

    Each push is searched for the stop strings that it completes; of several the one that starts
    first wins, of those the shortest. The text ends before it, or with `include` behind it. Text
    that is not settled yet is searched when it comes, and then not again.

    Attributes
    ----------
    found : str or None
    begin : int
        Where in the text it begins.
    n_shown : int
        Characters shown so far.
    """

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self._ahead: list[str] = []  # unsettled text, searched already
        self._tail = ""  # of held and unsettled text, what a stop string may still begin in
        self.found: str | None = None
        self.begin = self.n_shown = 0

    def push(self, text: str, unsettled: str = "", searching: bool = True) -> str:
        """Take more text; return what can be shown.

        `unsettled` is only looked at: it comes again as the beginning of `text`, or as other text.
        """
        shown = self._settle(text, searching) if text else ""
        if unsettled and self._stops and self.found is None:
            shown += self._look_ahead(unsettled, searching)
        return shown

    def flush(self) -> str:
        """The text held back, now that no more follows."""
        text, self._held = self._held, ""
        self.n_shown += len(text)
        return text

    def _settle(self, text: str, searching: bool) -> str:
        ahead = "".join(self._ahead)
        searched = len(self._held) + len(ahead) * text.startswith(ahead)
        self._ahead.clear()
        text = self._held + text
        if searching and (found := self._first(text, searched)):
            return self._stop(text, *found)
        certain = self._certain(text)
        self._held = self._tail = text[certain:]
        self.n_shown += certain
        return text[:certain]

    def _look_ahead(self, unsettled: str, searching: bool) -> str:
        self._ahead.append(unsettled)
        searched, window = len(self._tail), self._tail + unsettled
        if searching and (found := self._first(window, searched)):
            whole = "".join([self._held, *self._ahead])
            return self._stop(whole, len(whole) - len(window) + found[0], *found[1:])
        self._tail = window[max(len(window) - self._longest + 1, 0) :]
        return ""

    def _first(self, text: str, searched: int) -> tuple[int, int, str] | None:
        """(start, length, string) of the first stop string that ends behind text[:searched]."""
        starts = [
            (text.find(stop, max(searched - len(stop) + 1, 0)), len(stop), stop)
            for stop in self._stops
        ]
        return min((each for each in starts if each[0] >= 0), default=None)

    def _stop(self, text: str, start: int, length: int, found: str) -> str:
        self.found, self.begin, self._held = found, self.n_shown + start, ""
        return text[: start + length * self._include]

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
    deadline : float, optional
        By `perf_counter`, of `options.max_time`.
    is_cancelled : callable, optional
        Whether the caller wants no more.
    """

    def __init__(
        self,
        tokenizer,
        eos_token_ids: Collection[int],
        options: Sampling,
        limit: int,
        limit_cause: str,
        deadline: float | None = None,
        is_cancelled: Callable[[], bool] = bool,
    ) -> None:
        self._text = Detokenizer(tokenizer)
        self._stops = StopStrings(options.stop, options.include_stop_str_in_output)
        self._eos = frozenset(() if options.ignore_eos else eos_token_ids)
        self._stop_tokens = frozenset(options.stop_token_ids)
        self._limit, self._limit_cause, self._least = limit, limit_cause, options.min_new_tokens
        self._max_time, self._deadline = options.max_time, deadline
        self._is_cancelled = is_cancelled
        self._n_tokens = 0

    def check(self, token: int) -> tuple[str, Finish | None]:
        """Take the next token; a token that ends the text gives none itself."""
        self._n_tokens += 1
        if token in self._eos:
            return self.end("eos", token)
        if token in self._stop_tokens:
            return self.end("stop_token", token)
        text = self._search(self._text.push(token), self._text.unsettled)
        if self._stops.found is not None:
            return text, self._stopped()
        if (limit := self.limit() or self.lateness()) is None:
            return text, None
        rest, finish = self.end(*limit)
        return text + rest, finish

    def limit(self) -> tuple[str, int] | None:
        """(cause, detail) if no further token is allowed."""
        return (self._limit_cause, self._limit) if self._n_tokens >= self._limit else None

    def lateness(self) -> tuple[str, float] | None:
        """(cause, detail) if the time is over."""
        is_late = self._deadline is not None and perf_counter() >= self._deadline
        return ("max_time", self._max_time) if is_late else None

    def interruption(self) -> tuple[str, float | None] | None:
        """(cause, detail) if there is no reason to compute any further."""
        return ("cancelled", None) if self._is_cancelled() else self.lateness()

    def end(self, cause: str, detail: str | int | float | None) -> tuple[str, Finish]:
        """The text still held, and the record."""
        text = self._search(self._text.flush())
        if self._stops.found is not None:
            return text, self._stopped()
        text += self._stops.flush()
        return text, self._finish(cause, detail, self._stops.n_shown)

    def _search(self, text: str, unsettled: str = "") -> str:
        return self._stops.push(text, unsettled, searching=self._n_tokens >= self._least)

    def _stopped(self) -> Finish:
        return self._finish("stop_string", self._stops.found, self._stops.begin)

    def _finish(self, cause: str, detail: str | int | float | None, character: int) -> Finish:
        return Finish(CAUSES[cause], cause, detail, self._n_tokens - 1, character)
