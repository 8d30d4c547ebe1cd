"""One incremental detokenizer, for streams and for whole texts: bytes where it can, a window else.

A byte-level token is a run of bytes, whatever its neighbours are: the bytes go through an
incremental UTF-8 decoder. Other tokens (SentencePiece, WordPiece) read differently after another
token than alone: they are decoded behind the tokens shown last, and what that adds is the piece. In
a run of byte-fallback tokens one wrong byte spoils all the others, so a run is shown when it ended.
"""

from __future__ import annotations

import codecs
import json
import re


class Detokenizer:
    """Turns token ids into text, one at a time, in time linear in their number.

    The pieces and the flush, joined, are `tokenizer.decode(ids, skip_special_tokens=True)`. No
    piece ends within a character. Special tokens and ids beyond the vocabulary give no text.

    Parameters
    ----------
    tokenizer : Tokenizer
        Its `backend` (a tokenizers.Tokenizer), `special_ids` and `decode` are used.
    """

    def __init__(self, tokenizer) -> None:
        self._name_of = tokenizer.backend.id_to_token
        self._silent = tokenizer.special_ids
        decoder = _decoder(tokenizer.backend)
        self._text = _Bytes() if decoder.get("type") == "ByteLevel" else _Window(tokenizer, decoder)

    def push(self, token: int) -> str:
        """Take one token id; return the text that is certain now (often "")."""
        self._text.unsettled = ""
        name = None if token in self._silent else self._name_of(token)
        return "" if name is None else self._text.push(token, name)

    def flush(self) -> str:
        """The text still held, half a character as U+FFFD. Call it once, at the end."""
        return self._text.flush()

    @property
    def unsettled(self) -> str:
        """Whole characters that the last token added, held because a later one may spoil them."""
        return self._text.unsettled


class _Bytes:
    """Byte-level: a token's name spells its bytes, a character for each."""

    unsettled = ""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token: int, name: str) -> str:
        try:
            spelled = bytes(map(_BYTE_OF.__getitem__, name))
        except KeyError:  # an added token, in plain text
            spelled = name.encode()
        return self._decode(spelled)

    def flush(self) -> str:
        return self._decode(b"", True)


class _Window:
    """Any other decoder: the text of (shown + held) tokens beyond the text of the shown ones."""

    unsettled = ""

    def __init__(self, tokenizer, decoder: dict) -> None:
        self._decode = tokenizer.decode
        self._shown: list[int] = []
        self._held: list[int] = []
        self._run = _Run()  # of the byte-fallback tokens at the end of `_held`
        description = json.dumps(decoder)
        self._has_byte_tokens = "ByteFallback" in description
        self._may_split_characters = "ByteLevel" in description

    def push(self, token: int, name: str) -> str:
        self._held.append(token)
        if self._has_byte_tokens and (byte := _BYTE_TOKEN.fullmatch(name)):
            self.unsettled = self._run.push(int(byte[1], 16))
            return ""
        self._run = _Run()
        text = self._added_text(self._held)
        if self._may_split_characters and text.endswith("\ufffd"):
            return self._certain(text)
        if text:
            self._shown, self._held = self._held, []
        return text

    def flush(self) -> str:
        text = self._added_text(self._held)
        self._shown, self._held, self._run = self._held, [], _Run()
        return text

    def _added_text(self, tokens: list[int]) -> str:
        before = self._decode(self._shown)
        return self._decode(self._shown + tokens)[len(before) :]

    def _certain(self, text: str) -> str:
        """What comes before a last character that three bytes, so three tokens, may have begun."""
        for place in range(len(self._held) - 1, max(len(self._held) - 4, 0), -1):
            before, rest = self._held[:place], self._held[place:]
            certain = self._added_text(before)
            if certain and certain + self._decode(rest) == text:
                self._shown, self._held = before, rest
                return certain
        return ""


class _Run:
    """Byte tokens one after another: their characters, as long as all of them are right."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")().decode

    def push(self, byte: int) -> str:
        """The character that this byte completes, or ""."""
        try:
            return self._decode(bytes([byte]))
        except UnicodeDecodeError:
            self._decode = lambda _: ""  # one wrong byte spoils the whole run
            return ""


def _decoder(backend) -> dict:
    """The decoder as tokenizer.json describes it; a sequence of one is that one."""
    state = json.loads(backend.decoder.__getstate__()) if backend.decoder else {}
    while state.get("type") == "Sequence" and len(state["decoders"]) == 1:
        state = state["decoders"][0]
    return state


def _byte_of() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 is itself, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_BYTE_OF = _byte_of()
