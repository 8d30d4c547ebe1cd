"""The law of sampling: softmax over the kept tokens, by chi-square with fixed seeds."""

import math

import numpy as np
import pytest

from rillm.decoding.sampling import Sampling, sample
from rillm.errors import BadLogits

N_DRAWS = 20_000
P_LEAST = 1e-4  # some forty tests: with right code one in 250 choices of seeds would fail


def logits_of(probabilities) -> np.ndarray:
    return np.log(np.array(probabilities, dtype=np.float64)).astype(np.float32)


def draws(logits, n=N_DRAWS, seed=0, **options) -> list[int]:
    settings = Sampling(**{"temperature": 1.0, **options})
    return [sample(logits, settings, seed, index) for index in range(n)]


def kept(logits, **options) -> set[int]:
    """The tokens that can be sampled: with probabilities of 5 % or more, all are met in 2000."""
    return set(draws(logits, n=2000, **options))


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Of the chi-square test; the number of tokens is odd, which has a closed form."""
    expected = counts.sum() * probabilities
    half = ((counts - expected) ** 2 / expected).sum() / 2
    freedom = len(counts) - 1
    assert freedom % 2 == 0
    return math.exp(-half) * sum(half**k / math.factorial(k) for k in range(freedom // 2))


def softmax(logits, temperature=1.0) -> np.ndarray:
    exponent = logits.astype(np.float64) / temperature
    weight = np.exp(exponent - exponent.max())
    return weight / weight.sum()


RAMP = np.linspace(-1.0, 1.5, 9).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.4, 0.7, 1.0, 1.5, 4.0])
@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
def test_temperature_sampling_follows_softmax(temperature, seed):
    counts = np.bincount(draws(RAMP, seed=seed, temperature=temperature), minlength=9)
    assert p_value(counts, softmax(RAMP, temperature)) > P_LEAST


def test_the_law_holds_over_seeds_too():
    settings = Sampling(temperature=1.0)
    counts = np.bincount([sample(RAMP, settings, seed, 17) for seed in range(N_DRAWS)], minlength=9)
    assert p_value(counts, softmax(RAMP)) > P_LEAST


def test_the_law_holds_over_completions_too():
    settings = Sampling(temperature=1.0)
    ids = [sample(RAMP, settings, 3, 17, completion) for completion in range(N_DRAWS)]
    assert p_value(np.bincount(ids, minlength=9), softmax(RAMP)) > P_LEAST


def test_neighbouring_tokens_are_independent():
    """Pairs of consecutive draws of three even tokens: nine pairs, all alike."""
    ids = np.array(draws(np.zeros(3, dtype=np.float32)))
    counts = np.bincount(ids[0::2] * 3 + ids[1::2], minlength=9)
    assert p_value(counts, np.full(9, 1 / 9)) > P_LEAST


def test_a_large_vocabulary_follows_softmax():
    """Nine likely tokens scattered in a vocabulary whose size is not a multiple of four."""
    places = np.array([0, 1, 2, 3, 4, 5003, 9999, 10005, 10006])
    logits = np.full(10_007, -np.inf, dtype=np.float32)
    logits[places] = RAMP
    ids = draws(logits, n=5000)
    counts = np.array([ids.count(place) for place in places])
    assert counts.sum() == 5000
    assert p_value(counts, softmax(RAMP)) > P_LEAST


def test_top_k_follows_softmax_over_the_kept():
    counts = np.bincount(draws(RAMP, top_k=5), minlength=9)
    assert counts[:4].sum() == 0
    assert p_value(counts[4:], softmax(RAMP[4:])) > P_LEAST


def test_the_same_seed_repeats_and_others_differ():
    first = draws(RAMP, n=200, seed=5)
    assert draws(RAMP, n=200, seed=5) == first
    assert draws(RAMP, n=200, seed=6) != first
    settings = Sampling(temperature=1.0)
    other = [sample(RAMP, settings, 5, index, completion=1) for index in range(200)]
    assert other != first


def test_top_k_of_one_is_greedy():
    logits = np.array([1.0, 3.0, 3.0, 2.0], dtype=np.float32)
    assert kept(logits, top_k=1, temperature=9.0) == {1}


def test_a_tie_goes_to_the_lower_id():
    logits = np.array([0.0, 2.0, 2.0, 2.0, 1.0], dtype=np.float32)
    assert sample(logits, Sampling(), 0, 0) == 1
    assert kept(logits, top_k=2) == {1, 2}


def test_huggingface_transformers_18976():
    """P1: the smallest set whose sum reaches top_p, also when it is met exactly."""
    assert kept(logits_of([0.5, 0.3, 0.1, 0.1]), top_p=0.8) == {0, 1}
    assert kept(logits_of([0.3, 0.1, 0.1, 0.5]), top_p=0.8) == {0, 3}
    assert kept(logits_of([0.15, 0.3, 0.3, 0.25]), top_p=0.8) == {1, 2, 3}


def test_aws_neuron_transformers_neuronx_46():
    """P2: the token that crosses the border stays; next to nothing still leaves the likeliest."""
    logits = logits_of([0.1, 0.2, 0.7])
    assert kept(logits, top_p=0.8) == {1, 2}
    assert kept(logits, top_p=1e-9) == {2}
    assert kept(logits, top_p=0.0) == {2}


def test_ggml_org_ggml_37():
    """P4: temperature 0 is argmax for all seeds, the smallest float too."""
    logits = np.random.default_rng(37).normal(size=1001).astype(np.float32)
    for seed in range(50):
        assert sample(logits, Sampling(temperature=0), seed, seed) == logits.argmax()
        assert sample(logits, Sampling(temperature=1e-45), seed, seed) == logits.argmax()


def test_opennmt_ctranslate2_586():
    """P5: top_k beyond the vocabulary, 0 and -1 are no filter: the same tokens, one by one."""
    plain = draws(RAMP, n=500)
    for top_k in (9_999_999, 9, 0, -1):
        assert draws(RAMP, n=500, top_k=top_k) == plain


def test_ggml_org_llama_cpp_4091():
    """P9: temperature first, as Hugging Face: .8668 at T = .5, so top_p = .8 keeps one token."""
    logits = np.array([3.0, 2.0, 1.0], dtype=np.float32)
    assert kept(logits, temperature=0.5, top_p=0.8) == {0}
    assert kept(logits, temperature=1.0, top_p=0.8) == {0, 1}, ".6652 and .2447"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 50, 100])
def test_justvugg_colibri_369(temperature, bad, place):
    """P10: one NaN or +inf is an error, wherever it stands."""
    logits = np.zeros(101, dtype=np.float32)
    logits[place] = bad
    with pytest.raises(BadLogits):
        sample(logits, Sampling(temperature=temperature), 0, 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_justvugg_colibri_369_nothing_left(temperature):
    """P10: nothing but -inf is an error; one number among them is the token."""
    logits = np.full(101, -np.inf, dtype=np.float32)
    with pytest.raises(BadLogits):
        sample(logits, Sampling(temperature=temperature), 0, 0)
    logits[77] = -5.0
    assert sample(logits, Sampling(temperature=temperature), 0, 0) == 77
