"""What changes logits before the filters: small functions of (scores, tokens so far, n_prompt).

Each is made once for a generation and keeps nothing from one token to the next. It changes
`scores`, float32 [vocab_size], in place, or returns others. `tokens` is int32 [n], prompt and text,
not to be written to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection

import numpy as np

from rillm.decoding.options import Sampling
from rillm.engine import _engine

Adjustment = Callable[[np.ndarray, np.ndarray, int], np.ndarray | None]
_MOST = 2.0**100  # of a penalty: finite in float32


def adjustments(
    options: Sampling, vocab_size: int, tokenizer, end_ids: Collection[int]
) -> list[Adjustment]:
    """Those that are on, in the order that `Sampling` states.

    Raises
    ------
    ValueError
        A token id is outside the vocabulary, or strings are to be tokenized without a tokenizer.
    """
    made: list[Adjustment] = []
    _checked("stop_token_ids", options.stop_token_ids, vocab_size)
    if options.logit_bias:
        ids, biases = zip(*options.logit_bias, strict=True)
        made.append(_bias(_checked("logit_bias", ids, vocab_size), np.float32(biases)))
    if options.repetition_penalty != 1.0:
        penalty = np.float32(options.repetition_penalty)
        made.append(_repetition(penalty, options.repeat_last_n))
    if options.frequency_penalty or options.presence_penalty:
        frequency, presence = options.frequency_penalty, options.presence_penalty
        made.append(_counts(frequency, presence, options.repeat_last_n))
    if options.dry_multiplier:
        breakers = _Breakers(tokenizer, options.dry_sequence_breakers, vocab_size)
        length = options.dry_allowed_length
        made.append(_dry(options.dry_multiplier, options.dry_base, length, breakers))
    if options.no_repeat_ngram_size:
        made.append(_no_repeats(options.no_repeat_ngram_size))
    if options.bad_words:
        sequences = _sequences(options.bad_words, tokenizer)
        _checked("bad_words", [id for ids in sequences for id in ids], vocab_size)
        made.append(_never(sequences))
    if options.allowed_token_ids is not None:
        made.append(_only(_checked("allowed_token_ids", options.allowed_token_ids, vocab_size)))
    if options.min_new_tokens:
        ends = [id for id in {*end_ids, *options.stop_token_ids} if 0 <= id < vocab_size]
        made.append(_not_yet(np.array(ends, np.int64), options.min_new_tokens))
    return made + [_custom(function) for function in options.logits_processors]


def _bias(ids: np.ndarray, biases: np.ndarray) -> Adjustment:
    def adjust(scores, tokens, n_prompt):
        scores[ids] += biases

    return adjust


def _window(tokens: np.ndarray, size: int) -> int:
    """Where the last `size` tokens begin; all of them for -1."""
    return 0 if size < 0 else max(len(tokens) - size, 0)


def _repetition(penalty: np.float32, size: int) -> Adjustment:
    """Keskar et al., arXiv 1909.05858; a negative logit is multiplied."""

    def adjust(scores, tokens, n_prompt):
        ids = tokens[_window(tokens, size) :]
        seen = scores[ids]
        scores[ids] = np.where(seen < 0, seen * penalty, seen / penalty)

    return adjust


def _counts(frequency: float, presence: float, size: int) -> Adjustment:
    def adjust(scores, tokens, n_prompt):
        begin = max(n_prompt, _window(tokens, size))
        ids, counts = np.unique(tokens[begin:], return_counts=True)
        scores[ids] -= (frequency * counts + presence).astype(np.float32)

    return adjust


def _dry(multiplier: float, base: float, allowed: int, breakers: _Breakers) -> Adjustment:
    """Don't repeat yourself, as in llama.cpp (its penalty_last_n at -1)."""

    def adjust(scores, tokens, n_prompt):
        longest = breakers.distance(tokens)
        if longest < allowed:
            return
        lengths = np.minimum(_engine.repeats(tokens), longest)
        places = np.flatnonzero(lengths >= allowed)
        ids, which = np.unique(tokens[places + 1], return_inverse=True)
        best = np.zeros(len(ids))
        np.maximum.at(best, which, lengths[places] - allowed)
        taken = np.exp2(np.minimum(np.log2(multiplier) + best * np.log2(base), np.log2(_MOST)))
        scores[ids] -= taken.astype(np.float32)

    return adjust


class _Breakers:
    """Which tokens end a run: those that hold a breaker, and the last of one that spans several.

    A token is decoded when it is first met; the table holds 0: not met, 1: no breaker, 2: breaker.
    """

    def __init__(self, tokenizer, strings: tuple[str, ...], vocab_size: int) -> None:
        self._tokenizer, self._strings = tokenizer, strings
        self._table = np.zeros(vocab_size, np.int8)
        for string in strings:
            ids = _needed(tokenizer, "dry_sequence_breakers").encode(f"a{string}", False)
            if ids[-1] < vocab_size:
                self._table[ids[-1]] = 2

    def distance(self, tokens: np.ndarray) -> int:
        """How many tokens follow the last breaker."""
        for token in np.unique(tokens[self._table[tokens] == 0]):
            text = self._tokenizer.decode([token], False) if self._strings else ""
            self._table[token] = 1 + any(string in text for string in self._strings)
        places = np.flatnonzero(self._table[tokens] == 2)
        return len(tokens) - 1 - int(places[-1]) if places.size else len(tokens)


def _no_repeats(size: int) -> Adjustment:
    def adjust(scores, tokens, n_prompt):
        if size == 1:
            scores[tokens] = -np.inf
        else:
            scores[tokens[1:][_engine.repeats(tokens) >= size - 1]] = -np.inf

    return adjust


def _never(sequences: list[tuple[int, ...]]) -> Adjustment:
    alone = np.array([ids[0] for ids in sequences if len(ids) == 1], np.int64)
    longer = [(np.array(ids[:-1]), ids[-1]) for ids in sequences if len(ids) > 1]

    def adjust(scores, tokens, n_prompt):
        scores[alone] = -np.inf
        for before, last in longer:
            if np.array_equal(tokens[-len(before) :], before):
                scores[last] = -np.inf

    return adjust


def _only(ids: np.ndarray) -> Adjustment:
    def adjust(scores, tokens, n_prompt):
        allowed = np.full_like(scores, -np.inf)
        allowed[ids] = scores[ids]
        return allowed

    return adjust


def _not_yet(ends: np.ndarray, least: int) -> Adjustment:
    def adjust(scores, tokens, n_prompt):
        if len(tokens) - n_prompt < least:
            scores[ends] = -np.inf

    return adjust


def _custom(function: Callable) -> Adjustment:
    """A user's own. Its result, if any, must be logits again; it stays the user's: it is copied."""
    if (n_arguments := _n_arguments(function)) > 2:
        raise TypeError(
            f"logits processor {function!r} takes {n_arguments} arguments: expected "
            "(token_ids, logits) or (logits)"
        )
    takes_one = n_arguments == 1

    def adjust(scores, tokens, n_prompt):
        changed = function(scores) if takes_one else function(tokens, scores)
        if changed is None:
            return None
        changed = np.asarray(changed)
        if changed.shape != scores.shape or changed.dtype.kind not in "fiu":
            raise ValueError(
                f"logits processor {function!r} returned {changed.dtype} of shape {changed.shape}: "
                f"expected float32 of shape {scores.shape}"
            )
        return changed.astype(np.float32)

    return adjust


def _n_arguments(function: Callable) -> int:
    """How many arguments without defaults it takes; 2 where Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 2
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in places and each.default is each.empty for each in parameters)


def _sequences(words: tuple[str | tuple[int, ...], ...], tokenizer) -> list[tuple[int, ...]]:
    """Ids of words, and of words after a space, since those are other tokens."""
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        if not isinstance(word, str):
            sequences[word] = None
            continue
        for text in (word, " " + word.lstrip(" ")):
            sequences[tuple(_needed(tokenizer, "bad_words").encode(text, False))] = None
    return [ids for ids in sequences if ids]


def _needed(tokenizer, name: str):
    if tokenizer is None:
        raise ValueError(f"{name} holds strings, but there is no tokenizer: give token ids")
    return tokenizer


def _checked(name: str, ids: Collection[int], vocab_size: int) -> np.ndarray:
    for id in ids:
        if id >= vocab_size:
            raise ValueError(f"{name} holds token id {id}: expected 0 to {vocab_size - 1}")
    return np.array(ids, np.int64)
