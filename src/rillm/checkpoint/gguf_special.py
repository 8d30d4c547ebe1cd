"""Which tokens of a GGUF file mean something: begin, end, unknown; and how many tokens it has."""

from rillm.checkpoint.metadata import Metadata
from rillm.errors import MalformedFile

_ENDS = ("eos", "eot", "eom")  # end of sequence, of turn, of message
_SPECIAL = (*_ENDS, "bos", "unknown", "padding", "seperator", "cls", "mask")  # as GGUF spells them
_END_TEXTS = (  # of turns and messages, where files name the end of a sequence alone
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<EOT>",
)  # fmt: skip
_CONTROL = 3  # token_type


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
        if key in metadata:
            ids[name] = metadata.integer(key)
            if not 0 <= ids[name] < vocab_size:
                raise MalformedFile(
                    f"{metadata.file}: {key} is {ids[name]}, expected less than the vocabulary's "
                    f"{vocab_size}"
                )
    return ids


def end_ids(metadata: Metadata) -> list[int]:
    """Ids by their keys, and those of control tokens that are known to end something."""
    ids = list(special_ids(metadata, _ENDS).values())
    array = metadata.array("tokenizer.ggml.tokens", ("string",), None)
    kinds = metadata.array("tokenizer.ggml.token_type", ("i32",), None)
    if array and kinds:
        kinds = kinds.numbers()
        found = [id for text in _END_TEXTS if (id := array.find(text)) is not None]
        ids += [id for id in found if id < len(kinds) and kinds[id] == _CONTROL]
    return list(dict.fromkeys(ids))
