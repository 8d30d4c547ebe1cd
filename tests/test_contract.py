"""The contract: logits depend on weights, formats, tokens and positions alone. Equality of bits."""

import numpy as np
import pytest

import rillm
from rillm.engine._engine import Cache, available_isas
from weights import load_case

ISAS = available_isas()
WEIGHTS = ["f32", "f16", "bf16", "q8", "q4", "q4_64"]
CASES = ["base", "biases", "head_dim_24", "odd_sizes", "vocab_negative"]
N = 80


def load(monkeypatch, folder, isa=None, **options):
    if isa:
        monkeypatch.setenv("RILLM_ISA", isa)
    return rillm.Model.from_pretrained(folder, **options)


def plain(model, tokens):
    """One row a step, all logits: float32 [n, vocab]."""
    with model.session() as session:
        return np.stack([session.step(token) for token in tokens])


@pytest.fixture
def tokens():
    return load_case("base")["tokens"][:N]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
def test_every_isa_gives_the_same_bits(monkeypatch, tiny_folder, tokens, weights, kv):
    for case in CASES:
        runs = [
            plain(load(monkeypatch, tiny_folder(case), isa, weights=weights, kv=kv), tokens)
            for isa in ISAS
        ]
        assert all(np.array_equal(runs[0], other) for other in runs[1:]), case


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "formats",
    [("f32", "int8"), ("q8", "int8"), ("q4", "int8"), ("q8", "int16"), ("q4", "int16")],
    ids="-".join,
)
def test_any_chunking_and_any_number_of_threads(monkeypatch, tiny_folder, tokens, isa, formats):
    expected = None
    options = dict(zip(("weights", "activations"), formats, strict=True))
    for threads in (1, 2, 3, 4):
        model = load(monkeypatch, tiny_folder("base"), isa, threads=threads, **options)
        if expected is None:
            expected = plain(model, tokens)
        for chunk in [*range(1, 17), 31, 32, 33, 63, 64]:
            with model.session() as session:
                assert np.array_equal(session.prefill(tokens, chunk=chunk), expected[-1])


@pytest.mark.parametrize("isa", ISAS)
def test_every_row_of_a_step_equals_its_own_step(monkeypatch, tiny_folder, tokens, isa):
    """ml-explore/mlx-lm#1423: logits for one position are the same for 1..16 rows a call."""
    model = load(monkeypatch, tiny_folder("base"), isa, weights="q8")
    expected = plain(model, tokens)
    for n_rows in range(1, 17):
        cache, got = Cache(model._engine, "f16", N), []
        for start in range(0, N, n_rows):
            part = tokens[start : start + n_rows]
            got.append(model._engine.forward(part, cache, [True] * len(part)))
        assert np.array_equal(np.concatenate(got), expected)


@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_rows_dealt_out_instead_of_panels(tiny_folder, activations):
    """As 32 rows and more a worker are, here of every shape that a layer has."""
    ids = np.random.default_rng(3).integers(3, 97, 100).tolist()
    for case in ("base", "gemma2", "gemma3_text", "olmo2", "gpt2", "phi", "cohere2", "apertus"):
        expected = None
        for threads, chunk in ((1, 8), (2, 100), (3, 96)):
            options = {"threads": threads, "weights": "q8", "activations": activations}
            with rillm.Model.from_pretrained(tiny_folder(case), **options) as model:
                with model.session() as session:
                    logits = session.prefill(ids, chunk=chunk)
            expected = logits if expected is None else expected
            assert np.array_equal(logits, expected), (case, threads)


def test_few_of_the_rows_dealt_out_want_logits(tiny_folder):
    """Fewer tiles of them than workers, so that some of these have none to norm."""
    ids = np.random.default_rng(4).integers(3, 97, 128).tolist()
    wanted = [i % 14 == 0 for i in range(128)]  # ten
    seen = []
    for threads in (1, 4):
        with rillm.Model.from_pretrained(tiny_folder("base"), threads=threads) as model:
            seen.append(model._engine.forward(ids, Cache(model._engine, "f16", 128), wanted))
    assert np.array_equal(*seen)


def test_rows_of_several_caches_in_one_step(tiny_folder, tokens):
    with rillm.Model.from_pretrained(tiny_folder("base")) as model:
        expected = plain(model, tokens)
        for count in (2, 5, 11):
            caches = [Cache(model._engine, "f16", N) for _ in range(count)]
            for i in range(count):  # each a different way into the text
                if i:
                    model._engine.forward(tokens[: 3 * i], caches[i])
            for step in range(20):
                at = [3 * i + step for i in range(count)]
                got = model._engine.forward([tokens[p] for p in at], caches, [True] * count)
                assert np.array_equal(got, expected[at])


@pytest.mark.parametrize("weights", ["q8", "q4", "q4_64"])
def test_int16_activations_have_one_set_of_bits(monkeypatch, tiny_folder, tokens, weights):
    for case in CASES:
        options = {"weights": weights, "activations": "int16"}
        runs = [plain(load(monkeypatch, tiny_folder(case), isa, **options), tokens) for isa in ISAS]
        assert all(np.array_equal(runs[0], other) for other in runs[1:]), case


@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
def test_unseen_slots_are_never_read(tiny_folder, kv):
    """Every slot past the length holds NaN; a session that was rewound holds other tokens there."""
    case = load_case("long")
    tokens = case["tokens"][:300]
    with rillm.Model.from_pretrained(tiny_folder("long"), kv=kv) as model:
        expected = plain(model, tokens)
        cache, got = Cache(model._engine, kv, 600), []
        for start in range(0, 300, 20):
            part = tokens[start : start + 20]
            model._engine.forward(part[::-1], cache)  # takes the page, leaves other keys there
            cache.rewind(start)
            cache.fill_unseen(0xFF)
            got.append(model._engine.forward(part, cache, [True] * len(part)))
        assert np.array_equal(np.concatenate(got), expected)


def test_rewound_equals_cold(tiny_folder, tokens):
    with rillm.Model.from_pretrained(tiny_folder("base")) as model, model.session() as session:
        expected = plain(model, tokens)
        session.prefill(tokens)
        rng = np.random.default_rng(7)
        for _ in range(50):
            position = int(rng.integers(0, session.position))
            session.rewind(position)
            more = int(rng.integers(1, N - position + 1))
            chunk = int(rng.integers(1, 40))
            got = session.prefill(tokens[position : position + more], chunk=chunk)
            assert np.array_equal(got, expected[position + more - 1])
            assert session.tokens == tokens[: position + more]


@pytest.mark.parametrize("weights", ["q8", "q4", "f32"])
def test_blocks_and_splits_do_not_show(monkeypatch, tiny_folder, weights):
    """600 positions cross attention blocks and cache pages; few and many rows take other paths."""
    tokens = load_case("long")["tokens"]
    expected = None
    for isa in ISAS:
        for threads in (1, 3):
            model = load(monkeypatch, tiny_folder("long"), isa, weights=weights, threads=threads)
            for chunk in (1, 7, 64, 257, 512):
                with model.session() as session:
                    got = session.prefill(tokens, chunk=chunk)
                expected = got if expected is None else expected
                assert np.array_equal(got, expected), (isa, threads, chunk)


def test_the_real_model_has_one_set_of_bits(monkeypatch, real_model_path):
    ids = [504, 3575, 282, 4649, 314]
    seen = set()
    for isa in ISAS:
        for threads in (1, 2):
            with load(monkeypatch, real_model_path, isa, threads=threads) as model:
                with model.session() as session:
                    seen.add(session.prefill(ids, chunk=2).tobytes())
    assert len(seen) == 1
