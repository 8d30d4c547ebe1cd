"""Tokenizers of GGUF files: llama.cpp's ids, kind by kind, and what contradicts itself."""

import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers.models import BPE

from gguf_writer import encode, llama_metadata
from rillm.checkpoint import gguf, open_checkpoint
from rillm.checkpoint._strings import starts_of
from rillm.checkpoint.gguf_merges import merges_by_score
from rillm.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from rillm.checkpoint.metadata import Array
from rillm.checkpoint.pre_tokenizers import PRE_TOKENIZERS
from rillm.errors import MalformedFile
from small_vocabularies import byte_level, sentencepiece, texts_for
from weights import FIXTURES

RECORDED = dict(line.split(" ", 1) for line in (FIXTURES / "gguf_ids.txt").read_text().splitlines())
SENTENCEPIECE = {"llama": True, "gemma": False}  # whether text gets a space in front
LLAMA_CPP = os.environ.get("LLAMA_CPP")


@pytest.fixture
def build(tmp_path):
    """A tokenizer from metadata; keyword ``a__b`` changes key ``tokenizer.ggml.a.b``."""

    def build(vocabulary, **changes):
        changed = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
        metadata = llama_metadata() | vocabulary | changed
        metadata = {key: value for key, value in metadata.items() if value is not None}
        path = tmp_path / "model.gguf"
        path.write_bytes(encode(metadata, {}))
        return tokenizer_from_gguf(gguf.read(path)[0])

    return build


def checksum(ids):
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:8]


@pytest.mark.parametrize("kind", RECORDED)
def test_ids_are_those_of_llama_cpp(build, kind):
    """200 random texts of many scripts, with special tokens in them."""
    plain = SENTENCEPIECE.get(kind)
    tokenizer = build(byte_level(kind) if plain is None else sentencepiece(plain))
    expected = RECORDED[kind].split()
    got = [checksum(tokenizer.encode(text)) for text in texts_for(kind, len(expected))]
    assert len(expected) == 200 and got == expected


def test_every_kind_of_pre_tokenizer_is_recorded_by_one_of_its_names():
    recorded = {PRE_TOKENIZERS[kind].splits for kind in RECORDED if kind in PRE_TOKENIZERS}
    assert {pre.splits for pre in PRE_TOKENIZERS.values()} == recorded


def vocabulary_files():
    if not LLAMA_CPP:
        return []
    files = (Path(LLAMA_CPP) / "models").glob("ggml-vocab-*.gguf.inp")
    known = ("bert", "gemma-4", "nomic", "qwen35")  # of no family here
    return sorted(file for file in files if not any(name in file.name for name in known))


@pytest.mark.skipif(
    not LLAMA_CPP, reason="LLAMA_CPP: vendor/llama.cpp of llama-cpp-python's source archive"
)
@pytest.mark.parametrize("texts_file", vocabulary_files(), ids=lambda file: file.name)
def test_ids_are_those_of_llama_cpps_own_vocabulary_files(tmp_path, texts_file):
    metadata, _ = gguf.read(texts_file.with_suffix(""))
    tokenizer = tokenizer_from_gguf(metadata)
    texts = texts_file.read_text("utf-8").split("\n__ggml_vocab_test__\n")
    lines = texts_file.with_suffix(".out").read_text().splitlines()
    assert len(lines) >= 40
    for text, line in zip(texts, lines, strict=False):  # the last text is empty, without a line
        assert tokenizer.encode(text, add_special_tokens=False) == [int(n) for n in line.split()]


# ---- SentencePiece's -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a b", " a", "a ", "  ", "né", "\n", "🦙 x", "<|user|> a<s>b"])
@pytest.mark.parametrize("space", [True, False])
def test_text_comes_back(build, text, space):
    """But for spaces added at the start and behind special tokens, where a file asks for them."""
    tokenizer = build(sentencepiece(space))
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    assert whole.replace(" ", "") == text.replace(" ", "")
    assert space or whole == text
    assert tokenizer.decode(ids) == whole.replace("<s>", "")


def test_what_is_no_token_is_bytes(build):
    tokenizer = build(sentencepiece(False))
    ids = tokenizer.encode("\x01🦙", add_special_tokens=False)
    assert ids == [3 + byte for byte in "\x01🦙".encode()]
    assert tokenizer.decode(ids) == "\x01🦙"


def test_where_nothing_is_said_the_first_tokens_are_the_special_ones(build):
    tokenizer = build(sentencepiece(True))
    assert tokenizer.encode("")[0] == 1
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_id) == ("<s>", "</s>", 2)
    assert build(sentencepiece(True), add_bos_token=False).encode("") == []
    tokenizer = build(sentencepiece(True), bos_token_id=2, add_eos_token=True)
    assert tokenizer.encode("") == [2, 2]


def test_phi_3_eats_spaces_behind_special_tokens(build):
    """Its tokenizer.json says so of all but three; llama.cpp goes by the name, too."""
    plain = build(sentencepiece(False))
    phi3 = build(sentencepiece(False) | {"general.architecture": "phi3", "phi3.vocab_size": 9})
    for text in ("<|user|>\nHello", "</s>  Hello", "<s>\nHello"):
        stripped = text.replace("> ", ">").replace("> ", ">").replace("|>\n", "|>")
        assert phi3.encode(text) == plain.encode(stripped)


def test_huggingface_tokenizers_1449_time_grows_with_length(build):
    tokenizer = build(sentencepiece(True))

    def seconds(text):
        start = time.process_time()
        tokenizer.encode(text)
        return time.process_time() - start

    for text in ("a", " ", "ab c"):
        long = text * (200_000 // len(text))
        pairs = [(seconds(long[:50_000]), seconds(long)) for _ in range(5)]  # other work slows both
        short, whole = map(min, zip(*pairs, strict=True))
        assert whole / short < 8  # linear: 4; quadratic: 16


def test_a_token_of_a_megabyte_takes_no_time(build):
    """Cutting it everywhere would take minutes: its halves have lengths that tokens have."""
    vocabulary = sentencepiece(False)
    vocabulary["tokenizer.ggml.tokens"][-1] = "ab" * (1 << 19)
    start = time.process_time()
    tokenizer = build(vocabulary)
    assert time.process_time() - start < 5
    assert tokenizer.encode("x" + "ab" * (1 << 19)) == [
        *tokenizer.encode("x"),
        tokenizer.vocab_size - 1,
    ]


def string_array(words):
    data = b"".join(len(word).to_bytes(8, "little") + word for word in map(str.encode, words))
    starts = starts_of(data, len(words))
    return Array(Path("file"), "tokens", "string", len(words), data, starts)


def test_strings_of_an_array():
    words = ["", "a", "é▁", "🦙" * 99, "", "aé"]
    array = string_array(words)
    assert array.tolist() == words
    assert [array.find(word) for word in words] == [0, 1, 2, 3, 0, 5]
    assert array.find("🦙") is None and array.find("aé ") is None


@pytest.mark.parametrize("seed", range(40))
def test_merges_left_out_are_never_made(seed):
    """The same ids as with every two tokens that make a third, of random words with ties."""
    random = np.random.default_rng(seed)
    letters = ["a", "b", "é", "🦙"][: 1 + seed % 4]

    def some(n):
        return "".join(random.choice(letters, n))

    words = ["<unk>", *letters, *(some(random.integers(2, 7)) for _ in range(5 + seed))]
    if seed % 5 == 4:
        words += ["a" * 299, "a" * 298, "a" * 300]  # longer than what is looked into
        words.remove(letters[-1])
    words = list(dict.fromkeys(words))
    scores = random.integers(-6, 0, len(words)).astype(np.float32)
    ids = {word: id for id, word in enumerate(words)}
    every = [
        (word[:cut], word[cut:])
        for word in sorted(words, key=lambda word: (-scores[ids[word]], ids[word]))
        for cut in range(1, len(word))
        if word[:cut] in ids and word[cut:] in ids
    ]
    merges = merges_by_score(string_array(words), words, scores)
    assert merges == [pair for pair in every if pair in set(merges)]  # in that order
    made = [left + right for left, right in merges if len(left + right) < 200]
    assert len(made) == len(set(made))
    left_out, whole = (BPE(ids, pairs, unk_token="<unk>") for pairs in (merges, every))
    left_out, whole = tokenizers.Tokenizer(left_out), tokenizers.Tokenizer(whole)
    for text in (*(some(random.integers(1, 50)) for _ in range(40)), "a" * 1000):
        assert left_out.encode(text).ids == whole.encode(text).ids, text


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"scores": [0.0]}, "scores has 1 elements, expected one a token"),
        ({"scores": None}, "no tokenizer.ggml.scores"),
        ({"scores": "high"}, "scores is string"),
        ({"token_type": [1, 2]}, "token_type has 2 elements"),
        ({"unknown_token_id": 2**31}, "unknown_token_id is 2147483648"),
        ({"add_space_prefix": 1}, "add_space_prefix is u32"),
    ],
)
def test_ggml_org_llama_cpp_24888_a_vocabulary_that_contradicts_itself(build, changes, words):
    with pytest.raises(MalformedFile, match=words):
        build(sentencepiece(True), **changes)


@pytest.mark.parametrize("token", ["<0x-1>", "<0xG0>", "<0x1>", "<0x123>", "0x41", "<0x4１>"])
def test_ggml_org_llama_cpp_25969_a_byte_is_two_hexadecimal_digits(build, token):
    vocabulary = sentencepiece(True)
    vocabulary["tokenizer.ggml.tokens"][40] = token
    with pytest.raises(MalformedFile, match=f"token 40 is '{token}', expected a byte"):
        build(vocabulary)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_no_number(build, score):
    vocabulary = sentencepiece(True)
    vocabulary["tokenizer.ggml.scores"][300] = score
    with pytest.raises(MalformedFile, match="not finite"):
        build(vocabulary)


def test_empty_tokens_and_missing_types(build):
    tokens = ["", *byte_level("gpt-2")["tokenizer.ggml.tokens"], ""]
    tokenizer = build(byte_level("gpt-2"), tokens=tokens, token_type=None, bos_token_id=None)
    assert tokenizer.special_ids == frozenset()
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


def test_vllm_project_vllm_4180_ends_are_known_by_their_texts(tmp_path):
    """A file names one end; control tokens like <end_of_turn> are ends too."""
    tokens = ["a", "<end_of_turn>", "<eos>", "<|im_end|>", "<|endoftext|>"]
    vocabulary = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, 3, 3, 1, 3],  # <|im_end|> is but text here
        "tokenizer.ggml.eos_token_id": 2,
    }
    path = tmp_path / "model.gguf"
    path.write_bytes(encode(llama_metadata() | vocabulary, {}))
    assert sorted(open_checkpoint(path).eos_token_ids) == [1, 2, 4]
