"""How long a generation took: the prompt, the first token, the tokens after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Timings:
    """What a generation took so far; the caller's time between pieces counts in `seconds` only.

    Attributes
    ----------
    n_prompt, n_generated : int
        Tokens of the prompt, and new ones.
    prefill_seconds : float
        For what was computed of the prompt.
    time_to_first_token : float
        Seconds from the start until the first new token was there.
    decode_seconds : float
        For the new tokens after the first of a completion, which is the prompt's own.
    seconds : float
        From the start until now.
    load_seconds : float
        What loading the model took; 0 where nobody said.
    bytes_per_token : int
        Of weights that a new token reads; 0 where nobody said.
    steps : sequence of float
        The seconds of each new token after the first of a completion.
    n_reused : int
        Tokens of the prompt that were known and not computed again.
    """

    n_prompt: int = 0
    n_generated: int = 0
    prefill_seconds: float = 0.0
    time_to_first_token: float = 0.0
    decode_seconds: float = 0.0
    seconds: float = 0.0
    load_seconds: float = 0.0
    bytes_per_token: int = 0
    steps: Sequence[float] = field(default=(), repr=False)
    n_reused: int = 0

    @property
    def prefill_tokens_per_second(self) -> float:
        return _rate(self.n_prompt - self.n_reused, self.prefill_seconds)

    @property
    def decode_tokens_per_second(self) -> float:
        return _rate(len(self.steps), self.decode_seconds)

    @property
    def gigabytes_per_second(self) -> float:
        """What decoding read of the weights; the cache is not counted."""
        return self.decode_tokens_per_second * self.bytes_per_token / 1e9

    @property
    def inter_token_seconds(self) -> dict[str, float]:
        """p50, p90 and p99 of `steps`: the smallest that so many per cent do not exceed."""
        ordered = sorted(self.steps)
        places = [-(-len(ordered) * each // 100) - 1 for each in PERCENTILES]
        return {
            f"p{each}": ordered[place] if ordered else 0.0
            for each, place in zip(PERCENTILES, places, strict=True)
        }

    def as_dict(self) -> dict[str, object]:
        """Plain numbers, the derived ones too, without the single steps."""
        figures = asdict(self)
        del figures["steps"]
        derived = "prefill_tokens_per_second", "decode_tokens_per_second", "gigabytes_per_second"
        figures |= {name: getattr(self, name) for name in derived}
        return figures | {"inter_token_seconds": self.inter_token_seconds}


class Stopwatch:
    """Takes the times of one generation."""

    def __init__(
        self,
        n_prompt: int,
        load_seconds: float = 0.0,
        bytes_per_token: int = 0,
        n_reused: int = 0,
    ) -> None:
        self._constant = {
            "n_prompt": n_prompt,
            "n_reused": n_reused,
            "load_seconds": load_seconds,
            "bytes_per_token": bytes_per_token,
        }
        self._n_generated = 0
        self._steps: list[float] = []
        self._prefill = self._first = self._decode = 0.0
        self.start()

    def start(self) -> None:
        """Now the work begins."""
        self.started = self._resumed = perf_counter()

    def prefilled(self) -> None:
        """The prompt is evaluated."""
        self._prefill = perf_counter() - self.started

    def resume(self) -> None:
        """The caller came back for another token."""
        self._resumed = perf_counter()

    def token(self, is_step: bool) -> None:
        """One more token is there; `is_step`: the model computed it after another."""
        now = perf_counter()
        self._n_generated += 1
        if is_step:
            self._steps.append(now - self._resumed)
            self._decode += self._steps[-1]
        elif self._n_generated == 1:
            self._first = now - self.started

    def timings(self) -> Timings:
        """The times until now."""
        return Timings(
            n_generated=self._n_generated,
            prefill_seconds=self._prefill,
            time_to_first_token=self._first,
            decode_seconds=self._decode,
            seconds=perf_counter() - self.started,
            steps=tuple(self._steps),
            **self._constant,
        )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0
