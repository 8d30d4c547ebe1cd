"""What a model is made of: config.json of transformers 4 or 5 becomes one type."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rillm.errors import (
    MalformedFile,
    ModelNotFound,
    UnknownArchitecture,
    UnknownRopeType,
    UnsupportedConfig,
)
from rillm.families import MODEL_TYPES

ROPE_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: frequencies theta^(-2i/head_dim), scaled as `kind` says."""

    kind: str = "default"  # one of ROPE_KINDS
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0  # positions of the training before scaling; llama3 only


@dataclass(frozen=True)
class Config:
    """The dimensions and options of a decoder, whatever file they came from."""

    file: Path
    model_type: str
    vocab_size: int
    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    norm_eps: float
    activation: str
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    context_length: int  # positions
    rope: Rope
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def __post_init__(self):
        counts = ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn_dim")
        for name in (*counts, "context_length"):
            if getattr(self, name) < 1:
                raise self._wrong(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.n_heads % self.n_kv_heads:
            raise self._wrong(f"{self.n_heads} heads cannot share {self.n_kv_heads} KV heads")
        if self.head_dim % 2:
            raise self._wrong(f"head_dim is {self.head_dim}, expected an even number (rotary)")
        for name, value in (
            ("norm_eps", self.norm_eps),
            ("rope theta", self.rope.theta),
            ("rope factor", self.rope.factor),
        ):
            if not (math.isfinite(value) and value > 0):
                raise self._wrong(f"{name} is {value}, expected a positive number")

    def _wrong(self, why: str) -> MalformedFile:
        return MalformedFile(f"{self.file}: {why}")


def read_config(folder: Path) -> Config:
    """The config.json of a folder.

    Raises
    ------
    ModelNotFound
        There is no config.json.
    MalformedFile
        It is no JSON object, or a key is missing or of a wrong type.
    UnknownArchitecture, UnknownRopeType, UnsupportedConfig
        It asks for something that is not computed; the error names it.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ModelNotFound(f"{folder}: no config.json; expected a model folder or a .gguf file")
    return config_from_json(file, read_json(file))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; MalformedFile if it is none."""
    try:
        raw = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MalformedFile(f"{file}: no valid JSON ({error})") from error
    if not isinstance(raw, dict):
        raise MalformedFile(f"{file}: expected a JSON object, got {type(raw).__name__}")
    return raw


def config_from_json(file: Path, raw: dict[str, Any]) -> Config:
    """`raw` is the content of `file`, in the form of transformers 4 or 5; errors: `read_config`."""
    raw = _text_part(file, raw)
    for key in ("quantization_config", "quantization", "compression_config"):
        if quantization := raw.get(key):
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            raise UnsupportedConfig(
                f"{file}: {key} {method or quantization!r}: weights quantized this way are not "
                "read; take the original model (f32, f16, bf16) or a .gguf file"
            )
    keys = _Keys(file, raw)
    if (activation := keys.text("hidden_act", "silu")) != "silu":
        raise UnsupportedConfig(f"{file}: hidden_act is {activation!r}, expected 'silu'")
    dim, n_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    context_length = keys.integer("max_position_embeddings", 2048)
    eos = raw.get("eos_token_id")
    bos = raw.get("bos_token_id")
    return Config(
        file=file,
        model_type=raw["model_type"],
        vocab_size=keys.integer("vocab_size"),
        dim=dim,
        n_layers=keys.integer("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=keys.integer("num_key_value_heads", n_heads),
        head_dim=keys.integer("head_dim", 0) or even_share(file, dim, n_heads),
        ffn_dim=keys.integer("intermediate_size"),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        activation=activation,
        tied=keys.flag("tie_word_embeddings", False),
        attention_bias=keys.flag("attention_bias", False),
        mlp_bias=keys.flag("mlp_bias", False),
        context_length=context_length,
        rope=_rope(file, raw, context_length),
        eos_token_ids=token_ids(file, "eos_token_id", eos),
        bos_token_id=next(iter(token_ids(file, "bos_token_id", bos)), None),
    )


def token_ids(file: Path, key: str, value: Any) -> tuple[int, ...]:
    """An id, a list of ids or null, as a tuple."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in ids):
        raise MalformedFile(f"{file}: {key} is {value!r}, expected an id or a list of ids")
    return tuple(ids)


def even_share(file: Path, dim: int, n_heads: int) -> int:
    """head_dim where none is given."""
    if n_heads < 1 or dim % n_heads:
        raise MalformedFile(f"{file}: {dim} dimensions do not divide among {n_heads} heads")
    return dim // n_heads


def check_model_type(file: Path, key: str, model_type: Any) -> str:
    if model_type not in MODEL_TYPES:
        raise UnknownArchitecture(
            f"{file}: {key} is {model_type!r}, expected one of: {', '.join(MODEL_TYPES)}"
        )
    return model_type


def _text_part(file: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """The language model's config: all of it, or the text_config of a multimodal one."""
    text = raw.get("text_config")
    if isinstance(text, dict) and text.get("model_type") in MODEL_TYPES:
        return raw | {key: value for key, value in text.items() if value is not None}
    check_model_type(file, "model_type", raw.get("model_type"))
    return raw


def _rope(file: Path, raw: dict[str, Any], context_length: int) -> Rope:
    """transformers 4: rope_theta and rope_scaling; 5: rope_parameters, maybe by layer type."""
    parts = {}
    for key in ("rope_parameters", "rope_scaling"):  # transformers too lets rope_scaling win
        part = raw.get(key) or {}
        if isinstance(part, dict) and any(isinstance(value, dict) for value in part.values()):
            layer_types = [name for name, value in part.items() if isinstance(value, dict)]
            if "full_attention" not in part and len(layer_types) != 1:
                raise UnsupportedConfig(
                    f"{file}: {key} differs by layer type ({', '.join(layer_types)}), "
                    "expected one for all layers"
                )
            part = part.get("full_attention", part[layer_types[0]])
        if not isinstance(part, dict):
            raise MalformedFile(f"{file}: {key} is {part!r}, expected an object")
        parts |= {name: value for name, value in part.items() if value is not None}
    keys = _Keys(file, raw | parts)
    if (share := keys.number("partial_rotary_factor", 1.0)) != 1:
        raise UnsupportedConfig(f"{file}: partial_rotary_factor is {share}, expected 1")
    kind = parts.get("rope_type", parts.get("type", "default"))
    if kind not in ROPE_KINDS:
        raise UnknownRopeType(
            f"{file}: the rope type is {kind!r}, expected one of: {', '.join(ROPE_KINDS)}"
        )
    rope = Rope(kind, theta=keys.number("rope_theta", Rope.theta))
    if kind == "default":
        return rope
    if kind == "linear":
        return replace(rope, factor=keys.number("factor"))
    rope = replace(
        rope,
        factor=keys.number("factor"),
        low_freq_factor=keys.number("low_freq_factor"),
        high_freq_factor=keys.number("high_freq_factor"),
        original_context=keys.integer("original_max_position_embeddings", context_length),
    )
    if not 0 < rope.low_freq_factor < rope.high_freq_factor:
        raise MalformedFile(
            f"{file}: low_freq_factor is {rope.low_freq_factor}, expected more than 0 and less "
            f"than high_freq_factor, {rope.high_freq_factor}"
        )
    return rope


class _Keys:
    """Typed access to a JSON object; null means absent."""

    def __init__(self, file: Path, raw: dict[str, Any]):
        self.file, self.raw = file, raw

    def integer(self, key: str, default: int | None = None) -> int:
        return self._get(key, (int,), default)

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._get(key, (int, float), default))

    def flag(self, key: str, default: bool | None = None) -> bool:
        return self._get(key, (bool,), default)

    def text(self, key: str, default: str | None = None) -> str:
        return self._get(key, (str,), default)

    def _get(self, key: str, types: tuple[type, ...], default: Any) -> Any:
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        if type(value) not in types:
            names = " or ".join(t.__name__ for t in types)
            got = f"is {value!r}" if key in self.raw else "is missing"
            raise MalformedFile(f"{self.file}: {key} {got}, expected {names}")
        return value
