"""A tokenizer from GGUF metadata: byte-level BPE, or SentencePiece's BPE by scores.

Source of the steps: https://huggingface.co/docs/tokenizers/components; the kinds of tokens and of
pre-tokenizers are llama.cpp's.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rillm.checkpoint.gguf_merges import merges_by_score
from rillm.checkpoint.gguf_special import (
    BYTE,
    CONTROL,
    UNDEFINED,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    check_length,
    kinds_and_ends,
    special_ids,
)
from rillm.checkpoint.metadata import Metadata
from rillm.checkpoint.pre_tokenizers import PRE_TOKENIZERS
from rillm.checkpoint.tokenizer import Tokenizer, set_added_tokens
from rillm.errors import MalformedFile, UnsupportedTokenizer

_ADDED = (UNKNOWN, CONTROL, USER_DEFINED)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_SPACE = "▁"  # U+2581, as SentencePiece writes a space
_WAY_OUT = "take the model's Hugging Face folder, which brings its tokenizer.json"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, in the order of their ids, and a kind for each."""

    file: Path
    tokens: list[str]
    kinds: np.ndarray
    ids: dict[str, int]


class _NoTokenizer(Tokenizer):
    """Of a file that has none: its model takes ids, which have no text."""

    def __init__(self, file: Path):
        import tokenizers

        super().__init__(tokenizers.Tokenizer(tokenizers.models.BPE()))
        self._file = file

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise UnsupportedTokenizer(
            f"{self._file}: it has no tokenizer; give token ids, or {_WAY_OUT}"
        )


def tokenizer_from_gguf(metadata: Metadata) -> Tokenizer:
    """The tokenizer of a GGUF file; of one without, that knows no text.

    Raises
    ------
    UnsupportedTokenizer
        Its model or pre-tokenizer is not read; the error names it.
    MalformedFile
        The vocabulary contradicts itself.
    """
    model = metadata.text("tokenizer.ggml.model", "none")
    if model in ("none", "no_vocab"):
        return _NoTokenizer(metadata.file)
    if model not in ("gpt2", "llama"):
        raise UnsupportedTokenizer(
            f"{metadata.file}: tokenizer.ggml.model is {model!r}, expected 'gpt2' or 'llama'; "
            f"{_WAY_OUT}"
        )
    vocabulary = _vocabulary(metadata, may_have_bytes=model == "llama")
    ids = special_ids(metadata)
    if model == "gpt2":
        backend, adds_bos = _byte_level(metadata, vocabulary)
    else:
        backend, adds_bos = _sentencepiece(metadata, vocabulary, ids.get("unknown")), True
    eats_spaces = model == "llama" and metadata.text("general.architecture") == "phi3"
    backend.add_tokens(_added_tokens(vocabulary, eats_spaces))
    added = {}
    for name, adds in (("bos", adds_bos), ("eos", False)):
        key = f"tokenizer.ggml.add_{name}_token"
        if metadata.flag(key, adds):
            if name not in ids and key in metadata:
                raise MalformedFile(
                    f"{metadata.file}: {key} is set, but tokenizer.ggml.{name}_token_id is missing"
                )
            added[name] = ids.get(name)
    if added:
        set_added_tokens(backend, added.get("bos"), added.get("eos"))
    bos, eos = (backend.id_to_token(ids[name]) if name in ids else None for name in ("bos", "eos"))
    return Tokenizer(backend, bos, eos)


def _vocabulary(metadata: Metadata, may_have_bytes: bool) -> Vocabulary:
    file = metadata.file
    tokens = metadata.array("tokenizer.ggml.tokens", ("string",)).tolist()
    if "" in tokens:
        tokens = [token or f"[EMPTY_{id}]" for id, token in enumerate(tokens)]
    kinds, _ = kinds_and_ends(metadata)
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        id = next(id for id, token in enumerate(tokens) if ids[token] != id)
        raise MalformedFile(
            f"{file}: tokens {id} and {ids[tokens[id]]} are the same, {tokens[id]!r}"
        )
    last = BYTE if may_have_bytes else UNUSED
    for id in np.flatnonzero((kinds < UNDEFINED) | (kinds > last)):
        raise MalformedFile(
            f"{file}: token {id} ({tokens[id]!r}) is of type {kinds[id]}, which a vocabulary of "
            "this tokenizer.ggml.model does not have"
        )
    for id in np.flatnonzero(kinds == BYTE):
        if not _BYTE_TOKEN.fullmatch(tokens[id]):
            raise MalformedFile(
                f"{file}: token {id} is {tokens[id]!r}, expected a byte like '<0x0A>'"
            )
    return Vocabulary(file, tokens, kinds, ids)


def _byte_level(metadata: Metadata, vocabulary: Vocabulary) -> tuple[Any, bool]:
    """As GPT-2: characters stand for bytes, merges are listed; and whether its kind adds BOS."""
    from tokenizers import Regex, decoders, pre_tokenizers

    name = metadata.text("tokenizer.ggml.pre", "default")
    if (pre := PRE_TOKENIZERS.get(name)) is None:
        raise UnsupportedTokenizer(
            f"{metadata.file}: tokenizer.ggml.pre is {name!r}, expected one of: "
            f"{', '.join(sorted(PRE_TOKENIZERS))}; {_WAY_OUT}"
        )
    listed = metadata.array("tokenizer.ggml.merges", ("string",)).tolist()
    merges = [_halves(metadata.file, merge) for merge in listed]
    known = vocabulary.ids  # what has no such halves is never joined
    merges = [(left, right) for left, right in merges if left in known and right in known]
    backend = _bpe(vocabulary, merges, ignore_merges=pre.ignore_merges)
    cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, spell])
    backend.decoder = decoders.ByteLevel()
    return backend, pre.add_bos


def _sentencepiece(metadata: Metadata, vocabulary: Vocabulary, unknown: int | None) -> Any:
    """As Llama 2 and Gemma: spaces are U+2581, pairs merge by score, what is left is bytes."""
    from tokenizers import decoders, normalizers

    scores = metadata.array("tokenizer.ggml.scores", ("f32", "i32"))
    check_length(scores, len(vocabulary.tokens))
    array = metadata.array("tokenizer.ggml.tokens", ("string",))
    merges = merges_by_score(array, vocabulary.tokens, scores.numbers())
    backend = _bpe(
        vocabulary,
        merges,
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
    )
    starts_with_space = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend(_SPACE)] if starts_with_space else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*steps, *([decoders.Strip(" ", 1, 0)] if starts_with_space else [])]
    )
    return backend


def _bpe(vocabulary: Vocabulary, merges: list[tuple[str, str]], **options: Any) -> Any:
    import tokenizers

    try:
        return tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary.ids, merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise MalformedFile(
            f"{vocabulary.file}: its vocabulary and merges do not fit: {error}"
        ) from error


def _added_tokens(vocabulary: Vocabulary, eats_spaces: bool) -> list[Any]:
    """Tokens that count as themselves wherever text has them; Phi-3's eat the spaces behind."""
    from tokenizers import AddedToken

    def added(token: str, kind: int) -> AddedToken:
        eats = eats_spaces and token not in ("<unk>", "<s>", "<|endoftext|>")
        special = bool(kind != USER_DEFINED)
        return AddedToken(token, normalized=False, special=special, rstrip=eats)

    places = np.flatnonzero(np.isin(vocabulary.kinds, _ADDED))
    return [added(vocabulary.tokens[id], vocabulary.kinds[id]) for id in places]


def _halves(source: Path, merge: str) -> tuple[str, str]:
    space = merge.find(" ", 1)  # the first half may be a space itself
    left, right = merge[:space], merge[space + 1 :]
    if space < 0 or not right:
        raise MalformedFile(
            f"{source}: tokenizer.ggml.merges has {merge!r}, expected two tokens and a space"
        )
    return left, right
