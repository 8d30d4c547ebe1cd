"""The incremental detokenizer against the batch decoder of the tokenizers library."""

import random

import pytest

import small_tokenizers as small
from rillm.decoding.text import Detokenizer

KINDS = [
    small.byte_level,
    small.byte_fallback,
    small.byte_fallback_unstripped,
    small.metaspace,
    small.wordpiece,
    small.byte_level_in_a_sequence,
    small.no_decoder,
]
KINDS_WITH_BYTES = [small.byte_level, small.byte_fallback, small.byte_level_in_a_sequence]


def pieces_of(tokenizer, ids) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(id_) for id_ in ids]
    return [*pieces, detokenizer.flush()]


def test_abetlen_llama_cpp_python_57():
    """T1: an emoji of four byte tokens comes whole, once complete."""
    pieces = pieces_of(small.byte_level(), list("a🦙b".encode()))
    assert pieces == ["a", "", "", "", "🦙", "b", ""]


def test_ggml_org_llama_cpp_14937():
    """T2: half a character at the end becomes U+FFFD, which UTF-8 can carry."""
    assert pieces_of(small.byte_level(), [0xF0]) == ["", "\ufffd"]
    tokenizer = small.byte_fallback()
    assert pieces_of(tokenizer, [tokenizer.id("<0xF0>")]) == ["", "\ufffd"]


@pytest.mark.parametrize("kind", KINDS)
def test_huggingface_tokenizers_1705(kind):
    """T4: every sequence of ids, valid text or not, joins to the batch text; ids beyond too."""
    tokenizer = kind()
    draw = random.Random(kind.__name__)
    ids = range(tokenizer.vocab_size + 3)
    for _ in range(1500):
        sequence = draw.choices(ids, k=draw.randrange(1, 24))
        assert "".join(pieces_of(tokenizer, sequence)) == tokenizer.decode(sequence), sequence


@pytest.mark.parametrize("kind", KINDS_WITH_BYTES)
def test_byte_tokens_of_real_text_mixed_with_wrong_ones(kind):
    """T4: bytes alone, so that whole characters, broken ones and their borders are met often."""
    tokenizer = kind()
    draw = random.Random(1705)
    alphabet = ["a", "é", "猫", "🦙", "\n"]
    for _ in range(1500):
        data = b"".join(draw.choice(alphabet).encode() for _ in range(draw.randrange(1, 6)))
        if draw.random() < 0.5:
            place = draw.randrange(len(data))
            data = data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
        sequence = list(data)
        if draw.random() < 0.5:
            sequence.insert(draw.randrange(len(sequence) + 1), draw.randrange(tokenizer.vocab_size))
        assert "".join(pieces_of(tokenizer, sequence)) == tokenizer.decode(sequence), sequence


@pytest.mark.parametrize("kind", KINDS_WITH_BYTES)
def test_no_piece_holds_half_a_character(kind):
    text = "naïve 猫🦙 café 👩‍👩‍👧"
    pieces = pieces_of(kind(), list(text.encode()))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_vllm_project_vllm_46723():
    """T6: the first space goes only at the start of the sequence, and only if it is one."""
    for kind in (small.byte_fallback, small.metaspace):
        tokenizer = kind()
        hello_world = [tokenizer.id("▁Hello"), tokenizer.id("▁world")]
        assert pieces_of(tokenizer, hello_world) == ["Hello", " world", ""]
        no_space = [tokenizer.id("Hello"), tokenizer.id("▁world")]
        assert pieces_of(tokenizer, no_space) == ["Hello", " world", ""]
        special = [hello_world[0], tokenizer.id("<eos>"), hello_world[1]]
        assert "".join(pieces_of(tokenizer, special)) == "Hello world"


def test_special_tokens_and_ids_beyond_the_vocabulary_give_no_text():
    tokenizer = small.byte_level()
    ids = [tokenizer.id("<s>"), ord("a"), 10_000, tokenizer.id("né le"), tokenizer.id("<eos>")]
    assert pieces_of(tokenizer, ids) == ["", "a", "", "né le", "", ""]


def test_a_run_of_byte_tokens_is_known_before_it_is_shown():
    """Llama 2 writes a newline as a byte token: stop strings must see it at once."""
    tokenizer = small.byte_fallback()
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(tokenizer.id("<0x0A>")) == ""
    assert detokenizer.unsettled == "\n"
    assert detokenizer.push(tokenizer.id("Hello")) == "\nHello"
    assert detokenizer.unsettled == ""


def test_the_text_is_decoded_in_linear_time():
    """Of 4000 tokens at most 4 × 4000 ids are decoded in all, long runs of bytes included."""
    tokenizer = small.byte_fallback()
    decode, decoded = tokenizer.decode, []

    def counting(ids, skip_special_tokens=True):
        decoded.append(len(ids))
        return decode(ids, skip_special_tokens)

    tokenizer.decode = counting
    words = [tokenizer.id("▁Hello"), tokenizer.id("s")] * 1000
    pieces_of(tokenizer, words + list(("猫" * 600).encode()) + words[:200])
    assert sum(decoded) <= 4 * 4000


def test_bytes_that_are_no_text_are_decoded_in_linear_time():
    """A byte-level decoder in a sequence: of 3000 wrong bytes each is decoded a few times only."""
    tokenizer = small.byte_level_in_a_sequence()
    decode, decoded = tokenizer.decode, []

    def counting(ids, skip_special_tokens=True):
        decoded.append(len(ids))
        return decode(ids, skip_special_tokens)

    tokenizer.decode = counting
    assert "".join(pieces_of(tokenizer, [0xF0] * 3000)) == "\ufffd" * 3000
    assert sum(decoded) <= 30 * 3000
