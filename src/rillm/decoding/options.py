"""Everything a user may ask of one generation: one frozen record, checked at the door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from rillm.decoding import ranges
from rillm.decoding.order import sampler_order, steps

_ANY_VOCABULARY = 1 << 31
ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
_ALWAYS_FROM_FILE = ("repetition_penalty", "no_repeat_ngram_size")  # of generation_config.json
_WHEN_SAMPLING_FROM_FILE = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
)


def _option(default: Any, check: Callable[..., Any], **limits: Any) -> Any:
    return field(default=default, metadata={"check": partial(check, **limits)})


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The options of one generation, in the names of Hugging Face and vLLM.

    First the logits are adjusted, in this order: logit_bias, repetition, frequency and presence
    penalties, dry, no_repeat_ngram_size, bad_words, allowed_token_ids, min_new_tokens,
    logits_processors. Then the filters narrow the choice, in `sampler_order`. Then one of the kept
    tokens is drawn. At temperature 0 the filters have no say: the largest adjusted logit is taken.

    Parameters
    ----------
    max_new_tokens : int, optional
        At most so many tokens; 0 is allowed; None: until the text ends or the context is full.
    min_new_tokens : int
        No end token, stop token or stop string before so many.
    max_time : float, optional
        Seconds from the start, the prompt's included, after which no more tokens are made.
    stop : str or sequence of str
        Strings that end the text; they are not part of it, unless `include_stop_str_in_output`.
        Special tokens are no text: `stop_token_ids` takes them.
    stop_token_ids : int or sequence of int
        Tokens that end the text beside the model's own.
    ignore_eos : bool
        Go on past the model's own end tokens.
    temperature : float
        0 (greedy) or more.
    dynatemp_range, dynatemp_exponent : float
        Temperature from `temperature - range` where one token is certain to `temperature + range`
        where all are alike: in between by the power `exponent` of the entropy's share of its
        greatest value.
    top_k : int
        The k likeliest tokens; 0 or -1: all. On a tie lower ids stay, exactly k.
    top_p : float
        The fewest tokens whose probabilities sum to top_p; from 0 (greedy) to 1 (all).
    min_p : float
        Tokens with at least this share of the largest probability.
    typical_p : float
        The fewest tokens of total probability typical_p whose surprise is nearest to the entropy.
    epsilon_cutoff : float
        Tokens of at least this probability.
    eta_cutoff : float
        The same with min(eta, sqrt(eta) · exp(-entropy)).
    top_n_sigma : float
        Tokens whose logit is within so many standard deviations of the largest; 0 or -1: all.
    xtc_probability, xtc_threshold : float
        With this probability, of the tokens that reach the threshold only the least likely stays.
    mirostat_mode : 0 or 2
        2: tokens whose surprise is below a limit that is steered so that the surprise of the
        chosen ones is `mirostat_tau` bits; `mirostat_eta` is the rate.
    min_keep : int
        No filter leaves fewer tokens (but temperature 0).
    sampler_order : "hf", "llama.cpp", "mlx" or sequence of names
        See `rillm.decoding.order`.
    repetition_penalty : float
        Divides positive logits and multiplies negative ones of tokens in the prompt or the text.
    presence_penalty, frequency_penalty : float
        Taken from the logits of tokens in the new text: once, and for each time.
    repeat_last_n : int
        These three penalties look at so many of the last tokens (as llama.cpp's); -1: at all.
    dry_multiplier, dry_base, dry_allowed_length, dry_sequence_breakers
        multiplier · base ** (length - allowed_length) is taken from the logit of a token that would
        make a repeated run of `length` tokens one longer; no run goes past a breaker.
    no_repeat_ngram_size : int
        No run of so many tokens comes twice; 0: off.
    logit_bias : mapping from int to float
        Added to logits, from -1e30 to 1e30; -inf forbids a token.
    bad_words : sequence of str, int or sequence of int
        Never written: strings as they are tokenized, alone and after a space; or tokens.
    allowed_token_ids : sequence of int, optional
        Only these.
    logits_processors : callable or sequence of callables
        Called as (token_ids, logits), or as (logits) if it takes one argument: an int32 array of
        prompt and text, which is not to be changed, and float32 [vocab_size]. It changes logits in
        place, or returns others.
    seed : int, optional
        From 0 to 2**64 - 1; None: the operating system draws one, and the result tells it.
    n : int
        Completions of one prompt, which is evaluated once; they differ by their noise.
    logprobs : int, optional
        With each token its log-probability by the model alone, and those of so many likeliest ones.
    prompt_logprobs : int, optional
        The same for the tokens of the prompt.

    Raises
    ------
    TypeError
        A value of the wrong type.
    ValueError
        A value out of its range, or two that contradict each other.
    """

    max_new_tokens: int | None = _option(None, ranges.integer)
    min_new_tokens: int = _option(0, ranges.integer)
    max_time: float | None = _option(None, ranges.number)
    stop: tuple[str, ...] = _option((), ranges.strings)
    stop_token_ids: tuple[int, ...] = _option((), ranges.token_ids)
    ignore_eos: bool = _option(False, ranges.flag)
    include_stop_str_in_output: bool = _option(False, ranges.flag)
    temperature: float = _option(0.0, ranges.number)
    dynatemp_range: float = _option(0.0, ranges.number)
    dynatemp_exponent: float = _option(1.0, ranges.number)
    top_k: int = _option(0, ranges.count_or_off, highest=_ANY_VOCABULARY)
    top_p: float = _option(1.0, ranges.number, highest=1.0)
    min_p: float = _option(0.0, ranges.number, highest=1.0)
    typical_p: float = _option(1.0, ranges.number, highest=1.0)
    epsilon_cutoff: float = _option(0.0, ranges.number, highest=1.0)
    eta_cutoff: float = _option(0.0, ranges.number, highest=1.0)
    top_n_sigma: float = _option(0.0, ranges.number_or_off)
    xtc_probability: float = _option(0.0, ranges.number, highest=1.0)
    xtc_threshold: float = _option(0.1, ranges.number, highest=1.0)
    mirostat_mode: int = _option(0, ranges.one_of, values=(0, 2))
    mirostat_tau: float = _option(5.0, ranges.number)
    mirostat_eta: float = _option(0.1, ranges.number)
    min_keep: int = _option(1, ranges.integer, lowest=1, below=1 << 31)
    sampler_order: str | tuple[str, ...] = _option("hf", sampler_order)
    repetition_penalty: float = _option(1.0, ranges.number, lowest=1e-6, highest=1e6)
    presence_penalty: float = _option(0.0, ranges.number, lowest=-2.0, highest=2.0)
    frequency_penalty: float = _option(0.0, ranges.number, lowest=-2.0, highest=2.0)
    repeat_last_n: int = _option(-1, ranges.integer, lowest=-1)
    dry_multiplier: float = _option(0.0, ranges.number)
    dry_base: float = _option(1.75, ranges.number, lowest=1.0)
    dry_allowed_length: int = _option(2, ranges.integer, lowest=1)
    dry_sequence_breakers: tuple[str, ...] = _option(("\n", ":", '"', "*"), ranges.strings)
    no_repeat_ngram_size: int = _option(0, ranges.integer)
    logit_bias: tuple[tuple[int, float], ...] = _option((), ranges.biases)
    bad_words: tuple[str | tuple[int, ...], ...] = _option((), ranges.words)
    allowed_token_ids: tuple[int, ...] | None = _option(None, ranges.some_token_ids)
    logits_processors: tuple[Callable[..., Any], ...] = _option((), ranges.callables)
    seed: int | None = _option(None, ranges.integer, below=1 << 64)  # the noise's key has 64 bits
    n: int = _option(1, ranges.integer, lowest=1, below=1 << 32)
    logprobs: int | None = _option(None, ranges.integer)
    prompt_logprobs: int | None = _option(None, ranges.integer)

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None or option.default is not None:
                object.__setattr__(self, option.name, option.metadata["check"](option.name, value))
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens}: expected at most max_new_tokens, "
                f"{self.max_new_tokens}"
            )
        steps(self)  # refuses an order that leaves out what is on

    @classmethod
    def from_options(cls, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Sampling:
        """The options as a user wrote them, over a model's generation_config.json.

        As in transformers the file's penalties always count, its temperature and filters where it
        says ``do_sample: true``; its lengths never do. An option that is None counts as not given.

        Raises
        ------
        TypeError
            An unknown option; the message names it and the known ones.
        """
        given = _named(options, [field.name for field in fields(cls)])
        chosen = {name: defaults.get(name) for name in _ALWAYS_FROM_FILE}
        if defaults.get("do_sample"):
            order = sampler_order("sampler_order", given.get("sampler_order", "hf"))
            chosen |= {
                name: defaults.get(name)
                for name in _WHEN_SAMPLING_FROM_FILE
                if isinstance(order, str) or name in order
            }
            chosen["temperature"] = 1.0 if (heat := chosen.get("temperature")) is None else heat
        chosen = {name: value for name, value in chosen.items() if value is not None}
        return cls(**chosen | given)


def _named(options: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    """What was given, by its own name."""
    given: dict[str, Any] = {}
    written: dict[str, str] = {}
    for option, value in options.items():
        name = ALIASES.get(option, option)
        if name not in known:
            raise TypeError(f"unknown option {option!r}; known are {', '.join(known)}")
        if value is None:
            continue
        if name in written:
            raise TypeError(f"{written[name]} and {option} are the same option: give one of them")
        written[name] = option
        given[name] = value
    return given
