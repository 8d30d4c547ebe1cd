"""Small real tokenizers of every kind of decoder, and a session that says what it is told to."""

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import rillm.checkpoint.tokenizer

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_NAMES = dict(  # the table of GPT-2's encoder.py
    zip(
        [*_PRINTABLE, *range(0x21), *range(0x7F, 0xA1), 0xAD],
        map(chr, [*_PRINTABLE, *range(0x100, 0x144)]),
        strict=True,
    )
)


class SmallTokenizer(rillm.checkpoint.tokenizer.Tokenizer):
    """A tokenizer whose tokens are asked for by name."""

    def id(self, name: str) -> int:
        id_ = self.backend.token_to_id(name)
        assert id_ is not None, f"the small tokenizer lacks {name!r}"
        return id_


def _finish(backend: Tokenizer, plain_added: list[str] = ()) -> SmallTokenizer:
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "<eos>")])
    backend.add_tokens(list(plain_added))
    return SmallTokenizer(backend, bos_token="<s>", eos_token="<eos>")


def byte_level(words: list[str] = ()) -> SmallTokenizer:
    """Ids 0..255 are the bytes; then `words`, then <s>, <eos>, and the added "né le"."""
    names = [BYTE_NAMES[byte] for byte in range(256)]
    names += ["".join(BYTE_NAMES[byte] for byte in word.encode()) for word in words]
    backend = Tokenizer(models.BPE({name: id_ for id_, name in enumerate(names)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _finish(backend, ["né le"])


def byte_fallback() -> SmallTokenizer:
    """Like Llama 2: words with U+2581, byte tokens, and the first space stripped."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    names += ["▁", "▁▁", "▁Hello", "▁world", "Hello", "s", ".", "é", "\ufffd"]
    backend = Tokenizer(models.BPE({name: id_ for id_, name in enumerate(names)}, []))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _finish(backend)


def byte_fallback_unstripped() -> SmallTokenizer:
    """Like Gemma: the same without the strip."""
    tokenizer = byte_fallback()
    tokenizer.backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def metaspace() -> SmallTokenizer:
    """Like T5 and XLM-RoBERTa."""
    names = ["▁", "▁▁", "▁Hello", "▁world", "Hello", "world", "▁a▁b", "."]
    backend = Tokenizer(models.BPE({name: id_ for id_, name in enumerate(names)}, []))
    backend.decoder = decoders.Metaspace()
    return _finish(backend)


def wordpiece() -> SmallTokenizer:
    """Like BERT: a space between words, none before ##."""
    names = ["hello", "world", "##ing", "##s", ".", ",", "'", "do", "not"]
    backend = Tokenizer(models.BPE({name: id_ for id_, name in enumerate(names)}, []))
    backend.decoder = decoders.WordPiece()
    return _finish(backend)


def byte_level_in_a_sequence() -> SmallTokenizer:
    """A byte-level decoder with another behind it, so that its text is not just its bytes."""
    tokenizer = byte_level(["the ", "é"])
    tokenizer.backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    return tokenizer


def no_decoder() -> SmallTokenizer:
    """Tokens are joined with spaces."""
    names = ["a", "bc", "é", " ", "\ufffd"]
    return _finish(Tokenizer(models.BPE({name: id_ for id_, name in enumerate(names)}, [])))


class ScriptedSession:
    """A session whose model says the ids of a script, one after another, then the last for ever."""

    isa = None

    def __init__(self, script: list[int], vocab_size: int = 300, context: int = 1000) -> None:
        self.script, self.vocab_size, self.limit = script, vocab_size, context
        self.tokens: list[int] = []
        self.n_prompt = self.n_changes = 0
        self.calls: list[int] = []  # the number of tokens of each forward
        self.surprise_limits: dict[int, tuple[int, float]] = {}

    @property
    def position(self) -> int:
        return len(self.tokens)

    def prefill(self, ids, chunk=None) -> np.ndarray:
        assert ids
        self.tokens += ids
        self.n_prompt = self.position
        return self._forward(len(ids))

    def step(self, token: int) -> np.ndarray:
        self.tokens.append(token)
        return self._forward(1)

    def rewind(self, position: int) -> None:
        assert 0 <= position <= self.position
        self.n_changes += 1
        del self.tokens[position:]

    def _forward(self, n_tokens: int) -> np.ndarray:
        assert self.position <= self.limit
        self.n_changes += 1
        self.calls.append(n_tokens)
        logits = np.zeros(self.vocab_size, dtype=np.float32)
        logits[self.script[min(self.position - self.n_prompt, len(self.script) - 1)]] = 9.0
        return logits
