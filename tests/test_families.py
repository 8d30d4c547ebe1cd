"""Every family has the logits of transformers, whatever form its config has."""

import json
from pathlib import Path

import numpy as np
import pytest

import rillm
from rillm.engine._engine import available_isas
from rillm.families import MODEL_TYPES, family_of, table
from weights import FIXTURES, load_case, make_tensors, write_model, write_safetensors

OTHERS = ("rope", "samplers")  # fixtures that are no models
CASES = sorted(p.stem for p in FIXTURES.glob("*.json") if p.stem not in OTHERS)
FORMS = [(c, form) for c in CASES for form in ("config", "config_v4") if form in load_case(c)]
BY_LENGTH = [case for case in CASES if "lengths" in load_case(case)]
ONE_A_FAMILY = sorted({load_case(c)["config"]["model_type"]: c for c in reversed(CASES)}.items())


def load(folder, case, form="config", **options):
    golden = load_case(case)
    write_model(folder, golden | {"config": golden[form]})
    return rillm.Model.from_pretrained(folder, **options)


def all_logits(session, ids):
    """float32 [len(ids), vocab] of one forward over ids."""
    session._turn_for(len(ids))
    return session._forward(ids, [True] * len(ids))


@pytest.mark.parametrize("case, form", FORMS, ids="-".join)
def test_logits_are_those_of_transformers(tmp_path, case, form):
    golden = load_case(case)
    tokens, expected = golden["tokens"], np.array(golden["logits"])
    with load(tmp_path, case, form, weights="f32") as model:
        if case in BY_LENGTH:
            got = []
            for position, length in zip(golden["positions"], golden["lengths"], strict=True):
                with model.session() as session:
                    got.append(all_logits(session, tokens[:length])[position])
            assert np.abs(np.stack(got) - expected).max() <= 1e-4
        else:
            with model.session() as session:
                decoded = np.stack([session.step(token) for token in tokens])
            assert np.abs(decoded[golden["positions"]] - expected).max() <= 1e-4
            with model.session() as session:
                assert np.array_equal(session.prefill(tokens, chunk=13), decoded[-1])


def test_every_family_has_a_golden():
    assert {model_type for model_type, _ in ONE_A_FAMILY} == set(MODEL_TYPES)


@pytest.mark.parametrize("model_type, case", ONE_A_FAMILY)
@pytest.mark.parametrize("weights", ["q8", "q4"])
def test_the_contract_holds_for_every_family(monkeypatch, tmp_path, model_type, case, weights):
    """One hash over ISA, threads and chunks."""
    tokens, seen = load_case(case)["tokens"][:70], set()
    for isa in available_isas():
        monkeypatch.setenv("RILLM_ISA", isa)
        for threads, chunk in ((1, 64), (2, 1), (3, 5), (2, 33)):
            with load(tmp_path, case, weights=weights, threads=threads) as model:
                with model.session() as session:
                    seen.add(session.prefill(tokens, chunk=chunk).tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("case", BY_LENGTH)
def test_crossing_the_border_of_a_rope_is_one_forward(tmp_path, case):
    """A session that grew, token by token or in parts, or shrank, holds what one forward would."""
    golden = load_case(case)
    tokens = golden["tokens"]
    with load(tmp_path, case, weights="f32") as model:

        def cold(length):
            with model.session() as session:
                return session.prefill(tokens[:length])

        with model.session() as session:
            for length in range(1, 70):
                assert np.array_equal(session.step(tokens[length - 1]), cold(length)), length
            session.rewind(20)
            assert np.array_equal(session.prefill(tokens[20:25]), cold(25))
            assert np.array_equal(session.prefill(tokens[25:60], chunk=7), cold(60))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_family_is_thirty_lines_of_data(model_type):
    path = Path(rillm.__file__).parent / f"families/{model_type}.py"
    text = path.read_text()
    data = text[text.index("FAMILY = ") :]
    assert len(data.splitlines()) <= 30
    assert family_of(model_type, path).model_type == model_type


def test_shapes_with_head_dim_of_their_own(tmp_path):
    """paiml/entrenar#262: q_proj is heads times head_dim, not hidden times hidden."""
    config = load_case("qwen3_head_dim")["config"]
    assert config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]
    load(tmp_path, "qwen3_head_dim").close()


@pytest.mark.parametrize("case", ["qwen3", "olmo2"])
def test_norms_of_q_and_k_have_one_length(tmp_path, case):
    """lablup/mlxcel#316: a q_norm of the other scope has another length, and is refused."""
    golden = load_case(case)
    other = golden | {"config": golden["config"] | {"model_type": "qwen3"}}
    write_model(tmp_path, golden)
    if case == "olmo2":
        (tmp_path / "config.json").write_text(json.dumps(other["config"]))
        with pytest.raises(rillm.errors.CheckpointError):
            rillm.Model.from_pretrained(tmp_path)
    else:
        rillm.Model.from_pretrained(tmp_path).close()


def test_gemma_norms_are_one_plus_w():
    """linkedin/Liger-Kernel#74: Gemma stores w - 1, Llama w."""
    offsets = {name: family_of(name, Path()).norm_offset for name in ("gemma", "llama")}
    assert offsets == {"gemma": 1.0, "llama": 0.0}


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_a_window_includes_the_query(tmp_path, chunk):
    """ml-explore/mlx-lm#390: W = 4 sees 1, 2, 3, 4, 4, ... keys, in prefill and in decode.

    With one layer, the logits at position p are those of the last min(p + 1, 4) tokens alone, at
    their positions: what lies before the window cannot change a bit.
    """
    golden = load_case("mistral")
    config = golden["config"] | {"sliding_window": 4, "num_hidden_layers": 1}
    write_model(tmp_path, {"config": config})
    tokens = golden["tokens"][:12]
    with rillm.Model.from_pretrained(tmp_path) as model:

        def last(ids):
            with model.session() as session:
                return session.prefill(ids, chunk=chunk)

        for p in range(12):
            first_seen = max(0, p - 3)
            for changed in range(p + 1):
                other = list(tokens[: p + 1])
                other[changed] = (other[changed] + 1) % 97
                same = np.array_equal(last(other), last(tokens[: p + 1]))
                assert same == (changed < first_seen), (p, changed)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_multimodal_folder_loads_its_language_part(tmp_path, prefix):
    """Names as transformers 4 and 5 write them; the vision tower is left out, and counted."""
    golden = load_case("gemma3_text")
    tensors = {
        name.replace("model.", prefix, 1): (values.shape, values.tobytes())
        for name, values in make_tensors(golden["config"]).items()
    }
    for name in ("vision_tower.a.weight", "vision_tower.b.weight", "multi_modal_projector.c"):
        tensors[name] = ((2,), np.zeros(2, np.float32).tobytes())
    write_safetensors(tmp_path / "model.safetensors", "F32", tensors)
    config = {"model_type": "gemma3", "text_config": golden["config"], "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with rillm.Model.from_pretrained(tmp_path, weights="f32") as model:
        assert sum(model.info()["skipped"].values()) == 3
        with model.session() as session:
            got = session.prefill(golden["tokens"])
    assert np.abs(got - np.array(golden["logits"])[-1]).max() <= 1e-4


def test_the_readme_lists_the_families():
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert table() in readme
