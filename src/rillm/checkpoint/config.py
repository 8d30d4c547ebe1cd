"""What a model is made of: config.json of transformers 4 or 5, or GGUF's, becomes one type."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rillm.checkpoint.keys import Keys, read_json, token_ids
from rillm.checkpoint.layers import turns, windows
from rillm.checkpoint.rope_config import Rope, rope_object
from rillm.errors import MalformedFile, ModelNotFound, UnsupportedConfig
from rillm.families import MODEL_TYPES, family_of
from rillm.families.base import SIZES, Family, Key

ACTIVATIONS = {  # config.json's name -> the kernel's
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
    "xielu": "xielu",
}

TIED = "tie_word_embeddings"
_QUANTIZED = ("quantization_config", "quantization", "compression_config")
_TOKENS = ("eos_token_id", "bos_token_id")
LAYERS_AT_MOST = 4096
ROWS_AT_MOST = 1 << 24
CONTEXT_AT_MOST = 1 << 24  # positions; a config beyond this is a mistake
INT32_MOST = (1 << 31) - 1


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
    context_length: int  # positions
    arithmetic: Family  # the family with every Key replaced by its value
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]  # index in ropes, or -1: the layer's positions do not turn
    windows: tuple[int, ...]  # positions each layer sees; 0: all
    position_context: int  # beyond which arithmetic.position_scale counts
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def __post_init__(self):
        counts = ("vocab_size", "dim", "n_heads", "n_kv_heads", "head_dim", "ffn_dim")
        for name in (*counts, "context_length"):
            if getattr(self, name) < 1:
                raise self._wrong(f"{name} is {getattr(self, name)}, expected at least 1")
        largest = max(self.n_heads * self.head_dim, *(getattr(self, name) for name in counts))
        if largest > ROWS_AT_MOST:  # before there is a list of them
            raise self._wrong(f"a matrix has {largest} rows, expected at most {ROWS_AT_MOST}")
        if self.context_length > CONTEXT_AT_MOST:
            raise self._wrong(
                f"a context of {self.context_length} positions, expected at most {CONTEXT_AT_MOST}"
            )
        if self.n_heads % self.n_kv_heads:
            raise self._wrong(f"{self.n_heads} heads cannot share {self.n_kv_heads} KV heads")
        share = self.arithmetic.rotary_share
        if not 0 <= share < math.inf or self.rotary_dim > self.head_dim:
            raise self._wrong(f"the share of a head that turns is {share}, expected 0 to 1")
        if self.ropes and self.rotary_dim % 2:
            raise self._wrong(
                f"head_dim is {self.head_dim}, of which {self.rotary_dim} turn, "
                "expected an even number"
            )
        if not 0 < (epsilon := self.arithmetic.norm_epsilon) < math.inf:
            raise self._wrong(f"norm epsilon is {epsilon}, expected a positive number")
        for rope in self.ropes:
            if wrong := rope.wrong(self.rotary_dim):
                raise self._wrong(f"rope {wrong}")
        for name, numbers in (
            ("a window of", self.windows),
            ("a rope trained for", [rope.original_context for rope in self.ropes]),
            ("queries scaled beyond", [self.position_context]),
        ):
            if numbers and not 0 <= min(numbers) <= max(numbers) <= INT32_MOST:
                raise self._wrong(
                    f"{name} {min(numbers)} to {max(numbers)} positions, expected 0 to {INT32_MOST}"
                )
        for name in ("embedding_scale", "residual_scale", "logit_scale", "attention_scale",
                     "attention_softcap", "logit_softcap", "qkv_clip"):  # fmt: skip
            if not math.isfinite(value := getattr(self.arithmetic, name) or 0.0):
                raise self._wrong(f"{name.replace('_', ' ')} is {value}, expected a number")

    @property
    def rotary_dim(self) -> int:
        """How many dimensions of a head turn, the first ones."""
        return int(self.head_dim * self.arithmetic.rotary_share)

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


def config_from_json(file: Path, raw: dict[str, Any]) -> Config:
    """`raw` is the content of `file`, in the form of transformers 4 or 5; errors: `read_config`."""
    whole, raw = raw, _text_part(raw)
    is_part = raw is not whole
    family = family_of(raw.get("model_type"), file)
    _refuse(file, raw, family)
    raw = raw | {ours: raw[theirs] for ours, theirs in family.config_keys.items() if theirs in raw}
    sizes = {key: n for key, n in zip(SIZES, family.sizes, strict=True) if n is not None}
    of_any = {key: n for key, n in sizes.items() if key in SIZES[-2:]}
    raw = family.defaults | (sizes if is_part else of_any) | raw
    if raw.get("rope_parameters") is None and not raw.get("rope_scaling"):
        raw["rope_parameters"] = family.rope_defaults
    keys = Keys(file, raw)
    arithmetic = _resolved(keys, family)
    if is_part and (raw.get(TIED) is None or raw[TIED] != whole.get(TIED)):
        arithmetic = replace(arithmetic, tied=None)  # classes differ in whose word counts
    dim, n_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    n_layers = sane_layers(file, keys.integer("num_hidden_layers"))
    context_length = keys.integer("max_position_embeddings", 2048)
    window, sliding = windows(keys, arithmetic, n_layers)
    ropes, layer_ropes = turns(keys, arithmetic, context_length, sliding)
    position_context = 1
    if arithmetic.position_scale:
        original = rope_object(keys).count("original_max_position_embeddings", context_length)
        is_scaled = ropes[0].kind in ("yarn", "llama3", "longrope")
        position_context = ropes[0].original_context if is_scaled else original
    if any(rope.kind == "dynamic" for rope in ropes):
        grown = context_length * ropes[0].factor
        context_length = int(grown) if 1 <= grown <= CONTEXT_AT_MOST else CONTEXT_AT_MOST + 1
    return Config(
        file=file,
        model_type=family.model_type,
        vocab_size=keys.integer("vocab_size"),
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=keys.integer("num_key_value_heads", n_heads),
        head_dim=keys.integer("head_dim", 0) or _even_share(file, dim, n_heads),
        ffn_dim=keys.integer("intermediate_size", 4 * dim if not family.gated else None),
        context_length=context_length,
        arithmetic=arithmetic,
        ropes=ropes,
        layer_ropes=layer_ropes,
        windows=tuple(window if slides else 0 for slides in sliding),
        position_context=position_context,
        eos_token_ids=token_ids(file, "eos_token_id", raw.get("eos_token_id")),
        bos_token_id=next(iter(token_ids(file, "bos_token_id", raw.get("bos_token_id"))), None),
    )


def sane_layers(file: Path, n_layers: int) -> int:
    """The number itself, before a list is made of so many; MalformedFile."""
    if not 1 <= n_layers <= LAYERS_AT_MOST:
        raise MalformedFile(
            f"{file}: {n_layers} layers, expected at least 1 and at most {LAYERS_AT_MOST}"
        )
    return n_layers


def _text_part(raw: dict[str, Any]) -> dict[str, Any]:
    """The language model's config: all of it, or the text_config of a multimodal one.

    From outside it only the token ids and the quantization are taken over.
    """
    text = raw.get("text_config")
    if not isinstance(text, dict) or text.get("model_type") not in MODEL_TYPES:
        return raw
    shared = {key: raw[key] for key in (*_QUANTIZED, *_TOKENS) if raw.get(key) is not None}
    return shared | {key: x for key, x in text.items() if x is not None or key not in shared}


def _refuse(file: Path, raw: dict[str, Any], family: Family) -> None:
    for key in _QUANTIZED:
        if quantization := raw.get(key):
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            raise UnsupportedConfig(
                f"{file}: {key} {method or quantization!r}: weights quantized this way are not "
                "read; take the original model (f32, f16, bf16) or a .gguf file"
            )
    for key, only in ({"is_causal": True} | family.refused).items():
        if raw.get(key, only) not in (only, None):
            raise UnsupportedConfig(f"{file}: {key} is {raw[key]!r}, expected {only!r}")


def _resolved(keys: Keys, family: Family) -> Family:
    """The family with this config's values in place of its Keys."""
    values = {"names": dict(family.names)}
    for flag, names in family.names_if.items():
        if keys.flag(flag, False):
            values["names"] |= names
    for flag, names in family.names_unless.items():
        if not keys.flag(flag, False):
            values["names"] |= names
    for field in fields(family):
        value = getattr(family, field.name)
        if isinstance(value, Key) and field.name != "window":
            found = keys.like(value.name, value.default)
            if value.power != 1:
                if not found > 0:
                    raise MalformedFile(
                        f"{keys.file}: {value.name} is {found}, expected a positive number"
                    )
                found = float(found) ** value.power
            values[field.name] = found
    rope = rope_object(keys)
    if any("partial_rotary_factor" in part for part in rope.raw.values() if isinstance(part, dict)):
        raise UnsupportedConfig(
            f"{keys.file}: partial_rotary_factor stands in rope_parameters by layer type, expected "
            "one for all"
        )
    if isinstance(family.rotary_share, Key):  # transformers 5 has it among rope_parameters
        values["rotary_share"] = rope.number(family.rotary_share.name, values["rotary_share"])
    elif family.rotary_share == 1:
        share = (rope.raw | keys.raw).get("partial_rotary_factor")
        if share not in (None, 1, 1.0):
            raise UnsupportedConfig(
                f"{keys.file}: partial_rotary_factor is {share}, but {family.model_type} turns "
                "whole heads"
            )
    if isinstance(family.position_scale, Key):
        values["position_scale"] = rope.number(family.position_scale.name, 0.0)
    activation = values.get("activation", family.activation)
    activation = family.activation_names.get(activation, activation)
    if activation not in ACTIVATIONS:
        raise UnsupportedConfig(
            f"{keys.file}: the activation is {activation!r}, "
            f"expected one of {', '.join(ACTIVATIONS)}"
        )
    return replace(family, **values | {"activation": ACTIVATIONS[activation]})


def _even_share(file: Path, dim: int, n_heads: int) -> int:
    """head_dim where none is given."""
    if n_heads < 1 or dim % n_heads:
        raise MalformedFile(f"{file}: {dim} dimensions do not divide among {n_heads} heads")
    return dim // n_heads
