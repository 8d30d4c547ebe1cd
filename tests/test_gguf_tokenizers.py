"""Tokenizers of GGUF files: llama.cpp's ids, kind by kind, and what contradicts itself."""

import hashlib
import json
import os
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers.models import BPE

from gguf_writer import encode, llama_metadata
from random_text import texts
from rillm.checkpoint import gguf, open_checkpoint
from rillm.checkpoint._strings import starts_of
from rillm.checkpoint.gguf_merges import merges_by_score
from rillm.checkpoint.gguf_special import end_ids
from rillm.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from rillm.checkpoint.metadata import Array
from rillm.checkpoint.pre_tokenizers import PRE_TOKENIZERS
from rillm.errors import MalformedFile, UnsupportedTokenizer
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
        build.path.write_bytes(encode(metadata, {}))
        return tokenizer_from_gguf(gguf.read(build.path)[0])

    build.path = tmp_path / "model.gguf"
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
        ({"bos_token_id": 2**31}, "bos_token_id is 2147483648"),
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
    assert tokenizer.special_ids == {tokens.index("</s>")}  # known by its text
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


# ---- what llama.cpp reads, too -------------------------------------------------------------------
# of llama-cpp-python 0.3.36, asked with the same vocabularies


def ends_of(build, vocabulary, tokens, types, **changes):
    """The texts of the ids that end a text, and the tokenizer, with these tokens added."""
    changed = dict(vocabulary)
    for name, more in (("tokens", tokens), ("token_type", types), ("scores", [-9.0] * len(tokens))):
        if (key := f"tokenizer.ggml.{name}") in changed:
            changed[key] = changed[key] + more
    tokenizer = build(changed, **changes)
    ids = end_ids(gguf.read(build.path)[0])
    return {tokenizer.backend.id_to_token(id) for id in ids}, tokenizer


@pytest.mark.parametrize("vocabulary", [byte_level("gpt-2"), sentencepiece(False)])
@pytest.mark.parametrize("type", [1, 3, 4, 5])
@pytest.mark.parametrize(
    "is_end, texts",
    [
        (True, "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> [EOS] <eos>"),
        (True, "<end_of_turn> <|endoftext|> <|eom_id|> <EOT> _<EOT> [EOT] <|end_of_text|> [e~["),
        (True, "<end_of_utterance> <turn|> <｜end▁of▁sentence｜> <|fim_pad|> <PAD> [PAD]"),
        (True, "<|fim_repo|> <|repo_name|> <reponame> <|file_sep|>"),
        (False, "<|fim_prefix|> <fim_suffix> <MID> ▁<PRE> <|code_middle|>"),
    ],
)
def test_ggml_org_llama_cpp_9606_control_tokens_are_known_by_their_texts(
    build, vocabulary, type, is_end, texts
):
    for text in texts.split():
        ends, tokenizer = ends_of(build, vocabulary, [text], [type])
        assert ends == ({"</s>", text} if is_end else {"</s>"})
        id = tokenizer.vocab_size - 1
        assert tokenizer.encode(f"x{text}y", add_special_tokens=False).count(id) == 1
        assert tokenizer.decode([id]) == ""


@pytest.mark.parametrize(
    "tokens, types, keys, ends",
    [
        (["<|end|>", "<|return|>", "<|call|>"], [3] * 3, {}, {"</s>", "<|return|>", "<|call|>"}),
        (["<|end|>", "<|return|>"], [3] * 2, {}, {"</s>", "<|end|>", "<|return|>"}),
        (["<|end|>", "<|calls|>", "<|flush|>"], [3, 1, 4], {}, {"</s>", "<|calls|>", "<|flush|>"}),
        (["<|tool_response>"], [3], {"eos": 0}, {"<|tool_response>"}),
        (["<|fim_pad|>", "zzz"], [1, 1], {"fim_pad": 1}, {"</s>", "zzz"}),
        (["<|im_end|>"], [3], {"eos": 0}, {"</s>", "<|im_end|>"}),
    ],
)
def test_what_ends_a_text_depends_on_other_tokens(build, tokens, types, keys, ends):
    vocabulary = byte_level("gpt-2")
    first = len(vocabulary["tokenizer.ggml.tokens"])
    changes = {f"{name}_token_id": first + place for name, place in keys.items()}
    got, tokenizer = ends_of(build, vocabulary, tokens, types, **changes)
    assert got == ends
    if tokens[0] == "<|end|>" and "<|end|>" not in ends:  # a part of the answer then
        assert tokenizer.decode(tokenizer.encode("a<|end|>b")) == "a<|end|>b"


def test_vllm_project_vllm_4180_ends_are_known_by_their_texts(tmp_path):
    """A file names one end; <end_of_turn> and others are ends too, of whatever type."""
    tokens = ["a", "<end_of_turn>", "<eos>", "<|im_end|>", "<|endoftext|>"]
    vocabulary = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, 3, 3, 1, 3],
        "tokenizer.ggml.eos_token_id": 2,
    }
    path = tmp_path / "model.gguf"
    path.write_bytes(encode(llama_metadata() | vocabulary, {}))
    assert sorted(open_checkpoint(path).eos_token_ids) == [1, 2, 3, 4]


def test_gemmas_tag_of_struck_out_text_ends_nothing(build):
    """google/gemma-3: <s> and </s> are tags in its tokenizer.json, of type USER_DEFINED in GGUF."""
    ends, tokenizer = ends_of(build, byte_level("gpt-2"), ["<end_of_turn>"], [3], eos_token_id=0)
    assert "</s>" in ends
    vocabulary = byte_level("gpt-2")
    kinds = list(vocabulary["tokenizer.ggml.token_type"])
    kinds[vocabulary["tokenizer.ggml.tokens"].index("</s>")] = 4
    vocabulary = vocabulary | {"tokenizer.ggml.token_type": kinds}
    ends, tokenizer = ends_of(build, vocabulary, ["<end_of_turn>"], [3], eos_token_id=0)
    assert "</s>" not in ends and "<end_of_turn>" in ends
    assert tokenizer.decode(tokenizer.encode("no</s> yes")) == "no</s> yes"


@pytest.mark.parametrize("name", ["padding", "seperator", "cls", "mask", "unknown", "bos", "eos"])
def test_an_id_that_says_none(build, name):
    """llama.cpp's own converters write 2**32 - 1."""
    texts = ["a b", "é漢</s>"]
    expected = [build(sentencepiece(True)).encode(text) for text in texts]
    tokenizer = build(sentencepiece(True), **{f"{name}_token_id": 2**32 - 1})
    assert [tokenizer.encode(text) for text in texts] == expected
    without = build(byte_level("gpt-2"), **{f"{name}_token_id": 2**32 - 1})
    assert without.encode("a b") == build(byte_level("gpt-2")).encode("a b")


def test_a_byte_level_file_may_have_no_bos(build):
    assert build(byte_level("gpt-2"), bos_token_id=2**32 - 1).bos_token is None
    with pytest.raises(MalformedFile, match="add_bos_token is set, but .*bos_token_id is missing"):
        build(byte_level("gpt-2"), bos_token_id=2**32 - 1, add_bos_token=True)


def test_types_that_are_undefined_and_merges_of_no_tokens_do_nothing(build):
    vocabulary = byte_level("gpt-2")
    types = [0 if type == 1 else type for type in vocabulary["tokenizer.ggml.token_type"]]
    merges = ["zzz qqq", *vocabulary["tokenizer.ggml.merges"], "the qqq"]
    plain, other = build(vocabulary), build(vocabulary, token_type=types, merges=merges)
    for text in texts_for("gpt-2", 50):
        assert other.encode(text) == plain.encode(text)


def test_a_file_without_a_tokenizer_is_asked_for_ids(build):
    for changes in ({}, {"model": "none"}, {"model": "no_vocab"}):
        tokenizer = build({}, **changes)
        assert tokenizer.decode([1, 2]) == "" and tokenizer.special_ids == frozenset()
        with pytest.raises(UnsupportedTokenizer, match=r"model\.gguf: it has no tokenizer; give"):
            tokenizer.encode("a")


# the models' own, in tokenizer.json, where ours are others that cut alike
ORIGINAL = {
    "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", PRE_TOKENIZERS["gpt-4o"].splits[0]),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "deepseek-llm": tuple(
        r"\s+$" if "(?<!" in split else split for split in PRE_TOKENIZERS["deepseek-llm"].splits
    ),
}


def cutter(splits):
    pre = tokenizers.pre_tokenizers
    return pre.Sequence([pre.Split(tokenizers.Regex(split), "isolated") for split in splits])


@pytest.mark.parametrize("kind", ORIGINAL)
def test_quicker_expressions_cut_as_the_original_ones(kind):
    ours, original = cutter(PRE_TOKENIZERS[kind].splits), cutter(ORIGINAL[kind])
    random = np.random.default_rng(1)
    parts = [*"012٣²Ⅷ½aZé漢_ \n\r\t\u3000\u2028\x85.,-", "\u0301", "  ", "🦙", "'s", "1234567"]
    mixed = ["".join(random.choice(parts, random.integers(1, 14))) for _ in range(5000)]
    for text in mixed + texts(7, 2000):
        assert ours.pre_tokenize_str(text) == original.pre_tokenize_str(text), text


@pytest.mark.parametrize(
    "kind", {pre.splits: kind for kind, pre in PRE_TOKENIZERS.items()}.values()
)
def test_huggingface_tokenizers_1449_every_kind_cuts_in_time_that_grows_with_length(kind):
    cut = cutter(PRE_TOKENIZERS[kind].splits).pre_tokenize_str

    def seconds(text):
        start = time.process_time()
        cut(text)
        return time.process_time() - start

    for run, end in product(
        (" ", "\t \t", "1", "A", "漢", "\n", "'", "\u0301"), ("1", "漢", "🦙", "x")
    ):
        text = run * (16_000 // len(run)) + end
        if (whole := seconds(text)) > 0.02:  # of which linear time is far
            pairs = [(seconds(text[-4000:]), seconds(text)) for _ in range(3)]
            short, whole = map(min, zip(*pairs, strict=True))
            assert whole / short < 8, (run, end)  # linear: 4; quadratic: 16
