r"""How byte-level vocabularies cut text before they merge, by the names of tokenizer.ggml.pre.

The expressions are those of the models' own tokenizer.json files (they are applied one after the
other, each within the pieces of the one before; what it does not match is a piece too), or cut
alike where those would take quadratic time.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pre:
    """One way to cut."""

    splits: tuple[str, ...]  # expressions
    ignore_merges: bool = False  # a piece that is a token stays one, reached by merges or not
    add_bos: bool = False  # where a file does not say


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_THREE_DIGITS = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}"
_ONE_DIGIT = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_SYMBOLS}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(digits: str, ending: str) -> str:
    """Words end where a capital letter follows a small one; a slash may end symbols."""
    start = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{start}{_UPPER}*{_LOWER}+{ending}|{start}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_GPT4O = _by_case(r"\p{N}{1,3}", f"{_ENDINGS}?")
# where the last digits of a number are threes, the first of these places
_FIRST_THREES = r"(?<=\A|\D|\A\d|\D\d|\A\d\d|\D\d\d)(?=(?:\d{3})+(?!\d))"
_CJK = r"[一-龥\u0800-一가-\uD7FF]+"
_PUNCTUATION = r"[!-/:-~！-／：-～‘-‟　-。]+"
_CASED = r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{1D400}-\x{1D7FF}]]+"  # but not the mathematical ones
_DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)

_KINDS = {
    "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 olmo exaone4 mpt trillion granite-docling mellum a.x-4.0 gigachat": Pre((_GPT2,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Pre((r"\p{N}", _GPT2)),
    "llama3 llama-v3 llama-bpe falcon3 pixtral midm-2.0": Pre((_THREE_DIGITS,), True, add_bos=True),
    "dbrx smaug-bpe chatglm-bpe": Pre((_THREE_DIGITS,)),
    "minicpm5": Pre(
        (r"\p{N}{1,3}", rf"{_ENDINGS}|{_WORD}|\p{{N}}+|{_SYMBOLS}"), ignore_merges=True
    ),
    "glm4": Pre((_THREE_DIGITS,), ignore_merges=True),
    "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan f2llmv2": Pre((_ONE_DIGIT,)),
    "ufakzeka": Pre((rf"{_WORD}|\p{{N}}|{_SYMBOLS}",)),
    "seed-coder": Pre(
        (rf"{_ENDINGS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
    ),
    "tekken": Pre((_by_case(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2": Pre((_GPT4O,)),
    "tiny_aya": Pre((r"(?<!\d)\d++\b", r"\A\d{1,2}(?=(?:\d{3})+\z)", _GPT4O)),
    "superbpe": Pre((r"\p{N}+", _FIRST_THREES, r"\d{3}(?=\d)")),
    "deepseek-llm": Pre(
        (r"[\r\n]", rf"\s?{_CASED}", rf"\s?{_PUNCTUATION}", r"(?<!\s)\s+$", _CJK, r"\p{N}+")
    ),
    "deepseek-coder": Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense": Pre((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_3)),
    "falcon": Pre((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "poro-chat bloom gpt3-finnish": Pre((r" ?[^(\s|.,!?…。，、।۔،)]+",)),
    "viking": Pre((r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}")),
}
PRE_TOKENIZERS = {name: pre for names, pre in _KINDS.items() for name in names.split()}
