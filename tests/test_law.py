"""The law of sampling at a million draws a setting: chi-square with fixed seeds, Holm-corrected."""

import math

import numpy as np
import pytest

import sampling_reference as reference
from rillm.engine._engine import Filters, available_isas, gumbel, gumbel_of_word

N_DRAWS = 1_000_000
ALPHA = 1e-3  # of one false alarm in all settings together, had the seeds not been fixed

RAMP = np.linspace(-1.0, 1.5, 9).astype(np.float32)
PEAK = np.array([0.0, 3.0, 1.0, 1.0, -2.0, 0.5], np.float32)
SETTINGS = [
    *((RAMP, [("temperature", t)], seed) for t in (0.4, 0.7, 1.0, 1.5, 4.0) for seed in (0, 2**40)),
    *((PEAK, [("temperature", t)], seed) for t in (0.5, 1.0, 2.0) for seed in (1, 2**64 - 1)),
    *((RAMP, [("temperature", t), ("top_k", k)], k) for t in (0.7, 2.0) for k in (2, 5, 8)),
    *((RAMP, [("temperature", t), ("top_p", p)], 3) for t in (0.7, 2.0) for p in (0.5, 0.8, 0.95)),
    *((PEAK, [("temperature", t), ("min_p", p)], 4) for t in (1.0, 2.0) for p in (0.03, 0.1)),
    *((RAMP, [("temperature", t), ("typical_p", p)], 5) for t in (1.0, 2.0) for p in (0.3, 0.9)),
    *((RAMP, [("epsilon_cutoff", e)], 6) for e in (0.05, 0.1)),
    *((RAMP, [("eta_cutoff", e)], 7) for e in (0.3, 0.7)),
    *((RAMP, [("temperature", 1.5), ("top_n_sigma", n)], 8) for n in (0.5, 1.0, 2.0)),
    *((RAMP, [("xtc", p, 0.12)], 9) for p in (0.25, 0.5, 1.0)),
    *((PEAK, [("temperature", 2.0), ("xtc", p, 0.1)], 10) for p in (0.1, 0.9)),
    *((PEAK, [("temperature", 1.0, r, e)], 11) for r in (0.3, 0.8) for e in (0.5, 2.0)),
    (RAMP, [("top_k", 6), ("top_p", 0.9), ("min_p", 0.2), ("temperature", 1.4)], 12),
    (RAMP, [("temperature", 0.8), ("top_k", 7), ("top_p", 0.9), ("min_p", 0.1)], 13),
    (
        RAMP,
        [("top_p", 0.9), ("min_p", 0.1), ("xtc", 0.5, 0.15), ("top_k", 3), ("temperature", 2)],
        14,
    ),
]


def survival(statistic: float, freedom: int) -> float:
    """Of the chi-square distribution, in closed form."""
    half = statistic / 2
    if freedom % 2 == 0:
        return math.exp(-half) * sum(half**k / math.factorial(k) for k in range(freedom // 2))
    terms = (half ** (k - 0.5) / math.gamma(k + 0.5) for k in range(1, (freedom + 1) // 2))
    return math.erfc(math.sqrt(half)) + math.exp(-half) * sum(terms)


def expected(logits: np.ndarray, steps) -> np.ndarray:
    """Where there is a coin, the mixture of both sides."""
    coins = [step[1] for step in steps if step[0] == "xtc"]
    law = np.zeros(len(logits))
    heads = coins[0] if coins else 1.0
    without = [step for step in steps if step[0] != "xtc"]
    for share, chosen in ((heads, steps), (1.0 - heads, without)):
        for token, probability in reference.kept(logits, chosen).items():
            law[token] += share * probability
    return law


def p_value(logits: np.ndarray, steps, seed: int) -> float:
    tokens = np.empty(N_DRAWS, np.int32)
    Filters(steps).sample_many(logits, tokens, seed)
    counts, law = np.bincount(tokens, minlength=len(logits)), expected(logits, steps)
    assert counts[law == 0].sum() == 0, "a token that no filter keeps"
    counts, means = counts[law > 0], N_DRAWS * law[law > 0]
    assert means.min() > 30 and len(means) > 1
    return survival(((counts - means) ** 2 / means).sum(), len(means) - 1)


def test_the_survival_function():
    """Critical values of the chi-square distribution, from any table."""
    table = {(3.841, 1): 0.05, (5.991, 2): 0.05, (11.345, 3): 0.01, (15.507, 8): 0.05}
    for (statistic, freedom), expected_value in table.items():
        assert survival(statistic, freedom) == pytest.approx(expected_value, rel=1e-3)


def test_every_setting_follows_its_law():
    assert len(SETTINGS) >= 50
    p_values = sorted(p_value(*setting) for setting in SETTINGS)
    for place, p in enumerate(p_values):
        assert p > ALPHA / (len(p_values) - place)
    assert 0.3 < np.median(p_values) < 0.7, "p-values are uniform"


def test_a_wrong_law_is_found():
    """The same test sees a temperature that is off by one per cent."""
    tokens = np.empty(N_DRAWS, np.int32)
    Filters([("temperature", 1.01)]).sample_many(RAMP, tokens, 0)
    means = N_DRAWS * expected(RAMP, [("temperature", 1.0)])
    counts = np.bincount(tokens, minlength=9)
    assert survival(((counts - means) ** 2 / means).sum(), 8) < ALPHA / len(SETTINGS)


def test_many_draws_are_the_single_ones():
    for logits, steps, seed in SETTINGS[::5]:
        tokens = np.empty(300, np.int32)
        filters = Filters(steps)
        filters.sample_many(logits, tokens, seed, 1000)
        singles = [filters.sample(logits, seed, 1000 + i)[0] for i in range(300)]
        assert tokens.tolist() == singles


@pytest.mark.parametrize("size", [1000, 262_144])
def test_every_instruction_set_draws_the_same(size):
    """The largest of (logit - max) / temperature + noise, by every token's own noise."""
    logits = np.random.default_rng(size).normal(size=size).astype(np.float32) * 3
    largest = logits.max()
    for index in range(2):
        noise = np.array([gumbel(9, index, token) for token in range(size)], np.float32)
        scores = (logits - largest) / np.float32(0.7) + noise
        for isa in available_isas():
            token, score, _ = Filters([("temperature", 0.7)], 1, isa).sample(logits, 9, index)
            assert (token, score) == (scores.argmax(), scores.max())


def test_the_largest_noise_is_finite():
    """-log(-log1p(-v)) at v = (word + 1/2) / 2**32: about -log of 33 ln 2 and 33 ln 2."""
    assert gumbel_of_word(0) == pytest.approx(-math.log(-math.log1p(-(2.0**-33))), rel=1e-6)
    assert gumbel_of_word(2**32 - 1) == pytest.approx(-math.log(33 * math.log(2)), rel=1e-6)
    words = np.random.default_rng(0).integers(0, 2**32, 2000)
    for word in words.tolist():
        v = (word + 0.5) / 2**32
        assert gumbel_of_word(word) == pytest.approx(-math.log(-math.log1p(-v)), rel=1e-5, abs=1e-6)
