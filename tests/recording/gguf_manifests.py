"""Record what llama.cpp's converter makes of the tiny checkpoints: names, kinds, shapes, checksums.

The converter is run, never copied: it lies in the source archive of llama-cpp-python.

    pip install torch==2.13.0 transformers==5.24.0 numpy safetensors sentencepiece gguf
    pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36 && tar xzf llama_cpp*.tar.gz
    LLAMA_CPP=llama_cpp_python-0.3.36/vendor/llama.cpp PYTHONPATH=tests \
        python tests/recording/gguf_manifests.py [CASE ...]
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

LLAMA_CPP = Path(os.environ["LLAMA_CPP"])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf  # noqa: E402
import torch  # noqa: E402
from conversion import ModelBase, get_model_architecture, get_model_class  # noqa: E402
from conversion.base import TextModel  # noqa: E402

from recording.gguf_cases import CASES  # noqa: E402
from recording.record import json_text  # noqa: E402
from weights import FIXTURES, load_case, write_model  # noqa: E402


def set_vocab(model: TextModel) -> None:
    """In place of a family's own: tokens of no meaning, as many as the model has."""
    n = model.hparams["vocab_size"]
    model.gguf_writer.add_tokenizer_model("gpt2")
    model.gguf_writer.add_tokenizer_pre("default")
    model.gguf_writer.add_token_list([f"token{i}" for i in range(n)])
    model.gguf_writer.add_token_types([gguf.TokenType.NORMAL] * n)


def without_vocab(model_class: type) -> None:
    for part in (model_class, *vars(model_class).values()):
        if isinstance(part, type) and issubclass(part, TextModel):
            part.set_vocab = set_vocab


def convert(config: dict, first_column: dict | None, folder: Path) -> Path:
    write_model(folder, {"config": config, "first_column": first_column})
    vocab = {f"token{i}": i for i in range(config["vocab_size"])}
    (folder / "tokenizer.json").write_text(  # Gemma 3's conversion counts its tokens
        json.dumps({"model": {"vocab": vocab}, "added_tokens": []})
    )
    # transformers 5 drops keys of the config.json that the converter still asks for
    hparams = config | ModelBase.load_hparams(folder, False)
    model_class = get_model_class(get_model_architecture(hparams, TextModel.model_type))
    without_vocab(model_class)
    file, f32 = folder / "model.gguf", gguf.LlamaFileType.ALL_F32
    with torch.inference_mode():
        model_class(folder, f32, file, model_name="tiny", hparams=hparams).write()
    return file


def scalar(content):
    """Floats as the shortest decimal that is the same float32."""
    if isinstance(content, list):
        return [scalar(value) for value in content]
    if isinstance(content, float):
        return float(str(torch.tensor(content, dtype=torch.float32).numpy()))
    return content


def record(name: str) -> None:
    fixture, changes = CASES[name]
    case = load_case(fixture)
    config = case["config"] | changes
    with tempfile.TemporaryDirectory() as folder:
        reader = gguf.GGUFReader(convert(config, case.get("first_column"), Path(folder)))
        metadata = {
            key: [field.types[-1].name.lower(), scalar(field.contents())]
            for key, field in reader.fields.items()
            if not key.startswith(("GGUF.", "tokenizer.ggml.tok", "general.size"))
        }
        tensors = {
            tensor.name: [
                tensor.tensor_type.name,
                tensor.shape.tolist()[::-1],
                hashlib.sha256(tensor.data.tobytes()).hexdigest(),
            ]
            for tensor in reader.tensors
        }
    manifest = {"fixture": fixture, "changes": changes}
    manifest |= {"metadata": metadata, "tensors": tensors}
    file = FIXTURES / "gguf" / f"{name}.json"
    file.write_text(json_text(manifest) + "\n")
    print(f"{name}: {len(tensors)} tensors, {file.stat().st_size} bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        record(case)
