"""Vocabularies whose ids show where text was cut, as GGUF metadata; and which texts to try."""

import unicodedata
from itertools import product

from random_text import texts
from small_tokenizers import BYTE_NAMES
from weights import random_integers

ASCII = [BYTE_NAMES[byte] for byte in (9, 10, 13, *range(32, 127))]
PRINTABLE = [chr(code) for code in range(33, 127)]


def _shuffled(names: list[str]) -> list[str]:
    order = random_integers("".join(names[:9]), len(names)).tolist()
    return [name for _, name in sorted(zip(order, names, strict=True))]


def byte_level(pre: str) -> dict:
    """Every two ASCII characters make a token, so do some other bytes and some longer runs."""
    some = [BYTE_NAMES[z % 256] for z in random_integers("bytes", 4000).tolist()]
    pairs = list(product(ASCII, ASCII)) + list(zip(some[::2], some[1::2], strict=True))
    pairs = [tuple(pair.split("\0")) for pair in _shuffled(["\0".join(p) for p in pairs])]
    wholes = ["".join(pair) for pair in pairs[:6000]]
    pairs += zip(wholes[::2], wholes[1::2], strict=True)
    pairs = list({"".join(pair): pair for pair in pairs}.values())
    tokens = [BYTE_NAMES[byte] for byte in range(256)] + ["".join(pair) for pair in pairs]
    tokens += ["the", BYTE_NAMES[32] + "the"]  # which no merges make
    special = ["<s>", "</s>", "<|user|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + special,
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3, 3, 4],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in pairs],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
    }


def sentencepiece(add_space_prefix: bool) -> dict:
    """Characters, pairs and longer runs of them, scored at random; bytes for the rest."""
    characters = ["▁", *PRINTABLE, *"éñабвгαβ的一是不あいう한국"]
    pairs = _shuffled(["".join(pair) for pair in product(characters[:60], characters[:60])])
    longer = [a + b for a, b in zip(pairs[:1500], pairs[1500:3000], strict=True)]
    longer += ["▁" * n for n in range(3, 9)]
    learned = list(dict.fromkeys([*characters, *pairs, *longer]))
    special = ["<unk>", "<s>", "</s>"]
    added = ["<|user|>", "\n\n"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *learned, *added]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(learned))] + [0.0] * 2,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(learned) + [4, 4],
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def _has_marks_or_cases(text: str) -> bool:
    return any(
        unicodedata.category(c)[0] == "M" or (c > "\x7f" and c.lower() != c.upper()) for c in text
    )


def _has_foreign_spaces(text: str) -> bool:
    return any(c > "\x7f" and c.isspace() for c in text)


def _has_numbers_or_cases(text: str) -> bool:
    return any(c.isnumeric() or c != c.lower() or unicodedata.category(c)[0] == "M" for c in text)


def _has_foreign_digits(text: str) -> bool:
    return any(c > "\x7f" and c.isdecimal() for c in text)


# where llama.cpp's approximation of an expression is seen; transformers' own is followed
_UNLIKE = {
    "tekken": _has_marks_or_cases,
    "gpt-4o": _has_marks_or_cases,
    "tiny_aya": _has_numbers_or_cases,
    "superbpe": _has_foreign_digits,
    "deepseek-llm": _has_foreign_spaces,
    "deepseek-coder": _has_foreign_spaces,
}


def texts_for(kind: str, count: int) -> list[str]:
    """Random texts, with special tokens in some, for which llama.cpp is a reference."""
    unlike = _UNLIKE.get(kind, lambda text: False)
    made = [text for text in texts(5, 8 * count) if not unlike(text)][:count]
    return [
        text[:5] + ("<|user|>", "</s>", "\n\n<s> ")[i % 3] + text[5:] if i % 7 == 0 else text
        for i, text in enumerate(made)
    ]
