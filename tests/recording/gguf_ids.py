"""Record llama.cpp's ids of random texts, with small vocabularies of every kind that it knows.

    pip install -e ".[test]" llama-cpp-python==0.3.36
    PYTHONPATH=tests python tests/recording/gguf_ids.py

A text's ids are kept as eight digits of their checksum.
"""

import ctypes
import hashlib
import json
import tempfile
from pathlib import Path

import llama_cpp

import gguf_writer
from small_vocabularies import byte_level, sentencepiece, texts_for
from weights import FIXTURES

# one name of each kind
PRES = (
    "default", "gpt-2", "smollm", "llama-bpe", "dbrx", "glm4", "qwen2", "seed-coder", "tekken",
    "gpt-4o", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "poro-chat", "viking",
    "minicpm5", "ufakzeka", "tiny_aya", "superbpe",
)  # fmt: skip
TEXTS = 200


@llama_cpp.llama_log_callback
def silent(level, text, data):
    pass


def load_vocabulary(metadata: dict):
    """A llama_vocab."""
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        gguf_writer.write(path, gguf_writer.llama_metadata() | metadata, {})
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    assert model
    return llama_cpp.llama_model_get_vocab(model)


def ids_of(vocabulary, text: str) -> list[int]:
    """With BOS and EOS as the vocabulary wants, special tokens in the text as themselves."""
    data = text.encode()
    ids = (llama_cpp.llama_token * (len(data) + 8))()
    n = llama_cpp.llama_tokenize(vocabulary, data, len(data), ids, len(ids), True, True)
    assert n >= 0
    return list(ids[:n])


def checksums(metadata: dict, kind: str) -> str:
    vocabulary = load_vocabulary(metadata)
    digests = [
        hashlib.sha256(json.dumps(ids_of(vocabulary, text)).encode()).hexdigest()[:8]
        for text in texts_for(kind, TEXTS)
    ]
    return " ".join(digests)


def record() -> None:
    recorded = {pre: checksums(byte_level(pre), pre) for pre in PRES}
    for name, flag in (("llama", True), ("gemma", False)):
        recorded[name] = checksums(sentencepiece(flag), name)
    (FIXTURES / "gguf_ids.txt").write_text(
        "".join(f"{kind} {digests}\n" for kind, digests in recorded.items())
    )


if __name__ == "__main__":
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    record()
