"""The front door: logits of transformers, greedy text of the real model, and how calls behave."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import rillm
from rillm import errors
from rillm.checkpoint import hub
from weights import load_case, write_model

LLAMAS = [
    "base", "biases", "head_dim", "head_dim_24", "tied", "llama3_rope", "linear_rope", "theta",
    "vocab_negative", "mha", "odd_sizes", "one_layer", "long",
]  # fmt: skip
GOLDEN = json.loads((Path(__file__).parent / "golden/smollm2.json").read_text())


@pytest.mark.parametrize("case", LLAMAS)
def test_logits_are_those_of_transformers(tiny_folder, case):
    golden = load_case(case)
    with rillm.Model.from_pretrained(tiny_folder(case), weights="f32") as model:
        with model.session() as session:
            decoded = np.stack([session.step(token) for token in golden["tokens"]])
        with model.session() as session:
            prefilled = session.prefill(golden["tokens"])
    expected = np.array(golden["logits"])
    assert len(golden["tokens"]) >= 64
    assert np.abs(decoded[golden["positions"]] - expected).max() <= 1e-4
    assert np.array_equal(prefilled, decoded[-1])


@pytest.mark.parametrize("case", ["llama3_rope", "linear_rope", "theta"])
def test_v4_and_v5_configs_are_one_model(tmp_path, case):
    """vllm-project/vllm#28542: rope_theta moved into rope_parameters."""
    golden = load_case(case)
    write_model(tmp_path, golden | {"config": golden["config_v4"]})
    with rillm.Model.from_pretrained(tmp_path, weights="f32") as model, model.session() as session:
        got = session.prefill(golden["tokens"])
    assert np.abs(got - golden["logits"][-1]).max() <= 1e-4


def test_negative_logits_never_lose_to_padding(tiny_folder):
    with rillm.Model.from_pretrained(tiny_folder("vocab_negative"), weights="f32") as model:
        with model.session() as session:
            logits = session.prefill([1, 2, 3])
    assert logits.shape == (101,) and (logits < 0).all()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_files_are_exactly_their_values(tmp_path, dtype):
    tokens = load_case("base")["tokens"]
    tensors = write_model(tmp_path, "base", dtype)
    with rillm.Model.from_pretrained(tmp_path, weights="f32") as model, model.session() as session:
        from_half = session.prefill(tokens)
    with rillm.Model.from_pretrained(tmp_path, weights=dtype.lower(), kv="f32") as model:
        with model.session() as session:
            kept_half = session.prefill(tokens)
    assert tensors and np.array_equal(from_half, kept_half)


def test_shards_are_one_model(tiny_folder):
    tokens = load_case("base")["tokens"]
    results = []
    for shards in (1, 3):
        with rillm.Model.from_pretrained(tiny_folder("base", "F32", shards)) as model:
            with model.session() as session:
                results.append(session.prefill(tokens))
    assert np.array_equal(*results)


@pytest.fixture(scope="module")
def golden_model(real_model_path):
    with rillm.Model.from_pretrained(real_model_path, weights="f32", context=512) as model:
        yield model


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g["prompt"][:24])
def test_smollm2_in_f32_says_what_transformers_says(golden_model, golden):
    assert golden_model.encode(golden["prompt"]) == golden["ids"]
    with golden_model.session() as session:
        logits = session.prefill(golden["ids"])
    for token, expected in golden["top8"]:
        assert abs(logits[token] - expected) <= 1e-3
    result = golden_model.generate(golden["prompt"], max_new_tokens=48, ignore_eos=True)
    assert result.token_ids == golden["greedy"]


@pytest.fixture(scope="module")
def int16_model(real_model_path):
    with rillm.Model.from_pretrained(real_model_path, activations="int16") as model:
        yield model


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g["prompt"][:24])
def test_int16_activations_say_what_floats_say(int16_model, golden):
    """The file's own four and eight bits, and the words that transformers has for them in f32."""
    assert set(int16_model.info()["weights"]) == {"q4m", "q8"}
    result = int16_model.generate(golden["prompt"], max_new_tokens=48, ignore_eos=True)
    assert result.token_ids == golden["greedy"]


def test_activations_are_named(tiny_folder):
    with pytest.raises(ValueError, match="activations is 'int4', expected one of int8, int16"):
        rillm.Model.from_pretrained(tiny_folder("base"), activations="int4")
    prints = set()
    for activations in ("int8", "int16"):
        with rillm.Model.from_pretrained(tiny_folder("base"), activations=activations) as model:
            assert model.info()["activations"] == activations
        with rillm.Model.from_pretrained(
            tiny_folder("base"), weights="bf16", activations=activations
        ) as model:
            assert model.info()["activations"] == "f32"  # and either is the same model
            prints.add(model.fingerprint)
    assert len(prints) == 1


def test_the_readme_example(real_model):
    ids = real_model.encode("Once upon a time")
    assert real_model.decode(ids) == "Once upon a time"
    pieces = list(real_model.stream("Once upon a time", max_new_tokens=24, temperature=0.7, seed=1))
    result = real_model.generate("Once upon a time", max_new_tokens=24, temperature=0.7, seed=1)
    assert "".join(piece.text for piece in pieces) == result.text
    assert result.seed == 1 and result.finish_reason in ("stop", "length")
    assert 1 <= len(result.token_ids) <= 24
    session = real_model.session(context=2048)
    logits = session.prefill(ids, chunk=None)
    assert logits.dtype == np.float32 and logits.shape == (real_model.vocab_size,)
    again = session.step(int(logits.argmax()))
    assert again.shape == logits.shape and session.position == len(ids) + 1
    assert session.tokens[:-1] == ids


@pytest.fixture(scope="module")
def tiny(tiny_folder):
    with rillm.Model.from_pretrained(tiny_folder("base")) as model:
        yield model


def test_score_is_the_log_softmax_of_each_step(tiny):
    ids = load_case("base")["tokens"][:70]
    with tiny.session() as session:
        steps = [session.step(token).astype(np.float64) for token in ids]
    expected = [np.nan] + [
        logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        for logits, token in zip(steps, ids[1:], strict=False)
    ]
    with tiny.session() as session:
        np.testing.assert_allclose(session.score(ids), expected, rtol=1e-6)
        assert session.tokens == ids
        session.rewind(40)
        np.testing.assert_allclose(session.score(ids[40:]), expected[40:], rtol=1e-6)


def test_prefill_continues_and_results_are_the_callers_own(tiny):
    ids = load_case("base")["tokens"][:20]
    with tiny.session() as session:
        first = session.prefill(ids[:10])
        kept = first.copy()
        second = session.prefill(ids[10:])
        assert np.array_equal(first, kept)
        second[:] = 0
        session.rewind(10)
        assert np.array_equal(session.prefill(ids[10:]), tiny_prefill(tiny, ids))


def tiny_prefill(model, ids):
    with model.session() as session:
        return session.prefill(ids)


@pytest.mark.parametrize("options", [{"weight": "q8"}, {"temperature": 1.0}, {"context_length": 5}])
def test_unknown_options_of_from_pretrained_are_type_errors(tiny_folder, options):
    with pytest.raises(TypeError, match=next(iter(options))):
        rillm.Model.from_pretrained(tiny_folder("base"), **options)


@pytest.mark.parametrize(
    "options",
    [{"weights": "q7"}, {"kv": "q4"}, {"threads": 0}, {"threads": 100000}, {"context": 0}],
)
def test_values_that_are_none_of_an_options_are_refused_before_a_fetch(monkeypatch, options):
    monkeypatch.setattr(hub, "find", lambda *_, **__: pytest.fail("looked for"))
    with pytest.raises(ValueError, match="expected"):
        rillm.Model.from_pretrained("smollm2-135m", **options)


@pytest.mark.parametrize("variable", ["RILLM_ISA", "RILLM_THREADS"])
def test_a_wrong_variable_is_refused_before_a_fetch(monkeypatch, variable):
    monkeypatch.setattr(hub, "find", lambda *_, **__: pytest.fail("looked for"))
    monkeypatch.setenv(variable, "many")
    with pytest.raises(ValueError, match=variable):
        rillm.Model.from_pretrained("smollm2-135m")


@pytest.mark.parametrize("alias, name", [("int8", "q8"), ("int4", "q4")])
def test_accepted_names(tiny_folder, alias, name):
    with rillm.Model.from_pretrained(tiny_folder("base"), weights=alias) as a:
        with rillm.Model.from_pretrained(tiny_folder("base"), weights=name) as b:
            assert a.info()["weights"] == b.info()["weights"]


def test_what_a_session_refuses(tiny):
    with tiny.session(context=8) as session:
        session.prefill([1, 2, 3])
        for wrong in (-1, tiny.vocab_size):
            with pytest.raises(ValueError, match="vocabulary"):
                session.step(wrong)
        with pytest.raises(ValueError, match="at least one"):
            session.prefill([])
        with pytest.raises(ValueError, match="expected 0 to 3"):
            session.rewind(4)
        with pytest.raises(ValueError, match="expected 1 to"):
            session.prefill([1], chunk=0)
        with pytest.raises(errors.ContextFull, match="context of 8"):
            session.prefill([1] * 6)
        assert session.tokens == [1, 2, 3]
        session.prefill([1] * 5)
        with pytest.raises(errors.ContextFull):
            session.step(1)
    with pytest.raises(errors.SessionClosed):
        session.step(1)
    with pytest.raises(ValueError, match="context"):
        tiny.session(context=0)


def test_a_closed_model_gives_no_sessions(tiny_folder):
    model = rillm.Model.from_pretrained(tiny_folder("base"))
    session = model.session()
    model.close()
    with pytest.raises(errors.SessionClosed):
        model.session()
    for ask in (model.info, lambda: model.generate([1]), lambda: model.stream([1])):
        with pytest.raises(errors.SessionClosed, match="model is closed"):
            ask()
    assert session.step(1).shape == (97,)  # an open session keeps the weights


def test_one_session_used_twice_is_busy(tiny):
    """abetlen/llama-cpp-python#471: a second call on one session raises, never interleaves."""
    ids = load_case("base")["tokens"]
    seen, started = [], threading.Event()
    with tiny.session(context=1 << 15) as session:

        def long_prefill():
            started.set()
            session.prefill((ids * 100)[:8000], chunk=64)

        thread = threading.Thread(target=long_prefill)
        thread.start()
        started.wait()
        while thread.is_alive():
            try:
                session.rewind(session.position)
            except errors.SessionBusy as error:
                seen.append(str(error))
        thread.join()
        assert seen and session.position == 8000


def test_info_tells_what_runs(tiny):
    info = tiny.info()
    assert info["family"] == "llama" and info["isa"] == info["isa_available"][-1]
    assert info["shapes"]["dim"] == 64 and info["shapes"]["vocab"] == 97
    assert set(info["weights"]) == {"q8"} and info["kv"] == "f16"
    layer = 16 * (64 * 64 // 16 + 2 * 32 * 64 // 16 + 64 * 64 // 16 + 3 * 96 * 64 // 16)
    n_layers = info["shapes"]["layers"]
    assert info["n_parameters"] == n_layers * (layer + 128) + 64 + 2 * 97 * 64
    assert info["threads"] >= 1 and info["threads_why"]
    read = info["stage_bytes"]
    assert sum(read.values()) == info["bytes_per_token"]
    assert read["gate_up"] == n_layers * 2 * 96 * 64 * 17 // 16
    assert read["heads"] == n_layers * 128 * 64 * 17 // 16
