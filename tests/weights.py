"""Weights for test models: a pure function of each tensor's name, the same bits on every machine.

A fixture then needs only config, tokens and logits. The generator is SplitMix64 seeded with the
SHA-256 of the name; its integers become floats by exact steps and one rounding, without libm.
"""

import base64
import hashlib
import json
import math
from pathlib import Path

import numpy as np

from layouts import tensor_shapes

FIXTURES = Path(__file__).parent / "fixtures"
TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def splitmix64(seed: int, count: int) -> np.ndarray:
    """The first `count` outputs of SplitMix64: uint64 [count]."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_integers(name: str, count: int) -> np.ndarray:
    """Uint64 [count], seeded by the first eight bytes of the name's SHA-256."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return splitmix64(seed, count)


def random_tensor(name: str, shape: tuple[int, ...], scale: float | None = None) -> np.ndarray:
    """Uniform float32 in (-scale, scale).

    Without a scale a matrix gets sqrt(7 / columns), which keeps activations and logits of order
    1 to 5, and a vector 0.5.
    """
    if scale is None:
        scale = math.sqrt(7 / shape[-1]) if len(shape) > 1 else 0.5
    top24 = (random_integers(name, math.prod(shape)) >> np.uint64(40)).astype(np.int32)
    odd = 2 * top24 + 1 - 2**24  # |odd| < 2^24: exact in float32
    return (odd.astype(np.float32) * np.float32(2**-24) * np.float32(scale)).reshape(shape)


def make_tensor(name: str, shape: tuple[int, ...], around: float) -> np.ndarray:
    """One tensor of a model, float32; the weights of its norms are `around` 0 or 1."""
    if "norm" in name or ".ln_" in name:
        middle = around if name.endswith(".weight") else 0
        return np.float32(middle) + random_tensor(name, shape, 0.1)
    if name.endswith("act_fn.eps"):  # xIELU's constants, which checkpoints hold
        return np.array(-1e-6, np.float32)
    if name.endswith("act_fn.beta"):
        return np.asarray(np.float32(0.5) + random_tensor(name, shape, 0.1))
    return random_tensor(name, shape)


def make_tensors(
    config: dict, first_column: dict[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Every tensor of the config as float32; `first_column` sets column 0 of those it names."""
    one_plus = config["model_type"].startswith(("gemma", "nemotron"))  # norms multiply by 1 + w
    tensors = {
        name: make_tensor(name, shape, 0 if one_plus else 1)
        for name, shape in tensor_shapes(config).items()
    }
    for name, value in (first_column or {}).items():
        tensors[name][..., 0] = value
    return tensors


def load_case(name: str) -> dict:
    """One recorded fixture: config, tokens, positions, logits: float32 [len(positions), vocab]."""
    case = json.loads((FIXTURES / f"{name}.json").read_text())
    stored = case["logits"]
    values = np.frombuffer(base64.b64decode(stored["float32"]), "<f4").astype(np.float32)
    return case | {"logits": values.reshape(stored["shape"])}


def encode(values: np.ndarray, dtype: str) -> tuple[bytes, np.ndarray]:
    """The bytes of float32 values stored as F32, F16 or BF16, and the float32 they decode to."""
    if dtype == "BF16":  # add half of the last kept bit, less one unless it is odd: ties to even
        bits = values.view(np.uint32)
        sixteen, one = np.uint32(16), np.uint32(1)
        kept = (bits + np.uint32(0x7FFF) + (bits >> sixteen & one)) >> sixteen
        return kept.astype("<u2").tobytes(), (kept << sixteen).view(np.float32)
    stored = values.astype({"F32": "<f4", "F16": "<f2"}[dtype])
    return stored.tobytes(), stored.astype(np.float32)


def write_safetensors(file: Path, dtype: str, encoded: dict[str, tuple]) -> None:
    """One safetensors file from name -> (shape, bytes, ...): header length, header, data."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, data, *_) in encoded.items():
        offsets = [end, end := end + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    parts = [len(text).to_bytes(8, "little"), text, *(data for _, data, *_ in encoded.values())]
    file.write_bytes(b"".join(parts))


def write_model(
    folder: Path, case: str | dict, dtype: str = "F32", shards: int = 1
) -> dict[str, np.ndarray]:
    """Write a Hugging Face folder (config.json, *.safetensors, index when sharded).

    Parameters
    ----------
    case : the name of a fixture, or a dict like one: {"config": config.json of any sizes}
    dtype : "F32", "F16" or "BF16", for every tensor
    shards : number of safetensors files

    Returns
    -------
    The tensors as float32, holding the values the files hold.
    """
    fixture = load_case(case) if isinstance(case, str) else case
    config = fixture["config"] | {"dtype": TORCH_NAMES[dtype]}
    encoded = {
        name: (values.shape, *encode(values, dtype))
        for name, values in make_tensors(config, fixture.get("first_column")).items()
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))

    names = list(encoded)
    weight_map = {}
    for shard in range(shards):
        file = "model.safetensors"
        if shards > 1:
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[len(names) * shard // shards : len(names) * (shard + 1) // shards]
        weight_map |= dict.fromkeys(part, file)
        write_safetensors(folder / file, dtype, {name: encoded[name] for name in part})
    if shards > 1:
        total_bytes = sum(len(data) for _, data, _ in encoded.values())
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return {name: values for name, (_, _, values) in encoded.items()}
