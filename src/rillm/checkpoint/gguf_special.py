"""Which tokens of a GGUF file mean something: begin, end, unknown; and how many tokens it has.

Files name one end of several and type tokens wrongly, so texts count too, as in llama.cpp
(src/llama-vocab.cpp): the lists are its own. But a user's </s> is Gemma's tag of struck-out text.
"""

from itertools import chain

import numpy as np

from rillm.checkpoint.metadata import Array, Metadata
from rillm.errors import MalformedFile

# token_type
UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)

_ENDS = ("eos", "eot", "eom")  # end of sequence, of turn, of message
_SPECIAL = (*_ENDS, "bos", "unknown", "padding", "seperator", "cls", "mask")  # as GGUF spells them
_NONE = 2**32 - 1  # for an id: there is no such token
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
# of filling in the middle of code: of each the first that is there
_FIM_TEXTS = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
_FIM_ENDS = ("fim_pad", "fim_rep", "fim_sep")
# what ends nothing, its type then, and the texts that tell so: those of gpt-oss, Solar, Gemma 4
_NO_ENDS = (
    ("<|end|>", USER_DEFINED, ("<|return|>", "<|call|>")),
    ("<|end|>", USER_DEFINED, ("<|flush|>", "<|calls|>")),
    ("</s>", NORMAL, ("<|tool_response>",)),
)


def vocab_size_of(metadata: Metadata) -> int:
    """The length of the token list; a file without a tokenizer states the number."""
    tokens = metadata.array("tokenizer.ggml.tokens", ("string",), None)
    if tokens is None:
        return metadata.integer(f"{metadata.text('general.architecture')}.vocab_size")
    return len(tokens)


def special_ids(metadata: Metadata, names: tuple[str, ...] = _SPECIAL) -> dict[str, int]:
    """The special token ids that are given; MalformedFile for one outside the vocabulary."""
    ids, vocab_size = {}, vocab_size_of(metadata)
    if metadata.text("tokenizer.ggml.model", "") == "llama":  # SentencePiece's <unk>, <s>, </s>
        first = {"unknown": 0, "bos": 1, "eos": 2}
        ids = {name: id for name, id in first.items() if name in names and id < vocab_size}
    for name in names:
        key = f"tokenizer.ggml.{name}_token_id"
        if (id := metadata.integer(key, _NONE)) == _NONE:
            continue
        if not 0 <= id < vocab_size:
            raise MalformedFile(
                f"{metadata.file}: {key} is {id}, expected less than the vocabulary's {vocab_size}"
            )
        ids[name] = id
    return ids


def end_ids(metadata: Metadata) -> list[int]:
    """Ids by their keys, and those of texts that are known to end something."""
    return kinds_and_ends(metadata)[1]


def kinds_and_ends(metadata: Metadata) -> tuple[np.ndarray, list[int]]:
    """The type of each token, and the ids that end a text."""
    ends = list(special_ids(metadata, _ENDS).values())
    tokens = metadata.array("tokenizer.ggml.tokens", ("string",), None)
    if tokens is None:
        return np.empty(0, np.int32), ends
    kinds = _stated_kinds(metadata, len(tokens))
    known = (*_END_TEXTS, *chain(*_FIM_TEXTS.values()))
    places = {text: id for text in known if (id := tokens.find(text)) is not None}
    if "</s>" in places and kinds[places["</s>"]] == USER_DEFINED:
        del places["</s>"]
    control = [places[text] for text in _END_TEXTS if text in places]
    ends += control
    for name, texts in _FIM_TEXTS.items():
        by_text = [places[text] for text in texts if text in places][:1]
        by_key = list(special_ids(metadata, (name,)).values())
        control += [] if by_key else by_text
        ends += (by_key or by_text) if name in _FIM_ENDS else []
    kinds[control] = CONTROL
    for text, kind, others in _NO_ENDS:
        if places.keys() >= {text, *others}:
            kinds[places[text]] = kind
            ends = [id for id in ends if id != places[text]]
    return kinds, list(dict.fromkeys(ends))


def _stated_kinds(metadata: Metadata, n_tokens: int) -> np.ndarray:
    """token_type, one of the numbers above each; where it is missing, all are normal."""
    array = metadata.array("tokenizer.ggml.token_type", ("i32",), None)
    if array is None:
        return np.full(n_tokens, NORMAL)
    check_length(array, n_tokens)
    return array.numbers().copy()


def check_length(array: Array, n_tokens: int) -> None:
    """MalformedFile unless it has one element a token."""
    if len(array) != n_tokens:
        raise MalformedFile(
            f"{array.file}: {array.key} has {len(array)} elements, expected one a token, {n_tokens}"
        )
