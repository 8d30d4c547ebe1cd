"""How long a generation took: the prompt, the first token, the tokens after it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Timings:
    """What a generation took so far; the caller's time between pieces counts in `seconds` only.

    Attributes
    ----------
    n_prompt, n_generated : int
        Tokens of the prompt, and new ones.
    prefill_seconds : float
        For the whole prompt.
    time_to_first_token : float
        Seconds from the start until the first new token was there.
    decode_seconds : float
        For the new tokens after the first, which is the prompt's own.
    seconds : float
        From the start until now.
    """

    n_prompt: int = 0
    n_generated: int = 0
    prefill_seconds: float = 0.0
    time_to_first_token: float = 0.0
    decode_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        return _rate(self.n_prompt, self.prefill_seconds)

    @property
    def decode_tokens_per_second(self) -> float:
        return _rate(self.n_generated - 1, self.decode_seconds)


class Stopwatch:
    """Takes the times of one generation."""

    def __init__(self, n_prompt: int) -> None:
        self._n_prompt = n_prompt
        self._n_generated = 0
        self._started = self._resumed = perf_counter()
        self._prefill = self._first = self._decode = 0.0

    def prefilled(self) -> None:
        """The prompt is evaluated."""
        self._prefill = perf_counter() - self._started

    def resume(self) -> None:
        """The caller came back for another token."""
        self._resumed = perf_counter()

    def token(self) -> Timings:
        """One more token is there; the times until now."""
        now = perf_counter()
        self._n_generated += 1
        if self._n_generated == 1:
            self._first = now - self._started
        else:
            self._decode += now - self._resumed
        return Timings(
            self._n_prompt,
            self._n_generated,
            self._prefill,
            self._first,
            self._decode,
            now - self._started,
        )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0
