"""What filters keep and penalties take: transformers' own processors, plain float64, arithmetic."""

import base64
import json
import math
import random

import numpy as np
import pytest

import sampling_reference as reference
import small_tokenizers as small
from rillm.decoding.history import History
from rillm.decoding.order import PRESETS, steps
from rillm.decoding.sampling import Sampler, Sampling, sample
from rillm.engine._engine import Filters, repeats
from rillm.errors import BadLogits
from weights import FIXTURES

GOLDEN = json.loads((FIXTURES / "samplers.json").read_text())
N_ROWS, VOCAB = GOLDEN["shape"]


def array(text: str, dtype) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


ROWS = array(GOLDEN["float32"], np.float32).reshape(N_ROWS, VOCAB)


def golden_sampler(settings: dict) -> Sampler:
    settings = {k.removesuffix("_ids"): v for k, v in settings.items()}
    return Sampler(Sampling(**settings), VOCAB, end_ids=[GOLDEN["eos"]])


def golden_history(row: int) -> History:
    history = History(GOLDEN["ids"][row])
    history.n_prompt = GOLDEN["n_prompt"]
    return history


def kept(logits, **options) -> set[int]:
    options = {"temperature": 1.0, **options}
    sampler = Sampler(Sampling(**options), len(logits))
    return set(sampler.kept(np.float32(logits), 0, 0)[0].tolist())


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities)).astype(np.float32)


def test_kept_sets_are_those_of_transformers():
    """Nothing recorded has a tie on its border."""
    assert len(GOLDEN["filters"]) > 400
    for settings, row, bits in GOLDEN["filters"]:
        expected = np.unpackbits(array(bits, np.uint8))[:VOCAB].nonzero()[0]
        sampler = golden_sampler(settings)
        tokens, _ = sampler.kept(sampler.adjust(ROWS[row], golden_history(row)), 0, 0)
        assert tokens.tolist() == expected.tolist(), (settings, row)


def test_penalties_are_those_of_transformers():
    """To the bit: the same operations in float32."""
    for settings, values in GOLDEN["penalties"]:
        expected = array(values, np.float32).reshape(-1, VOCAB)
        for row, processed in enumerate(expected):
            adjusted = golden_sampler(settings).adjust(ROWS[row], golden_history(row))
            assert np.array_equal(adjusted, processed), (settings, row)


def random_step(draw: random.Random) -> tuple:
    name = draw.choice(list(reference.FILTERS))
    share = draw.random()
    parameters = {
        "temperature": (draw.choice([0.3, 0.7, 1.0, 3.0]), draw.choice([0.0, 0.5]), 2.0),
        "top_k": (draw.randint(1, 60),),
        "epsilon_cutoff": (share**3,),
        "eta_cutoff": (share**3,),
        "top_n_sigma": (3 * share,),
        "xtc": (1.0, 0.3 * share),
    }
    return (name, *parameters.get(name, (share,)))


def test_any_filters_in_any_order_against_float64():
    draw, noise = random.Random(1), np.random.default_rng(1)
    for _ in range(600):
        size = draw.choice([1, 2, 5, 17, 64, 300])
        logits = noise.normal(size=size) * draw.choice([0.1, 1, 3, 8]) + draw.choice([0, -99, 50])
        logits = np.float32(np.round(logits) if draw.random() < 0.3 else logits)  # ties
        if draw.random() < 0.3:
            logits[1:][noise.random(size - 1) < 0.2] = -np.inf
        chosen = [random_step(draw) for _ in range(draw.randint(1, 5))]
        keep = draw.choice([1, 1, 1, 2, 5])
        tokens, probabilities = Filters(chosen, keep).kept(logits)
        expected = reference.kept(logits, chosen, keep)
        assert dict(zip(tokens.tolist(), probabilities.tolist(), strict=True)) == pytest.approx(
            expected, abs=3e-6
        ), (chosen, keep)


@pytest.mark.parametrize("size", [49_152, 262_144])
def test_large_vocabularies_against_numpy(size):
    """Borders by sorting all of them."""
    logits = np.random.default_rng(size).normal(size=size).astype(np.float32) * 3
    order = np.argsort(-logits, kind="stable")
    weights = np.exp(logits[order].astype(np.float64))
    share = weights.cumsum() / weights.sum()
    for k in (1, 40, 5000):
        assert kept(logits, top_k=k) == set(order[:k].tolist())
    for p in (0.1, 0.9, 0.9999):
        n = len(kept(logits, top_p=p))
        assert share[n - 1] >= p - 2e-6 and (n == 1 or share[n - 2] < p + 2e-6)
        assert kept(logits, top_p=p) == set(order[:n].tolist())


def test_on_a_tie_the_lowest_ids_stay():
    ties = np.array([1, 3, 3, 2, 3, 3], np.float32)
    assert kept(ties, top_k=1) == {1}
    assert kept(ties, top_k=2) == {1, 2}
    assert kept(ties, top_k=3) == {1, 2, 4}
    assert kept(np.zeros(10), top_p=0.35) == {0, 1, 2, 3}
    assert kept(np.zeros(10), typical_p=0.35) == {0, 1, 2, 3}
    assert kept([-0.0, 0.0], top_k=1) == {0}
    zeros = np.full(700, -1, np.float32)
    zeros[[300, 650]] = -0.0, 0.0
    assert sample(zeros, Sampling(), 0, 0) == 300
    zeros[3] = 0.0
    assert sample(zeros, Sampling(), 0, 0) == 3


def test_top_k_of_one_is_greedy_for_every_seed():
    logits = np.array([1.0, 3.0, 3.0, 2.0], np.float32)
    options = Sampling(temperature=50.0, top_k=1)
    assert {sample(logits, options, seed, 0) for seed in range(50)} == {1}


def test_ggml_org_llama_cpp_4091():
    """P9: .8668 at T = .5, so that top_p = .8 keeps one token; .6652 and .2447 before T."""
    logits = [3, 2, 1]
    assert kept(logits, temperature=0.5, top_p=0.8) == {0}
    assert kept(logits, temperature=0.5, top_p=0.8, sampler_order="hf") == {0}
    for order in ("llama.cpp", "mlx", ("top_p", "temperature")):
        assert kept(logits, temperature=0.5, top_p=0.8, sampler_order=order) == {0, 1}


def test_the_orders_are_those_of_their_sources():
    """Of what llama.cpp's default chain and mlx-lm's make_sampler have, in their order."""
    llama = ["top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"]
    mlx = ["top_p", "min_p", "xtc", "top_k", "temperature"]
    assert [name for name in PRESETS["llama.cpp"] if name in llama] == llama
    assert [name for name in PRESETS["mlx"] if name in mlx] == mlx
    assert len({frozenset(order) for order in PRESETS.values()}) == 1
    assert all(len(order) == len(set(order)) for order in PRESETS.values())


def test_an_order_of_one_s_own():
    options = {"temperature": 2.0, "top_k": 3, "min_p": 0.1}
    chosen = steps(Sampling(**options, sampler_order=("min_p", "top_k", "temperature")))
    assert [step[0] for step in chosen] == ["min_p", "top_k", "temperature"]
    assert [step[0] for step in steps(Sampling(**options))] == ["temperature", "top_k", "min_p"]
    with pytest.raises(ValueError, match="leaves out min_p"):
        Sampling(**options, sampler_order=("temperature", "top_k"))
    for order in ("vllm", ("top_k", "top_q"), ("top_k", "top_k")):
        with pytest.raises(ValueError, match="sampler_order .*expected"):
            Sampling(sampler_order=order)


def test_temperature_0_has_no_filters():
    """XTC would take the likeliest away."""
    options = Sampling(xtc_probability=1.0, xtc_threshold=0.0, top_n_sigma=1.0)
    assert sample(logits_of(0.1, 0.6, 0.3), options, 0, 0) == 1


def test_min_keep():
    probabilities = logits_of(0.6, 0.2, 0.1, 0.06, 0.04)
    filters = {"top_k": 1, "top_p": 0.1, "min_p": 0.9, "epsilon_cutoff": 0.5, "eta_cutoff": 0.9}
    for name, value in filters.items():
        assert kept(probabilities, **{name: value}) == {0}
        assert kept(probabilities, **{name: value}, min_keep=3) == {0, 1, 2}
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    assert kept(probabilities, **xtc) == {2, 3, 4}
    assert kept(probabilities, **xtc, min_keep=4) == {0, 1, 2, 3, 4}


def test_the_coin_of_xtc_is_its_own_noise():
    """The share of heads is the probability; the kept tokens' noise is as without the coin."""
    probabilities = logits_of(0.5, 0.3, 0.2)
    sampler = Sampler(Sampling(temperature=1.0, xtc_probability=0.3, xtc_threshold=0.25), 3)
    places = [(seed, index, n) for seed in (0, 9) for index in range(1000) for n in (0, 1)]
    heads = [len(sampler.kept(probabilities, *place)[0]) < 3 for place in places]
    share = sum(heads) / len(heads)
    assert abs(share - 0.3) < 4 * math.sqrt(0.3 * 0.7 / len(heads))
    plain = Sampler(Sampling(temperature=1.0), 3)
    without_coin = [
        (sampler.choose(probabilities, *p), plain.choose(probabilities, *p))
        for p, head in zip(places, heads, strict=True)
        if not head
    ]
    assert all(ours == theirs for ours, theirs in without_coin)


def test_dynamic_temperature():
    """At the ends: one certain token gives the lowest temperature, equal ones the highest."""
    filters = Filters([("temperature", 1.0, 0.5, 1.0)])
    _, flat = filters.kept(np.zeros(4, np.float32))
    assert flat.tolist() == [0.25] * 4
    two = np.array([0.0, 30.0], np.float32)
    assert filters.kept(two)[1][0] == pytest.approx(math.exp(-30 / 0.5), rel=1e-4)
    certain = Filters([("temperature", 1.0, 1.0, 1.0)]).kept(np.array([0, 99, 99.5], np.float32))
    assert 2 in certain[0].tolist()


def mirostat(rows, tau=3.0, eta=0.2) -> list[tuple[set[int], int, float]]:
    """The kept tokens, the choice and the next limit of each row."""
    options = Sampling(temperature=1.0, mirostat_mode=2, mirostat_tau=tau, mirostat_eta=eta)
    sampler, limit, steps = Sampler(options, rows.shape[1]), 2 * tau, []
    for index, row in enumerate(rows):
        tokens, _ = sampler.kept(row, 0, index, 0, limit)
        choice = sampler.choose(row, 0, index, 0, limit)
        limit = choice.surprise_limit
        steps.append((set(tokens.tolist()), choice.token, limit))
    return steps


def test_mirostat_v2():
    """As llama.cpp: mu starts at 2 tau and moves by eta against the error of each surprise."""
    rows = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32) * 3
    mu, observed = 6.0, []
    for row, (tokens, choice, limit) in zip(rows, mirostat(rows), strict=True):
        surprise = {
            t: s / math.log(2) for t, s in reference.surprises(dict(enumerate(row))).items()
        }
        expected = {t for t in surprise if surprise[t] <= mu} or {int(row.argmax())}
        assert tokens == expected
        law = reference.softmax({t: float(row[t]) for t in tokens})
        observed.append(-math.log2(law[choice]))
        mu -= 0.2 * (observed[-1] - 3.0)
        assert limit == pytest.approx(mu, abs=1e-4)
        mu = limit
    assert np.mean(observed[50:]) == pytest.approx(3.0, abs=0.3)


def test_huggingface_transformers_2302():
    """P6: a negative logit is multiplied, a positive one divided."""
    adjusted = Sampler(Sampling(repetition_penalty=1.5), 3).adjust(
        np.array([-2, 2, 1], np.float32), History([0, 1, 1])
    )
    assert adjusted.tolist() == pytest.approx([-3.0, 1.3333334, 1.0])


def test_osaurus_ai_vmlx_swift_295():
    """P8: repetition counts the prompt; presence and frequency count the new text only."""
    logits, prompt = np.ones(4, np.float32), History([1, 2])
    options = Sampling(repetition_penalty=2.0, presence_penalty=1.5, frequency_penalty=0.25)
    assert Sampler(options, 4).adjust(logits, prompt).tolist() == [1.0, 0.5, 0.5, 1.0]
    for token in (2, 3, 3):
        prompt.append(token)
    expected = [1.0, 0.5, 0.5 - 1.5 - 0.25, 0.5 - 1.5 - 2 * 0.25]
    assert Sampler(options, 4).adjust(logits, prompt).tolist() == expected


@pytest.mark.parametrize("size", [-1, 0, 1, 2, 5, 20, 10**30])
def test_osaurus_ai_vmlx_swift_295_the_window_is_the_last_tokens(size):
    """P8: of prompt and text the last ones, not the first; what is counted is text alone."""
    draw = random.Random(size)
    for _ in range(60):
        tokens, n_prompt = draw.choices(range(9), k=draw.randrange(30)), draw.randrange(12)
        n_prompt = min(n_prompt, len(tokens))
        logits = np.float32([draw.uniform(-4, 4) for _ in range(9)])
        expected = logits.astype(np.float64)
        first = 0 if size < 0 else len(tokens) - size
        seen = [token for place, token in enumerate(tokens) if place >= first]
        written = [t for place, t in enumerate(tokens) if place >= first and place >= n_prompt]
        for token in set(seen):
            expected[token] *= 1.5 if expected[token] < 0 else 1 / 1.5
        for token in set(written):
            expected[token] -= 0.75 + 0.5 * written.count(token)
        options = {"repetition_penalty": 1.5, "presence_penalty": 0.75, "frequency_penalty": 0.5}
        history = History(tokens)
        history.n_prompt = n_prompt
        adjusted = Sampler(Sampling(**options, repeat_last_n=size), 9).adjust(logits, history)
        assert adjusted.tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)


def test_repeats_against_comparing_every_place():
    draw = random.Random(3)
    for _ in range(300):
        ids = draw.choices(range(draw.randint(1, 3)), k=draw.randrange(40))
        expected = []
        for place in range(len(ids) - 1):
            length = 0
            while length <= place and ids[place - length] == ids[-1 - length]:
                length += 1
            expected.append(length)
        assert repeats(np.array(ids, np.int32)).tolist() == expected


def test_dry_against_comparing_every_place():
    draw = random.Random(4)
    tokenizer = small.byte_level()
    alphabet = [*b"abc", ord("\n")]
    for _ in range(300):
        tokens = draw.choices(alphabet, k=draw.randrange(1, 60))
        multiplier, base, allowed = draw.choice([0.5, 0.8]), draw.choice([1.0, 1.75]), 2
        options = Sampling(
            dry_multiplier=multiplier,
            dry_base=base,
            dry_allowed_length=allowed,
            dry_sequence_breakers=["\n"],
        )
        logits = np.zeros(256, np.float32)
        adjusted = Sampler(options, 256, tokenizer).adjust(logits, History(tokens))
        expected = reference.dry(tokens, multiplier, base, allowed, {ord("\n")})
        taken = {token: float(-value) for token, value in enumerate(adjusted) if value}
        assert taken == pytest.approx(expected)


def test_dry_takes_finitely_much_of_a_long_repetition():
    options = Sampling(dry_multiplier=5.0, dry_base=3.0, dry_sequence_breakers=())
    adjusted = Sampler(options, 2).adjust(np.zeros(2, np.float32), History([1] * 5000))
    assert adjusted[0] == 0 and np.isfinite(adjusted[1]) and adjusted[1] < -1e20


@pytest.mark.parametrize(
    ("multiplier", "base", "length", "taken"),
    [
        (1e308, 1.0, 3, 2.0**100),
        (1.0, 1e308, 3, 2.0**100),
        (1e-30, 2.0, 102, 1e-30 * 2.0**100),
        (0.8, 1.75, 2, 0.8),
    ],
)
def test_dry_of_extreme_settings(multiplier, base, length, taken):
    """Nothing overflows, and what is small stays what it is: length tokens of which 2 are free."""
    options = Sampling(dry_multiplier=multiplier, dry_base=base, dry_sequence_breakers=())
    history = History([*range(2, length + 2), 1, *range(2, length + 2)])
    adjusted = Sampler(options, 200).adjust(np.zeros(200, np.float32), history)
    assert adjusted[1] == pytest.approx(-taken, rel=1e-6)


def test_a_breaker_inside_a_token_and_one_of_several_tokens():
    tokenizer = small.byte_level(["a.\n"])
    after_newline = [*b"xy", tokenizer.id("a.Ċ"), *b"xy"]
    of_several = [*b"xyENDxy"]
    for tokens, breaker in ((after_newline, "\n"), (of_several, "END")):
        options = Sampling(
            dry_multiplier=1.0, dry_allowed_length=1, dry_sequence_breakers=[breaker]
        )
        adjusted = Sampler(options, 300, tokenizer).adjust(
            np.zeros(300, np.float32), History(tokens)
        )
        following = tokens[2]
        assert adjusted[following] == -1.75, "x, y came before it: two tokens, one allowed"


def test_logit_bias_and_allowed_ids():
    logits = np.array([1, 2, 3, 4], np.float32)
    bias = {0: 2.5, 3: -math.inf}
    adjusted = Sampler(Sampling(logit_bias=bias), 4).adjust(logits, History([]))
    assert adjusted.tolist() == [3.5, 2.0, 3.0, -math.inf]
    only = Sampler(Sampling(allowed_token_ids=[2, 0]), 4).adjust(logits, History([]))
    assert only.tolist() == [1.0, -math.inf, 3.0, -math.inf]
    assert logits.tolist() == [1, 2, 3, 4], "the caller's own"
    assert sample(logits, Sampling(allowed_token_ids=[1]), 0, 0) == 1


def test_bad_words_as_strings_and_ids():
    """A string is forbidden as it is tokenized, alone and after a space: here byte by byte."""
    tokenizer, logits = small.byte_level(), np.zeros(300, np.float32)
    sampler = Sampler(Sampling(bad_words=["the", "e", [7, 8, 9], 5]), 300, tokenizer)

    def forbidden(*tokens):
        adjusted = sampler.adjust(logits, History(tokens))
        return set(np.flatnonzero(np.isneginf(adjusted)).tolist())

    always = {5, ord("e")}
    assert forbidden(1, 2) == forbidden(8) == forbidden() == always
    assert forbidden(7, 8) == always | {9}
    sampler = Sampler(Sampling(bad_words=["the"]), 300, tokenizer)
    assert forbidden(*b" th") == forbidden(*b"th") == {ord("e")}
    assert forbidden(*b"t") == set()


def test_min_new_tokens_puts_off_end_and_stop_tokens():
    sampler = Sampler(Sampling(min_new_tokens=2, stop_token_ids=[1]), 4, end_ids=[3, 99])
    history, logits = History([0]), np.zeros(4, np.float32)
    for n_new in range(3):
        adjusted = sampler.adjust(logits, history)
        assert np.isneginf(adjusted).tolist() == [False, n_new < 2, False, n_new < 2]
        history.append(2)


def test_logits_processors():
    def by_ids(token_ids, logits):
        assert token_ids.dtype == np.int32 and logits.dtype == np.float32
        logits[token_ids] = -5.0

    def doubled(logits):
        return logits * 2

    history = History([1])
    options = Sampling(logits_processors=[by_ids, doubled])
    adjusted = Sampler(options, 3).adjust(np.array([1, 2, 3], np.float32), History([1]))
    assert adjusted.tolist() == [2.0, -10.0, 6.0]
    wrong = Sampler(Sampling(logits_processors=lambda logits: logits[:2]), 3)
    with pytest.raises(ValueError, match=r"shape \(2,\): expected float32 of shape \(3,\)"):
        wrong.adjust(np.zeros(3, np.float32), History([]))
    for wrong in (lambda logits: logits * 1j, lambda logits: "abc", lambda logits: logits > 0):
        with pytest.raises(ValueError, match=r"expected float32 of shape \(3,\)"):
            Sampler(Sampling(logits_processors=wrong), 3).adjust(np.ones(3, np.float32), history)
    with pytest.raises(TypeError, match="takes 3 arguments"):
        Sampler(Sampling(logits_processors=lambda token_ids, logits, more: logits), 3)
    broken = Sampling(logits_processors=lambda logits: logits.astype(np.float64) * 1e300)
    with pytest.raises(BadLogits):
        sample(np.ones(3, np.float32), broken, 0, 0)
    broken = Sampling(logits_processors=lambda logits: logits * math.nan)
    with pytest.raises(BadLogits):
        sample(np.ones(3, np.float32), broken, 0, 0)


def test_a_processor_cannot_change_the_tokens():
    """The history is what penalties and stops go by."""

    def rewrite(token_ids, logits):
        token_ids[:] = 0

    with pytest.raises(ValueError, match="read-only"):
        Sampler(Sampling(logits_processors=rewrite), 3).adjust(np.ones(3, np.float32), History([1]))


def test_what_a_processor_returns_stays_its_own():
    """A later one works in place, but on a copy."""
    mine = np.arange(3, dtype=np.float32)

    def ban(logits):
        logits[2] = -math.inf

    options = Sampling(logits_processors=[lambda logits: mine, ban])
    assert sample(np.zeros(3, np.float32), options, 0, 0) == 1
    assert mine.tolist() == [0, 1, 2]


def test_the_largest_settings_leave_finite_logits():
    """Not a warning either: they are errors here."""
    options = Sampling(
        logit_bias={0: 1e30, 1: -1e30, 2: -math.inf},
        repetition_penalty=1e-6,
        repeat_last_n=10**30,
        frequency_penalty=2.0,
        no_repeat_ngram_size=10**30,
        top_k=10**400,
    )
    history = History([0, 1, 2, 0])
    history.n_prompt = 1
    adjusted = Sampler(options, 4).adjust(np.ones(4, np.float32), history)
    assert np.isneginf(adjusted).tolist() == [False, False, True, False]
    assert sample(np.ones(4, np.float32), options, 0, 0, tokens=[0, 1]) == 0


def test_an_end_token_that_is_none_forbids_none():
    """Files say -1 where there is no end token."""
    sampler = Sampler(Sampling(min_new_tokens=1), 4, end_ids=[-1])
    assert np.isfinite(sampler.adjust(np.zeros(4, np.float32), History([0]))).all()


@pytest.mark.parametrize(
    ("limit", "n_kept"),
    [(-3e6, 1), (-math.inf, 1), (-1.0, 1), (0.0, 1), (1e9, 4), (math.inf, 4), (math.nan, 4)],
)
def test_mirostat_s_limit_may_be_anything(limit, n_kept):
    """A large eta drives it far below zero: then the likeliest is left."""
    logits = np.array([1.0, 3.0, 2.0, -5.0], np.float32)
    tokens, _ = Filters([("mirostat",)]).kept(logits, surprise_limit=limit)
    assert len(tokens) == n_kept and 1 in tokens


@pytest.mark.parametrize(
    "option",
    [
        {"logit_bias": {9: 1.0}},
        {"allowed_token_ids": [9]},
        {"bad_words": [[1, 9]]},
        {"stop_token_ids": [1, 9]},
    ],
)
def test_a_token_outside_the_vocabulary_is_named(option):
    with pytest.raises(
        ValueError, match=rf"{next(iter(option))} holds token id 9: expected 0 to 4"
    ):
        Sampler(Sampling(**option), 5)


def test_strings_need_a_tokenizer():
    for option in ({"bad_words": ["a"]}, {"dry_multiplier": 1.0}):
        with pytest.raises(ValueError, match="no tokenizer"):
            Sampler(Sampling(**option), 5)


def test_nothing_left_is_an_error():
    with pytest.raises(BadLogits):
        sample(np.zeros(3, np.float32), Sampling(bad_words=[0, 1, 2]), 0, 0)
