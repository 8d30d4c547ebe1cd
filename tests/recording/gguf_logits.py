"""Record llama.cpp's own logits of the GGUF files, at the last token, into their manifests.

In an environment of its own, after gguf_manifests.py:

    pip install llama-cpp-python==0.3.36
    PYTHONPATH=tests python tests/recording/gguf_logits.py [CASE ...]
"""

import base64
import ctypes
import json
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

from gguf_models import CASES, load_manifest, write_gguf
from weights import FIXTURES

REFUSED = "llama.cpp refuses the file: it does not use some of its biases or norms"
UNLIKE = {  # where transformers is followed instead
    "exaone4": "llama.cpp lets its layers slide only if there are 64",
    "phi3": "llama.cpp does not let its layers slide",
    "llama_yarn_attention_factor": "llama.cpp does not read the key of a llama",
    "llama_yarn_betas": "llama.cpp does not read the keys of a llama",
    "cohere_qk_norm": REFUSED,
    "ernie4_5_biases": REFUSED,
    "hunyuan_v1_dense_alpha": REFUSED,
    "nemotron_biases": "llama.cpp wants a head of its own",
    "olmo3_yarn": REFUSED,
    "seed_oss_biases": REFUSED,
}


@llama_cpp.llama_log_callback
def silent(level, text, data):
    pass


def without_vocab(metadata: dict, _) -> None:
    n_tokens = len(metadata.pop("tokenizer.ggml.tokens"))
    metadata["tokenizer.ggml.model"] = "no_vocab"
    metadata[f"{metadata['general.architecture']}.vocab_size"] = n_tokens


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    """float32 [vocab] after all tokens, K and V in f32, no flash attention."""
    options = llama_cpp.llama_model_default_params()
    options.n_gpu_layers, options.use_mmap = 0, False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    assert model, path
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = max(256, len(tokens))
    options.n_threads = options.n_threads_batch = 1
    options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
    options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, options)
    assert context, path
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))) == 0
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (n_vocab,)).copy()
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return row


def record(name: str) -> None:
    file = FIXTURES / "gguf" / f"{name}.json"
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "model.gguf", load_manifest(name), without_vocab)
        row = logits(path, load_manifest(name)["tokens"])
    text = base64.b64encode(row.astype("<f4").tobytes()).decode()
    manifest = file.read_text().rstrip().removesuffix("}").rstrip()
    key = ',\n "llama_cpp_logits": '
    file.write_text(f"{manifest.partition(key)[0]}{key}{json.dumps(text)}\n}}\n")


if __name__ == "__main__":
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    for case in sys.argv[1:] or CASES:
        if case not in UNLIKE:
            record(case)
