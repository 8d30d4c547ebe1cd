"""Text to token ids and back: a thin face over the `tokenizers` library."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from rillm.checkpoint.keys import read_json
from rillm.errors import MalformedFile, UnsupportedTokenizer


class Tokenizer:
    """What a model's text is cut into.

    Attributes
    ----------
    backend
        The tokenizers.Tokenizer behind it.
    bos_token, eos_token
        The texts that chat templates ask for, or None.
    """

    def __init__(self, backend: Any, bos_token: str | None = None, eos_token: str | None = None):
        backend.no_truncation()  # a tokenizer.json may carry a training's length limit
        backend.no_padding()
        self.backend = backend
        self.bos_token = bos_token
        self.eos_token = eos_token

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; special tokens written out in it count as themselves.

        `add_special_tokens` puts those of the model's own habit around it (often one BOS): not
        wanted for the output of a chat template, which writes them itself.

        Raises
        ------
        TypeError, ValueError
            It is no str, or holds half of a surrogate pair, which is no character.
        """
        if not isinstance(text, str):
            raise TypeError(f"the text to encode is {text!r:.60}, expected a str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text has {text[error.start]!r} at position {error.start}: a lone surrogate, "
                "such as bytes that are not UTF-8 leave; expected characters"
            ) from None
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are no whole character become U+FFFD.

        An id beyond the vocabulary has no text; one that can be none is a ValueError.
        """
        ids = [int(id) for id in ids]
        try:
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except OverflowError:
            raise ValueError(
                f"ids from {min(ids)} to {max(ids)}, expected 0 to {self.vocab_size - 1}"
            ) from None

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model's matrices may have more rows."""
        return self.backend.get_vocab_size()

    @cached_property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self.backend.token_to_id(self.eos_token)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of tokens that are no text, such as ``<|im_end|>``."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)


def has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file()


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer.json of a folder, with what tokenizer_config.json adds.

    Raises
    ------
    UnsupportedTokenizer
        There is none, or the `tokenizers` library does not know its kind.
    MalformedFile
        It is no JSON object.
    """
    file = folder / "tokenizer.json"
    if not has_tokenizer(folder):
        other = [f" ({model.name} alone is not read)" for model in folder.glob("*.model")][:1]
        raise UnsupportedTokenizer(
            f"{folder}: no tokenizer.json{''.join(other)}; write one with transformers: "
            'AutoTokenizer.from_pretrained("…").save_pretrained("…")'
        )
    config = tokenizer_config(folder)
    bos, eos = _content(config.get("bos_token")), _content(config.get("eos_token"))
    backend = load_backend(file)
    adds = config.get("add_bos_token"), config.get("add_eos_token")
    if any(isinstance(flag, bool) for flag in adds):  # stated flags win, as in transformers 5
        ids = {token: backend.token_to_id(token) for token in (bos, eos) if token is not None}
        if missing := [token for token, id in ids.items() if id is None]:
            raise MalformedFile(f"{file}: lacks the token {missing[0]!r} of tokenizer_config.json")
        bos_id, eos_id = (ids.get(token) for token in (bos, eos))
        set_added_tokens(backend, bos_id if adds[0] else None, eos_id if adds[1] else None)
    return Tokenizer(backend, bos, eos)


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json; {} without them."""
    files = (folder / "special_tokens_map.json", folder / "tokenizer_config.json")
    merged: dict[str, Any] = {}
    for file in files:
        if file.is_file():
            merged |= {key: v for key, v in read_json(file).items() if v is not None}
    return merged


def load_backend(file: Path) -> Any:
    """A tokenizers.Tokenizer from a tokenizer.json."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        read_json(file)  # says it better where this is no JSON
        raise UnsupportedTokenizer(
            f"{file}: the tokenizers library {tokenizers.__version__} says: {error}"
        ) from error


def set_added_tokens(backend: Any, bos_id: int | None, eos_id: int | None) -> None:
    """Put these tokens, and no others, around encoded text."""
    from tokenizers.processors import TemplateProcessing

    before = "" if bos_id is None else "BOS "  # a name inside the template, not the token's text
    after = "" if eos_id is None else " EOS"
    ids = [(name, id) for name, id in (("BOS", bos_id), ("EOS", eos_id)) if id is not None]
    single = f"{before}$A{after}"
    backend.post_processor = TemplateProcessing(
        single=single, pair=f"{single} {before}$B:1{after}", special_tokens=ids
    )


def _content(token: Any) -> str | None:
    """A special token as text; configs write a string or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
