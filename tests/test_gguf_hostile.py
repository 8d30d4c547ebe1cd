"""GGUF files that lie: a typed error before anything large is allocated, or a model after all."""

import random
import tracemalloc

import pytest

import fuzz_gguf
from gguf_models import CASES, load_manifest, write_gguf
from gguf_writer import encode, llama_metadata
from rillm.checkpoint import gguf, open_checkpoint
from rillm.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from rillm.errors import CheckpointError, MalformedFile
from rillm.plan import make_plan
from rillm.weights.packing import Layout
from small_vocabularies import byte_level, sentencepiece
from weights import FIXTURES

ANY = {
    "float32": [0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e-45, 3e38, 1.0],
    "uint32": [0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1],
    "bool": [True, False],
    "string": ["", "none", "linear", "yarn", "longrope"],
}


def outcome(path):
    """The name of the error that the file raises, or "a model"; any other error fails the test."""
    try:
        with open_checkpoint(path) as checkpoint:
            make_plan(checkpoint, "f32", Layout())
    except CheckpointError as error:
        assert str(path) in str(error)
        return type(error).__name__
    return "a model"


def combinations():
    """Each key of each family with each value that is wrong for most."""
    for case in CASES:
        for key, (kind, content) in load_manifest(case)["metadata"].items():
            if key.startswith(("general.", "tokenizer.")):
                continue
            for value in ANY[kind]:
                yield (
                    case,
                    key,
                    kind,
                    [value] * len(content) if isinstance(content, list) else value,
                )


def test_any_number_anywhere_is_a_typed_error_or_a_model(tmp_path):
    chosen = random.Random(0).sample(list(combinations()), 120)
    outcomes = set()
    tracemalloc.start()
    for case, key, kind, value in chosen:
        manifest = load_manifest(case)
        manifest["metadata"][key] = [kind, value]
        outcomes.add(outcome(write_gguf(tmp_path / "model.gguf", manifest)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20
    assert {"a model", "MalformedFile", "UnsupportedConfig", "ShapeMismatch"} <= outcomes


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("llama.attention.head_count", 2**31 - 2, "a matrix has"),
        ("llama.rope.freq_base", 1.0, "rope theta is 1.0"),
        ("llama.rope.freq_base", float("nan"), "rope theta is nan"),
        ("llama.rope.scaling.yarn_beta_fast", -1.0, "rope beta_fast is -1"),
        ("llama.rope.scaling.original_context_length", 0, "is 0, expected at least 1"),
        ("llama.rope.scaling.original_context_length", 1, "1 positions, expected at least 2"),
        ("llama.rope.scaling.factor", float("inf"), "rope factor is inf"),
        ("llama.attention.layer_norm_rms_epsilon", -1.0, "norm epsilon is -1"),
        ("llama.rope.scaling.original_context_length", 2**31, "a rope trained for 2147483648"),
    ],
)
def test_numbers_that_cannot_be(tmp_path, key, value, words):
    manifest = load_manifest("llama_yarn_betas")
    manifest["metadata"][key] = ["uint32" if isinstance(value, int) else "float32", value]
    with pytest.raises(MalformedFile, match=words):
        open_checkpoint(write_gguf(tmp_path / "model.gguf", manifest))


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-45, float("nan"), float("inf")])
def test_rope_factors_that_cannot_be(tmp_path, value):
    """Found by fuzzing: the factors of llama3 stand among the tensors, and divide."""

    def change(_, tensors):
        tensors["rope_freqs.weight"][3] = value

    path = write_gguf(tmp_path / "model.gguf", load_manifest("llama_llama3"), change)
    assert outcome(path) == "MalformedFile"


@pytest.mark.parametrize("case, value", [("granite", 0.0), ("granite", float("nan"))])
def test_a_scale_that_is_no_divisor(tmp_path, case, value):
    manifest = load_manifest(case)
    manifest["metadata"]["granite.logit_scale"] = ["float32", value]
    with pytest.raises(MalformedFile, match="logits_scaling is"):
        open_checkpoint(write_gguf(tmp_path / "model.gguf", manifest))


@pytest.mark.parametrize("case", ["gemma3_text", "phi3_longrope", "apertus", "olmo3_yarn"])
def test_cve_2026_7482_damage_to_a_model(tmp_path, case):
    data = write_gguf(tmp_path / "model.gguf", load_manifest(case)).read_bytes()
    vocabulary, names = data.index(b"tokenizer.ggml.tokens"), data.index(b"token_embd.weight")
    rng, outcomes = random.Random(case), set()
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            place = rng.choice([rng.randrange(vocabulary), names + rng.randrange(-400, 400)])
            damaged[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        (tmp_path / "model.gguf").write_bytes(damaged)
        outcomes.add(outcome(tmp_path / "model.gguf"))
    assert {"a model", "MalformedFile", "TruncatedFile"} <= outcomes


@pytest.mark.parametrize("vocabulary", [byte_level("llama-bpe"), sentencepiece(True)])
def test_ggml_org_llama_cpp_24888_damage_to_a_vocabulary(tmp_path, vocabulary):
    """The list of tokens, its types, scores and merges: a tokenizer, or a typed error."""
    few = {k: v[:600] if isinstance(v, list) else v for k, v in vocabulary.items()}
    few["tokenizer.ggml.bos_token_id"] = 2
    few.pop("tokenizer.ggml.eos_token_id", None)
    if "tokenizer.ggml.merges" in few:
        made = set(few["tokenizer.ggml.tokens"])
        merges = vocabulary["tokenizer.ggml.merges"]
        few["tokenizer.ggml.merges"] = [m for m in merges if m.replace(" ", "") in made][:300]
    data = encode(llama_metadata() | few, {})
    start = data.index(b"tokenizer.ggml.model")
    rng, outcomes, path = random.Random(1), set(), tmp_path / "model.gguf"
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(start, len(data))] = rng.choice([0, 1, 0x7F, 0xFF, 65])
        path.write_bytes(damaged)
        try:
            tokenizer = tokenizer_from_gguf(gguf.read(path)[0])
            assert isinstance(tokenizer.encode("abc \n é"), list)
            outcomes.add("a tokenizer")
        except CheckpointError as error:
            outcomes.add(type(error).__name__)
    assert {"a tokenizer", "MalformedFile"} <= outcomes


@pytest.mark.parametrize("file", sorted((FIXTURES / "hostile").iterdir()), ids=lambda f: f.name)
def test_what_fuzzing_found(tmp_path, file):
    """Each once raised something untyped, or did not end."""
    path = fuzz_gguf.write(tmp_path / "model.gguf", file.read_bytes())
    assert fuzz_gguf.outcome(path) != "a model"


def test_fuzzing_a_little(tmp_path):
    """Seeds and their mutations load or raise a typed error; `.ci/run fuzz` goes on for longer."""
    seeds, outcomes = fuzz_gguf.seeds(), set()
    inputs = [*seeds, *(fuzz_gguf.mutate(seeds[i % len(seeds)], 1 << 15, i) for i in range(150))]
    for data in inputs:
        outcomes.add(fuzz_gguf.outcome(fuzz_gguf.write(tmp_path / "model.gguf", data)))
    assert {"a model", "MalformedFile", "TruncatedFile", "MissingTensor"} <= outcomes
