"""Random text on which tokenizers disagree, if they do; a function of its seed on every machine."""

from weights import splitmix64

_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "etaoin shrdlu",
    "0123456789",
    "           ",
    " \n\n\t\r",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "éèüñçßøåÄÖÜ",
    "абвгдежзийклмнАБВ",
    "αβγδεζηθικΑΒΓ",
    "的一是不了人我在有他中国",
    "あいうえおカキクケコ",
    "한국어안녕하세요",
    "العربيةسلام",
    "नमस्तेहिन्दी",
    "ไทยภาษา",
    "🦙🚀😀👍🏽✅",
    "…“”‘’—，。！？、「」",
    "½²³①ⅧⅨ٣४",
    "€£¥©®™§±×÷",
    "\u00a0\u2003\u3000\u200b\ufeff",
)
_WORDS = (
    "'s", "'LL", "'t", "I'm", "the", " the", "  ", "\n\n", "==", "://", "2024", " 1234567", "\r\n"
)  # fmt: skip


def texts(seed: int, count: int) -> list[str]:
    """Of up to 12 runs, each of one alphabet or a word."""
    made = []
    for row in splitmix64(seed, 200 * count).reshape(count, 200).tolist():
        numbers = iter(row)
        parts = []
        for _ in range(next(numbers) % 12 + 1):
            kind = next(numbers) % (len(_ALPHABETS) + 6)
            if kind >= len(_ALPHABETS):
                parts.append(_WORDS[next(numbers) % len(_WORDS)])
                continue
            letters = _ALPHABETS[kind]
            parts += (letters[next(numbers) % len(letters)] for _ in range(next(numbers) % 8 + 1))
        made.append("".join(parts))
    return made
