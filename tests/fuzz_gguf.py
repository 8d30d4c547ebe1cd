"""Fuzzes the reader of GGUF files: any is a model or a typed error, in bounded time and memory.

    pip install atheris && python tests/fuzz_gguf.py [CORPUS] -max_total_time=600 -rss_limit_mb=1024

An input is one byte, how many times 8 KiB follow it, then a file up to its tensors' data. Seeds are
the recorded files of every family and small vocabularies; the mutator knows where a file's numbers
stand. What is found is kept in fixtures/hostile, which test_gguf_hostile.py reads.
"""

import os
import random
import struct
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
EDGES = [0, 1, 2, 3, 7, 31, 32, 33, 255, 256, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
EDGES += [2**32, 2**48, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]
EDGES += [0x7FC00000, 0x7F800000, 0xFF800000, 0x3F800000, 0xBF800000]  # nan, ±inf, ±1 in float32
WORDS = ["llama", "gemma3", "phi3", "gpt2", "qwen2", "llama-bpe", "none", "linear", "yarn", "su"]
QUANTIZED = [2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 39]  # ggml's tensor types
SMALL_MODEL_BYTES = 4 << 20


# ---- what is tried -------------------------------------------------------------------------------


def outcome(path: Path) -> str:
    """The name of the typed error that a file raises, or "a model" after a step of it."""
    import rillm
    from rillm.checkpoint import open_checkpoint
    from rillm.errors import CheckpointError
    from rillm.plan import make_plan
    from rillm.weights.packing import Layout

    try:
        with open_checkpoint(path) as checkpoint:
            layout = Layout()
            assert isinstance(checkpoint.tokenizer.encode("abc \n é"), list)
            make_plan(checkpoint, "auto", layout)
        if layout.n_bytes > SMALL_MODEL_BYTES:
            return "a large model"
        with rillm.Model.from_pretrained(path, threads=1) as model, model.session(2) as session:
            session.step(0)
    except CheckpointError as error:
        assert str(path) in str(error), error
        return type(error).__name__
    return "a model"


def write(path: Path, data: bytes) -> Path:
    """The file of an input; 0x3c3c is finite and small as f32, f16, bf16 and as a block's scale."""
    path.write_bytes(data[1:] + b"\x3c" * (data[0] << 13 if data else 0))
    return path


# ---- inputs --------------------------------------------------------------------------------------


def seeds() -> list[bytes]:
    """Each family's recorded file, blocks of all kinds, vocabularies of both kinds of tokenizer."""
    from gguf_models import CASES, load_manifest, write_gguf
    from gguf_writer import encode, llama_metadata
    from small_vocabularies import byte_level, sentencepiece

    def without_merges(metadata, tensors):
        metadata["tokenizer.ggml.merges"] = []

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        manifests = map(load_manifest, CASES)
        files = [write_gguf(path, each, without_merges).read_bytes() for each in manifests]
    files += [encode(*llama_of(kinds)) for kinds in (QUANTIZED[:7], QUANTIZED[6:])]
    for vocabulary in (byte_level("llama-bpe"), sentencepiece(True), sentencepiece(False)):
        few = {k: v[:400] if isinstance(v, list) else v for k, v in vocabulary.items()}
        few |= {f"tokenizer.ggml.{name}_token_id": 2 for name in ("bos", "eos")}
        made, merges = set(few["tokenizer.ggml.tokens"]), few.get("tokenizer.ggml.merges", [])
        few["tokenizer.ggml.merges"] = [m for m in merges if m.replace(" ", "") in made]
        files.append(encode(llama_metadata() | few, {}))
    return [b"\xff" + file[: Walk(file).at + 31] for file in files]


def llama_of(kinds: list[int]) -> tuple[dict, dict]:
    """The metadata and tensors of a layer of these kinds in turn; all data is what follows."""
    from gguf_writer import llama_metadata

    names = [f"blk.0.attn_{part}" for part in ("q", "k", "v", "output")]
    names += ["token_embd", *(f"blk.0.ffn_{part}" for part in ("gate", "up", "down"))]
    matrices = {
        f"{name}.weight": (kinds[i % len(kinds)], (256, 256), b"") for i, name in enumerate(names)
    }
    norms = ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight")
    metadata = llama_metadata(
        llama__block_count=1,
        llama__embedding_length=256,
        llama__feed_forward_length=256,
        llama__attention__head_count_kv=4,
        llama__attention__key_length=64,
        llama__attention__value_length=64,
        tokenizer__ggml__model="gpt2",
        tokenizer__ggml__tokens=[*(f"token{i}" for i in range(255)), "<|im_end|>"],
        tokenizer__ggml__token_type=[1] * 255 + [3],
        tokenizer__ggml__merges=[],
        split__count=("u16", 1),
    )
    return metadata, matrices | dict.fromkeys(norms, ("F32", (256,), b""))


@dataclass
class Walk:
    """Where the parts of a file stand, as far as it can be followed."""

    data: bytes
    at: int = 4
    numbers: list[tuple[int, int]] = field(default_factory=list)  # start, bytes
    words: list[tuple[int, int]] = field(default_factory=list)  # start of the length, end
    entries: list[tuple[int, int]] = field(default_factory=list)  # start, end
    tensors: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self):
        try:
            self.number(4)
            n_tensors, n_entries = self.number(8), self.number(8)
            self.each(n_entries, self.entry, self.entries)
            self.each(n_tensors, self.tensor, self.tensors)
        except EOFError:
            pass

    def each(self, count, step, spans):
        for _ in range(count):
            start = self.at
            step()
            spans.append((start, self.at))

    def number(self, n_bytes):
        if self.at + n_bytes > len(self.data):
            raise EOFError
        self.numbers.append((self.at, n_bytes))
        self.at += n_bytes
        return int.from_bytes(self.data[self.at - n_bytes : self.at], "little")

    def word(self):
        start = self.at
        n_bytes = self.number(8)
        self.at += n_bytes
        self.words.append((start, self.at))

    def entry(self):
        self.word()
        self.value(self.number(4))

    def value(self, kind):
        if kind == 8:
            self.word()
        elif kind == 9:
            kind, count = self.number(4), self.number(8)
            for _ in range(count if kind != 9 else 0):
                self.value(kind)
        else:
            self.number(SCALAR_BYTES.get(kind, 4))

    def tensor(self):
        self.word()
        for _ in range(self.number(4)):
            self.number(8)
        self.number(4), self.number(8)


def mutate(data: bytes, max_size: int, seed: int, any_bytes=None) -> bytes:
    """Another input: numbers at their edges, words exchanged, entries gone or there twice."""
    rng = random.Random(seed)
    if any_bytes and rng.random() < 0.2:
        return any_bytes(data, max_size)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        file = bytearray(data[1:])
        walk = Walk(bytes(file))
        step = rng.choice([number, number, number, number, word, span])
        step(rng, file, walk)
        data = bytes([rng.choice([data[0], data[0], 255, rng.randrange(256)])]) + file
    return data[:max_size]


def number(rng, file, walk):
    if not walk.numbers:
        return
    first = rng.random() < 0.5  # the header and short entries come first, vocabularies are long
    start, n_bytes = rng.choice(walk.numbers[:200] if first else walk.numbers)
    old = int.from_bytes(file[start : start + n_bytes], "little")
    near = old + rng.choice([-1, 1, 32, -32]), old * 2, old // 2, rng.getrandbits(8 * n_bytes)
    new = rng.choice([*EDGES, *near, len(file)])
    file[start : start + n_bytes] = (new % 256**n_bytes).to_bytes(n_bytes, "little")


def word(rng, file, walk):
    if not walk.words:
        return
    start, end = rng.choice(walk.words)
    source, source_end = rng.choice(walk.words)
    text = bytes(file[source + 8 : source_end])
    text = rng.choice([text, rng.choice(WORDS).encode(), b"", b"<0x-1>", text * 3, text[1:]])
    file[start:end] = struct.pack("<Q", len(text)) + text


def span(rng, file, walk):
    """One entry or tensor is taken out, or put elsewhere a second time; the count follows."""
    spans, count_at = rng.choice([(walk.entries, 16), (walk.tensors, 8)])
    if not spans:
        return
    start, end = rng.choice(spans)
    taken, (there, _) = bytes(file[start:end]), rng.choice(spans)
    change = rng.choice([-1, 1])
    file[start if change < 0 else there : end if change < 0 else there] = taken * (change > 0)
    count = int.from_bytes(file[count_at : count_at + 8], "little") + change
    file[count_at : count_at + 8] = (count % 2**64).to_bytes(8, "little")


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["rillm"]):
        import rillm.plan  # noqa: F401

    folder = Path(tempfile.mkdtemp())  # left behind: libFuzzer ends the process
    file = Path(f"/proc/self/fd/{os.memfd_create('model')}")  # a disk would be the slowest part
    os.environ["RILLM_HOME"] = str(folder / "home")
    (folder / "seeds").mkdir()
    for n, data in enumerate(seeds()):
        (folder / "seeds" / f"{n:03}").write_bytes(data)

    def one(data: bytes) -> None:
        outcome(write(file, data))

    def mutator(data, max_size, seed):
        return mutate(data, max_size, seed, atheris.Mutate)

    atheris.Setup(
        [*sys.argv, str(folder / "seeds"), "-max_len=32768"],
        one,
        custom_mutator=mutator,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
