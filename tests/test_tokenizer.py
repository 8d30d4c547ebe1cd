"""Tokenizers: the real model's against llama.cpp's ids, and small ones against their rules."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gguf_writer import encode, llama_metadata
from rillm.checkpoint import hub, open_checkpoint
from rillm.checkpoint.tokenizer import read_tokenizer
from rillm.errors import CheckpointError, MalformedFile, UnsupportedTokenizer
from small_tokenizers import BYTE_NAMES

GOLDEN = json.loads((Path(__file__).parent / "golden" / "smollm2.json").read_text("utf-8"))
SURROGATES = range(0xD800, 0xE000)


@pytest.fixture(scope="module")
def smollm2():
    if os.environ.get("RILLM_OFFLINE", "") not in ("", "0"):
        pytest.skip("RILLM_OFFLINE is set: the default model may not be fetched")
    return open_checkpoint(hub.find("smollm2-135m")).tokenizer


# ---- the real model ------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["prompt"][:20])
def test_ids_are_those_of_llama_cpp(smollm2, golden):
    assert smollm2.encode(golden["prompt"]) == golden["ids"]


def test_the_real_model_says_what_it_is(smollm2):
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_token, smollm2.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert smollm2.eos_token_id == 2
    assert smollm2.special_ids == set(range(17))  # its 17 tokens of type "control"


def test_special_tokens_in_text_count_as_themselves_and_are_left_out_of_text(smollm2):
    ids = smollm2.encode("<|im_start|>user\nHi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert smollm2.decode(ids) == "user\nHi"
    assert smollm2.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nHi<|im_end|>"


def test_ggml_org_llama_cpp_3502_every_character_comes_back(smollm2):
    """But for those with a byte that this vocabulary, trained without it, has no token for."""
    vocabulary = smollm2.backend.get_vocab()
    lacking = {byte for byte in range(256) if BYTE_NAMES[byte] not in vocabulary}
    assert lacking & set(range(0xF5)) == {
        0x04,
        0x06,
        0x13,
        0x14,
        0x16,
        0x1D,
        0xC0,
        0xC1,
        0xF1,
        0xF2,
    }
    characters = [chr(code) for code in range(0x110000) if code not in SURROGATES]
    assert len(characters) == 1_112_064
    characters = [c for c in characters if lacking.isdisjoint(c.encode())]
    for start in range(0, len(characters), 1 << 16):
        text = "".join(characters[start : start + (1 << 16)])
        assert smollm2.decode(smollm2.encode(text)) == text


def test_ggml_org_llama_cpp_3502_digits_are_split_one_by_one(smollm2):
    tokens = [smollm2.decode([id]) for id in smollm2.encode("2024 1234567")]
    assert tokens == [*"2024", " ", *"1234567"]


def test_ggml_org_llama_cpp_15594_a_long_run_needs_no_stack(smollm2):
    ids = []
    size = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=lambda: ids.extend(smollm2.encode("A" * 1_000_000)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert smollm2.decode(ids) == "A" * 1_000_000


@pytest.mark.parametrize("text", ["a", " ", "ab c"])
def test_huggingface_tokenizers_1449_time_grows_with_length(smollm2, text):
    def seconds(n: int) -> float:
        return min(timed(text * (n // len(text))) for _ in range(3))

    def timed(long: str) -> float:
        start = time.perf_counter()
        smollm2.encode(long)
        return time.perf_counter() - start

    assert seconds(400_000) / seconds(100_000) < 8  # linear: 4; quadratic: 16, as reported


# ---- built from metadata -------------------------------------------------------------------------

BYTES = [BYTE_NAMES[byte] for byte in range(256)]
SPACE = BYTE_NAMES[ord(" ")]
TOKENS = [*BYTES, "ab", SPACE + "ab", "<s>", "</s>", "<|user|>", "12"]
AB, SPACE_AB, BOS, EOS, USER = range(256, 261)
VOCABULARY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * 258 + [3, 3, 4, 1],
    "tokenizer.ggml.merges": ["a b", f"{SPACE} ab", "1 2"],
    "tokenizer.ggml.bos_token_id": BOS,
    "tokenizer.ggml.eos_token_id": EOS,
}


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setenv("RILLM_HOME", str(tmp_path / "home"))

    def build(**changes):
        path = tmp_path / "model.gguf"
        metadata = VOCABULARY | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
        metadata = {key: value for key, value in metadata.items() if value is not None}
        path.write_bytes(encode(llama_metadata() | metadata, {}))
        return open_checkpoint(path).tokenizer

    return build


def test_merges_and_token_types(build):
    tokenizer = build()
    assert tokenizer.encode("ab ab") == [AB, SPACE_AB]
    assert tokenizer.encode("12") == [TOKENS.index("1"), TOKENS.index("2")]  # never merged
    assert tokenizer.encode("<s>ab<|user|></s>") == [BOS, AB, USER, EOS]
    assert tokenizer.special_ids == {BOS, EOS}
    assert tokenizer.decode([BOS, AB, USER, EOS]) == "ab<|user|>"
    assert tokenizer.vocab_size == len(TOKENS)
    assert (tokenizer.bos_token, tokenizer.eos_token_id) == ("<s>", EOS)


@pytest.mark.parametrize(
    "flags, before, after",
    [
        ({}, [], []),
        ({"add_bos_token": True}, [BOS], []),
        ({"add_eos_token": True}, [], [EOS]),
        ({"add_bos_token": True, "add_eos_token": True}, [BOS], [EOS]),
        ({"add_bos_token": False}, [], []),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(build, flags, before, after):
    tokenizer = build(**flags)
    assert tokenizer.encode("ab") == [*before, AB, *after]
    assert tokenizer.encode("ab", add_special_tokens=False) == [AB]


def test_abetlen_llama_cpp_python_1501_one_bos_where_the_template_wrote_it(build):
    tokenizer = build(add_bos_token=True)
    assert tokenizer.encode("<s>ab", add_special_tokens=False).count(BOS) == 1


@pytest.mark.parametrize(
    "key, content, words",
    [
        ("model", "rwkv", r"tokenizer\.ggml\.model is 'rwkv', expected 'gpt2' or 'llama'"),
        ("pre", "afmoe", r"tokenizer\.ggml\.pre is 'afmoe', expected one of: .*qwen2, .*smollm"),
    ],
)
def test_a_kind_that_is_not_read_is_named(build, key, content, words):
    with pytest.raises(UnsupportedTokenizer, match=words):
        build(**{key: content})


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"tokens": [1, 2, 3]}, "tokens is an array of i32, expected string"),
        ({"token_type": [1.0] * len(TOKENS)}, "token_type is an array of f32, expected i32"),
        (
            {"token_type": [1, 1, 1]},
            f"token_type has 3 elements, expected one a token, {len(TOKENS)}",
        ),
        ({"eos_token_id": len(TOKENS)}, f"eos_token_id is {len(TOKENS)}, expected less than"),
        (
            {"tokens": [*TOKENS, "<0x-1>"], "token_type": [1] * len(TOKENS) + [6]},
            "'<0x-1>'. is of type 6",
        ),
        ({"tokens": "abc"}, "tokens is string, expected array"),
        ({"merges": [1]}, "merges is an array of i32"),
        ({"merges": ["ab"]}, "merges has 'ab'"),
        ({"merges": [" b"]}, "merges has ' b'"),
        ({"merges": ["b a"]}, "do not fit"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"tokens": [*TOKENS[:-1], "a"]}, "are the same, 'a'"),
        ({"padding_token_id": ("i32", -1)}, "padding_token_id is -1"),
        ({"mask_token_id": len(TOKENS)}, f"mask_token_id is {len(TOKENS)}, expected less than"),
        ({"bos_token_id": "1"}, "bos_token_id is string"),
        ({"eos_token_id": None, "add_eos_token": True}, "add_eos_token is set"),
    ],
)
def test_ggml_org_llama_cpp_24888_a_vocabulary_that_contradicts_itself(build, changes, words):
    with pytest.raises(MalformedFile, match=words):
        build(**changes)


def test_a_token_that_is_no_utf_8(tmp_path, monkeypatch):
    monkeypatch.setenv("RILLM_HOME", str(tmp_path))
    path = tmp_path / "model.gguf"
    data = encode(llama_metadata() | VOCABULARY, {})
    path.write_bytes(data.replace(b"<|user|>", b"<|\xff\xff\xffr|>"))
    with pytest.raises(MalformedFile, match=r"tokens\[260\] is no UTF-8"):
        _ = open_checkpoint(path).tokenizer


# ---- tokenizer.json ------------------------------------------------------------------------------


def write_json(folder: Path, *, added=(), config=None, **changes) -> Path:
    vocab = {token: id for id, token in enumerate(["a", "b", "ab", "<s>", "</s>"])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    table = {
        "version": "1.0",
        "added_tokens": [
            flags | {"special": True, "id": vocab.get(t["content"], len(vocab) + i)} | t
            for i, t in enumerate([{"content": "<s>"}, {"content": "</s>"}, *added])
        ],
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
    } | changes
    (folder / "tokenizer.json").write_text(json.dumps(table))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_ggml_org_llama_cpp_29211_a_literal_pattern_is_no_expression(tmp_path):
    split = {"type": "Split", "pattern": {"String": "\\p{L}+"}, "behavior": "Isolated"}
    folder = write_json(tmp_path, pre_tokenizer=split | {"invert": False})
    assert read_tokenizer(folder).encode("ab") == [2]


def test_huggingface_transformers_33371_flags_of_added_tokens(tmp_path):
    sot = {"content": "<|sot|>", "id": 5, "lstrip": True, "rstrip": True}
    en = {"content": "<|en|>", "id": 6, "lstrip": False, "rstrip": True}
    backend = read_tokenizer(write_json(tmp_path, added=[sot, en])).backend
    text = "   <|sot|> <|en|>   "
    spans = [text[start:end] for start, end in backend.encode(text).offsets]
    assert spans == ["   <|sot|> ", "<|en|>   "]


def test_limits_of_a_training_do_not_cut_prompts(tmp_path):
    truncation = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padding = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "a",
    }  # fmt: skip
    tokenizer = read_tokenizer(write_json(tmp_path, truncation=truncation, padding=padding))
    assert tokenizer.encode("ab" * 6) == [2] * 6
    assert tokenizer.encode("ab") == [2]


ADDS_BOS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}},
}


@pytest.mark.parametrize(
    "flags, expected",
    [
        ({}, [3, 2]),
        ({"add_bos_token": None}, [3, 2]),
        ({"add_bos_token": False}, [2]),
        ({"add_bos_token": True, "add_eos_token": True}, [3, 2, 4]),
    ],
)
def test_stated_flags_win_over_the_post_processor_as_in_transformers_5(tmp_path, flags, expected):
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}} | flags
    tokenizer = read_tokenizer(write_json(tmp_path, post_processor=ADDS_BOS, config=config))
    assert tokenizer.encode("ab") == expected
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_id) == ("<s>", "</s>", 4)


def test_special_tokens_may_stand_in_the_older_file(tmp_path):
    write_json(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    assert read_tokenizer(tmp_path).eos_token_id == 4


def test_a_sentencepiece_model_alone_is_refused_with_a_way_out(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.model alone.*save_pretrained"):
        read_tokenizer(tmp_path)


def test_what_the_library_refuses_is_said(tmp_path):
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.json: the tokenizers library"):
        read_tokenizer(write_json(tmp_path, model={"type": "Nonsense"}))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(MalformedFile, match="JSON"):
        read_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="lacks the token '<unk>'"):
        config = {"bos_token": "<unk>", "add_bos_token": True}
        read_tokenizer(write_json(tmp_path, config=config))


def test_text_is_characters_and_ids_are_none_below_zero(smollm2):
    with pytest.raises(ValueError, match=r"'\\ud800' at position 1: a lone surrogate"):
        smollm2.encode("a\ud800b")
    for other in (5, b"a", None, ["a"]):
        with pytest.raises(TypeError, match=rf"is {re.escape(repr(other))}, expected a str"):
            smollm2.encode(other)
    for ids, words in (([3, -1], "from -1 to 3"), ([2**40], f"to {2**40}")):
        with pytest.raises(ValueError, match=f"{words}, expected 0 to 49151"):
            smollm2.decode(ids)
    assert smollm2.decode([2**31]) == ""


def test_nothing_is_imported_before_it_is_needed():
    code = (
        "import sys, rillm.checkpoint, rillm.chat.template;"
        "print(*{'tokenizers', 'jinja2', 'huggingface_hub', 'tqdm'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
