"""Every family from GGUF: the files of llama.cpp's converter, and the logits of the folder."""

from pathlib import Path

import numpy as np
import pytest

import rillm
from gguf_models import CASES, checksums, gguf_tensors, load_manifest, write_gguf
from rillm import cpu, errors
from rillm.checkpoint import open_checkpoint
from rillm.families import MODEL_TYPES, family_of
from weights import load_case, write_model

# files hold rotary frequencies, or divisors of them, rounded by the converter
ROUNDED_ROPES = {"llama_llama3", "exaone4_full", "apertus", "hunyuan_v1_dense_alpha"}

GELU = {"gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "phi", "starcoder2"}


def logits(path, tokens):
    model = rillm.Model.from_pretrained(path, weights="f32", context=len(tokens))
    with model, model.session() as session:
        session._turn_for(len(tokens))
        return session._forward(tokens, [True] * len(tokens))


@pytest.mark.parametrize("case", CASES)
def test_our_writer_writes_what_the_converter_does(case):
    manifest = load_manifest(case)
    assert checksums(gguf_tensors(manifest["config"])) == manifest["tensors"]


@pytest.mark.parametrize("case", CASES)
def test_huggingface_candle_3410_logits_are_those_of_the_folder(tmp_path, case):
    """Also at position 100 and beyond, where a wrong turn can no longer hide."""
    manifest = load_manifest(case)
    write_model(tmp_path / "folder", {"config": manifest["config"]})
    path = write_gguf(tmp_path / "model.gguf", manifest)
    tokens = manifest["tokens"] + manifest["tokens"][:20]
    assert len(tokens) > 100
    got, expected = logits(path, tokens), logits(tmp_path / "folder", tokens)
    if case in ROUNDED_ROPES:
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    else:
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("case", [c for c in CASES if "llama_cpp_logits" in load_manifest(c)])
def test_logits_are_those_of_llama_cpp(tmp_path, case):
    """Its GELU comes from a table of 16-bit floats: 1e-3 of the largest; without it, 1e-5."""
    manifest = load_manifest(case)
    expected = manifest["llama_cpp_logits"]
    got = logits(write_gguf(tmp_path / "model.gguf", manifest), manifest["tokens"])[-1]
    by_table = manifest["config"]["model_type"] in GELU
    assert np.abs(got - expected).max() <= (1e-3 if by_table else 1e-5) * np.abs(expected).max()


def fuse(tensors, parts, whole):
    for layer in range(2):
        for end in ("weight", "bias"):
            names = [f"blk.{layer}.{part}.{end}" for part in parts]
            if names[0] in tensors:
                rows = [tensors.pop(name) for name in names]
                tensors[f"blk.{layer}.{whole}.{end}"] = np.concatenate(rows)


def split(tensors, whole, parts, lengths):
    for layer in range(2):
        rows = tensors.pop(f"blk.{layer}.{whole}.weight")
        for part, piece in zip(parts, np.split(rows, np.cumsum(lengths)[:-1]), strict=True):
            tensors[f"blk.{layer}.{part}.weight"] = piece


def test_q_k_v_and_gate_up_come_in_one_matrix_or_in_several(tmp_path):
    def fused(_, tensors):
        fuse(tensors, ("attn_q", "attn_k", "attn_v"), "attn_qkv")

    def apart(_, tensors):
        split(tensors, "attn_qkv", ("attn_q", "attn_k", "attn_v"), (64, 64, 64))
        split(tensors, "ffn_up", ("ffn_gate", "ffn_up"), (96, 96))

    for case, change in (("qwen2", fused), ("llama_biases", fused), ("phi3", apart)):
        manifest = load_manifest(case)
        plain = write_gguf(tmp_path / "plain.gguf", manifest)
        other = write_gguf(tmp_path / "other.gguf", manifest, change)
        assert np.array_equal(*(logits(path, manifest["tokens"]) for path in (plain, other)))


@pytest.mark.parametrize(
    "case, none",
    [
        ("granite", {"attention.scale": 0.25, "residual_scale": 1.0, "embedding_scale": 1.0}),
        ("cohere", {"logit_scale": 1.0}),
        ("cohere2", {"logit_scale": 1.0}),
    ],
)
def test_a_scale_of_0_is_none(tmp_path, case, none):
    """As in llama.cpp's graphs, where a head of 16 values is then scaled by 1 / sqrt(16)."""
    manifest = load_manifest(case)
    architecture = manifest["metadata"]["general.architecture"][1]
    got = []
    for factor in (1.0, 0.0, None):

        def change(metadata, _, factor=factor):
            for key, value in none.items():
                metadata[f"{architecture}.{key}"] = value * (factor or 0.0)
                if factor is None:
                    del metadata[f"{architecture}.{key}"]

        path = write_gguf(tmp_path / "model.gguf", manifest, change)
        got.append(logits(path, manifest["tokens"]))
    assert np.array_equal(got[0], got[1]) and np.array_equal(got[0], got[2])
    assert np.abs(got[0]).max() > 0.1


def test_norms_may_have_another_dimension_of_1(tmp_path):
    def change(_, tensors):
        for name in tensors:
            tensors[name] = tensors[name].reshape(1, *tensors[name].shape)

    manifest = load_manifest("llama")
    plain = write_gguf(tmp_path / "plain.gguf", manifest)
    other = write_gguf(tmp_path / "other.gguf", manifest, change)
    assert np.array_equal(*(logits(path, manifest["tokens"]) for path in (plain, other)))


@pytest.mark.parametrize("name", [None, "none", "no_vocab"])
def test_a_model_without_a_tokenizer_continues_ids(tmp_path, name):
    def change(metadata, _):
        metadata["llama.vocab_size"] = len(metadata["tokenizer.ggml.tokens"])
        for key in [key for key in metadata if key.startswith("tokenizer.")]:
            del metadata[key]
        if name:
            metadata["tokenizer.ggml.model"] = name

    path = write_gguf(tmp_path / "model.gguf", load_manifest("llama"), change)
    with rillm.Model.from_pretrained(path, weights="f32") as model:
        with model.session() as session:
            first = int(session.prefill([5, 17, 3]).argmax())
        result = model.generate([5, 17, 3], max_new_tokens=2, temperature=0)
        assert (len(result.token_ids), result.token_ids[0], result.text) == (2, first, "")
        with pytest.raises(errors.UnsupportedTokenizer, match="it has no tokenizer; give token id"):
            model.generate("text")


@pytest.mark.parametrize("case", ["stablelm_qk_layernorm", "stablelm_parallel_qk_layernorm"])
def test_norms_one_a_head_are_rows_of_one_tensor(tmp_path, case):
    """As StableLM 2 12B has them; today's converter loses these norms, so no file is recorded."""
    golden = load_case(case)
    manifest = load_manifest("stablelm") | {"config": golden["config"], "tokens": golden["tokens"]}

    def turning(metadata, _):
        share = golden["config"]["rope_parameters"]["partial_rotary_factor"]
        metadata["stablelm.rope.dimension_count"] = int(16 * share)

    got = logits(write_gguf(tmp_path / "model.gguf", manifest, turning), manifest["tokens"])
    assert np.abs(got[golden["positions"]] - golden["logits"]).max() <= 1e-4


@pytest.mark.parametrize(
    "case, change, error, words",
    [
        (
            "phi3_longrope",
            lambda _, t: t.update({"rope_factors_long.weight": np.ones(5, np.float32)}),
            errors.MalformedFile,
            "long_factor has 5 factors, expected .* 6",
        ),
        (
            "apertus",
            lambda m, _: m.update({"xielu.beta": ("f32", [1.0])}),
            errors.MissingTensor,
            r"blk\.1\.xielu\.beta",
        ),
        (
            "phi3_longrope",
            lambda _, t: t.update({"rope_factors_long.weight": np.ones(1 << 20, np.float32)}),
            errors.MalformedFile,
            "expected at most 4096 numbers in F32",
        ),
        (
            "apertus",
            lambda m, _: m.update({"xielu.beta": ("f32", [1.0] * 100_000)}),
            errors.MalformedFile,
            r"xielu\.beta has 100000 values, expected one a layer",
        ),
        (
            "olmo3",
            lambda m, _: m.update({"olmo2.attention.sliding_window_pattern": [True]}),
            errors.MalformedFile,
            "tells of 1 layers, expected 4",
        ),
        (
            "gemma3_text",
            lambda m, _: m.update({"gemma3.attention.sliding_window_pattern": "x"}),
            errors.MalformedFile,
            "sliding_window_pattern is string",
        ),
        (
            "glm4",
            lambda m, _: m.update({"glm4.rope.dimension_count": 17}),
            errors.MalformedFile,
            "dimension_count is 17, expected at most the key length 16",
        ),
        (
            "qwen2",
            lambda _, t: t.pop("blk.1.attn_k.bias"),
            errors.MissingTensor,
            r"blk\.1\.attn_k\.bias",
        ),
        (
            "llama",
            lambda _, t: t.update({"blk.1.attn_k.bias": np.ones(32, np.float32)}),
            errors.UnexpectedTensor,
            r"blk\.1\.attn_k\.bias",
        ),
    ],
)
def test_files_that_contradict_themselves(tmp_path, case, change, error, words):
    path = write_gguf(tmp_path / "model.gguf", load_manifest(case), change)
    with pytest.raises(error, match=words):
        rillm.Model.from_pretrained(path)


def test_a_pattern_may_be_a_number(tmp_path):
    manifest, seen = load_manifest("gemma3_text"), []
    for pattern in (None, 6, 2):

        def change(metadata, _, pattern=pattern):
            if pattern:
                metadata["gemma3.attention.sliding_window_pattern"] = pattern

        path = write_gguf(tmp_path / "model.gguf", manifest, change)
        seen.append(open_checkpoint(path).config.windows)
    assert seen[0] == seen[1] == (16,) * 5 + (0, 16)
    assert seen[2] == (16, 0) * 3 + (16,)


def test_a_file_larger_than_free_memory_is_refused_in_words(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "model.gguf", load_manifest("llama"))
    monkeypatch.setattr(cpu, "free_memory_bytes", lambda: 1000)
    with pytest.raises(errors.NotEnoughMemory, match=r"model\.gguf: .* GB are free: take a small"):
        rillm.Model.from_pretrained(path)


def test_every_family_is_converted():
    read = {each for each in MODEL_TYPES if family_of(each, Path()).gguf}
    assert {load_manifest(case)["config"]["model_type"] for case in CASES} == read


@pytest.mark.parametrize(
    "case, window, windows",
    [("gemma3_text", 0, (0,) * 7), ("qwen2", 16, (16, 0)), ("qwen2", 0, (0, 0))],
)
def test_a_pattern_is_that_of_a_window(tmp_path, case, window, windows):
    """Without one it says nothing; with one a file needs no flag that asks for it."""

    def change(metadata, _):
        architecture = metadata["general.architecture"]
        metadata[f"{architecture}.attention.sliding_window"] = window
        metadata[f"{architecture}.attention.sliding_window_pattern"] = 2

    path = write_gguf(tmp_path / "model.gguf", load_manifest(case), change)
    assert open_checkpoint(path).config.windows == windows
