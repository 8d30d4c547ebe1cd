"""GGUF metadata becomes the keys of a config.json: one path of interpretation for both."""

from dataclasses import replace
from typing import Any

import numpy as np

from rillm.checkpoint.config import Config, config_from_json, sane_layers
from rillm.checkpoint.gguf_names import flags_from_names, stored_as
from rillm.checkpoint.gguf_special import end_ids, special_ids, vocab_size_of
from rillm.checkpoint.mapped import Tensor
from rillm.checkpoint.metadata import INTEGERS, Array, Metadata
from rillm.errors import MalformedFile, UnknownRopeType, UnsupportedConfig
from rillm.families import family_of_gguf
from rillm.families.base import Family, Key

# options that change the arithmetic, and their values of no effect
_WITHOUT_EFFECT = {
    "expert_count": 0,
    "nextn_predict_layers": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.scale": 0.0,
    "attention.temperature_scale": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "rope.dimension_sections": 0,
    "rope.scaling.yarn_ext_factor": 1.0,
}
_SCALES = ("embedding_scale", "residual_scale", "logit_scale")  # 0 and 1 are the same
_LONGROPE = {
    "short_factor": "rope_factors_short.weight",
    "long_factor": "rope_factors_long.weight",
}
_FACTORS_AT_MOST = 4096  # one of every two dimensions of a head
_XIELU_SHAPES = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}


def config_from_gguf(metadata: Metadata, tensors: dict[str, Tensor]) -> Config:
    """What a config.json would say, with names and biases as this file has them.

    What stands among the tensors in GGUF, but among the keys in a config.json, is taken out of
    `tensors` (the factors of longrope); the other way round it is put in (parameters of xIELU).

    Raises
    ------
    MalformedFile, UnknownArchitecture, UnknownRopeType, UnsupportedConfig
    """
    file, architecture = metadata.file, metadata.text("general.architecture")
    own = metadata.within(f"{architecture}.")
    family = family_of_gguf(architecture, lambda key: bool(own.value(key, 0)), file)
    _refuse(own, family)
    n_layers = sane_layers(file, own.integer("block_count"))
    dim = own.integer("embedding_length")
    n_heads = _of_layers(own, "attention.head_count", n_layers)
    raw = {
        "model_type": family.model_type,
        "vocab_size": vocab_size_of(metadata),
        "hidden_size": dim,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": _of_layers(own, "attention.head_count_kv", n_layers, n_heads),
        "head_dim": own.integer("attention.key_length", 0) or None,
        "intermediate_size": _of_layers(own, "feed_forward_length", n_layers),
        "max_position_embeddings": own.integer("context_length"),
        "rope_parameters": _rope(own, tensors),
        "eos_token_id": end_ids(metadata),
        "bos_token_id": special_ids(metadata, ("bos",)).get("bos"),
    }
    if "rope.freq_base_swa" in own:
        raw["rope_local_base_freq"] = own.number("rope.freq_base_swa")
    if isinstance(family.norm_epsilon, Key):
        kind = {"rms": "rms_", "layer": ""}[family.norm]
        raw[family.norm_epsilon.name] = own.number(f"attention.layer_norm_{kind}epsilon")
    head_dim = raw["head_dim"] or (dim // n_heads if n_heads > 0 else 0)
    raw |= _window(own, family, n_layers)
    raw |= _turning_share(own, family, head_dim)
    raw |= {key: own.value(name) for key, name in family.gguf_keys.items() if name in own}
    raw |= _scales(own, family, head_dim)
    raw |= flags_from_names(family, tensors)
    if family.gguf_omits:
        raw |= family.gguf_omits(raw)
    config = config_from_json(file, raw)
    _add_xielu(metadata, tensors, config.n_layers)
    return replace(config, arithmetic=stored_as(config.arithmetic, family, tensors))


def _refuse(own: Metadata, family: Family) -> None:
    """Options that the family does not have, unless they say nothing."""
    for key, none in _WITHOUT_EFFECT.items():
        value = own.value(key, none)
        if isinstance(value, Array) and not any(value.tolist()):
            value = 0
        nothing = (none, 0) if key in _SCALES else (none,)
        if key not in family.gguf_keys.values() and value not in nothing:
            raise UnsupportedConfig(
                f"{own.file}: {own.prefix}{key} is {value!r}, expected {none} in a "
                f"{family.model_type} model"
            )
    if family.window is None and (window := own.integer("attention.sliding_window", 0)):
        raise UnsupportedConfig(
            f"{own.file}: {own.prefix}attention.sliding_window is {window}, but layers of "
            f"{family.model_type} do not slide"
        )


def _of_layers(own: Metadata, key: str, n_layers: int, *default: int) -> int:
    """A number that files give once, or to each layer, if it is the same in all."""
    value = own.value(key, *default)
    if not isinstance(value, Array):
        return own.integer(key, *default)
    numbers = own.array(key, INTEGERS).numbers()
    if len(numbers) != n_layers or (numbers != numbers[0]).any():
        raise UnsupportedConfig(
            f"{own.file}: {own.prefix}{key} is {value!r}, expected one number, the same in all "
            f"{n_layers} layers"
        )
    return int(numbers[0])


def _scales(own: Metadata, family: Family, head_dim: int) -> dict[str, float]:
    """Factors of this family: in GGUF 0, or nothing, says that there is none."""
    none = {
        "attention_multiplier": max(head_dim, 1) ** -0.5,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logit_scale": 1.0,
    }
    keys = family.gguf_keys
    return {key: own.number(keys[key], 0.0) or none[key] for key in keys.keys() & none.keys()}


def _window(own: Metadata, family: Family, n_layers: int) -> dict[str, Any]:
    """The window, 0 where none is given, and which layers slide where the file tells."""
    if family.window is None:
        return {}
    raw: dict[str, Any] = {family.window.name: own.integer("attention.sliding_window", 0)}
    pattern = own.value("attention.sliding_window_pattern", None)
    if isinstance(pattern, Array):
        slides = own.array("attention.sliding_window_pattern", ("bool", *INTEGERS)).tolist()
        if len(slides) < n_layers:
            raise MalformedFile(
                f"{own.file}: {own.prefix}attention.sliding_window_pattern tells of {len(slides)} "
                f"layers, expected {n_layers}"
            )
    elif pattern is not None:
        every = own.integer("attention.sliding_window_pattern")  # that one sees everything; 0: none
        slides = [every == 0 or (i + 1) % every for i in range(n_layers)]
    else:
        return raw
    if not raw[family.window.name]:  # then a pattern says nothing
        return raw
    kinds = ("full_attention", "sliding_attention")
    raw |= {"layer_types": [kinds[bool(slide)] for slide in slides[:n_layers]]}
    return raw | ({family.window_if: True} if family.window_if else {})


def _turning_share(own: Metadata, family: Family, head_dim: int) -> dict[str, float]:
    """The part of a head that turns, for families that may turn less than all of it."""
    if (value := own.integer("attention.value_length", head_dim)) != head_dim:
        raise UnsupportedConfig(
            f"{own.file}: {own.prefix}attention.value_length is {value}, "
            f"expected the key length {head_dim}"
        )
    turning = own.integer("rope.dimension_count", head_dim)
    if isinstance(family.rotary_share, Key):
        if not 0 <= turning <= head_dim:
            raise MalformedFile(
                f"{own.file}: {own.prefix}rope.dimension_count is {turning}, "
                f"expected at most the key length {head_dim}"
            )
        half = 0.5  # so that rounding cannot lose one: what turns is int(head_dim * share)
        return {family.rotary_share.name: (turning + half) / head_dim if head_dim else 0.0}
    if turning != head_dim and family.rotary_share:
        raise UnsupportedConfig(
            f"{own.file}: {own.prefix}rope.dimension_count is {turning}, but {family.model_type} "
            f"turns whole heads: expected the key length {head_dim}"
        )
    return {}


def _rope(own: Metadata, tensors: dict[str, Tensor]) -> dict[str, Any]:
    factor = own.number("rope.scaling.factor", 0.0) or own.number("rope.scale_linear", 0.0)
    kind = own.text("rope.scaling.type", "linear" if factor else "none")
    amplitude = own.number("rope.scaling.attn_factor", 1.0)
    divisors = {key: _numbers(tensors.pop(n)) for key, n in _LONGROPE.items() if n in tensors}
    rope: dict[str, Any] = {"rope_theta": own.number("rope.freq_base", 10000.0)}
    rope["llama_4_scaling_beta"] = own.number("attention.temperature_scale", 0.0)
    rope["original_max_position_embeddings"] = own.integer(
        "rope.scaling.original_context_length", own.integer("context_length")
    )
    if divisors:  # Phi-3's files do not name the kind
        return rope | divisors | {"rope_type": "longrope", "attention_factor": amplitude}
    if amplitude != 1:
        raise UnsupportedConfig(
            f"{own.file}: {own.prefix}rope.scaling.attn_factor is {amplitude}, expected 1"
        )
    if kind == "yarn":
        optional = {
            "attention_factor": "rope.scaling.yarn_attn_factor",
            "beta_fast": "rope.scaling.yarn_beta_fast",
            "beta_slow": "rope.scaling.yarn_beta_slow",
            "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
        }
        rope |= {key: own.number(name) for key, name in optional.items() if name in own}
        return rope | {"rope_type": "yarn", "factor": factor or 1.0, "mscale": 1.0}
    if kind not in ("none", "linear"):
        raise UnknownRopeType(
            f"{own.file}: {own.prefix}rope.scaling.type is {kind!r}, expected none, linear, yarn, "
            "or longrope with its factors among the tensors"
        )
    scaled = kind == "linear" and factor
    return rope | ({"rope_type": "linear", "factor": factor} if scaled else {})


def _numbers(tensor: Tensor) -> list[float]:
    if tensor.kind != "F32" or tensor.data.size > 4 * _FACTORS_AT_MOST:
        raise MalformedFile(
            f"{tensor.file}: tensor {tensor.name} is {tensor.kind} {list(tensor.shape)}, "
            f"expected at most {_FACTORS_AT_MOST} numbers in F32"
        )
    return np.frombuffer(tensor.data, "<f4").tolist()


def _add_xielu(metadata: Metadata, tensors: dict[str, Tensor], n_layers: int) -> None:
    for part, shape in _XIELU_SHAPES.items():
        values = metadata.array(f"xielu.{part}", ("f32",), None)
        if values and len(values) > n_layers:  # before there is a tensor for each
            raise MalformedFile(
                f"{metadata.file}: xielu.{part} has {len(values)} values, expected one a layer, "
                f"{n_layers}"
            )
        for layer, value in enumerate(values.tolist() if values else ()):
            name = f"blk.{layer}.xielu.{part}"
            data = np.array([value], "<f4").view(np.uint8)
            tensors[name] = Tensor(name, "F32", shape, metadata.file, data)
