"""What a config says of rotary embeddings: one Rope for all layers, or one a layer type."""

from dataclasses import dataclass, replace
from typing import Any

from rillm.checkpoint.keys import Keys
from rillm.errors import MalformedFile, UnknownRopeType
from rillm.families.base import Family

LEAST, MOST = 1e-9, 1e18  # numbers beyond are mistakes, and frequencies still float32
ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: frequencies theta^(-2i/n), scaled as `kind` says."""

    kind: str = "default"  # one of ROPE_KINDS, or a family's "ntk_alpha"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    original_context: int = 0  # positions of the training before scaling
    attention_factor: float | None = None  # yarn, longrope: of cosines and sines
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()  # longrope, [n / 2] each
    long_factor: tuple[float, ...] = ()

    @property
    def depends_on_length(self) -> bool:
        """Its frequencies change when a text grows past the original context."""
        return self.kind in ("dynamic", "longrope")

    def wrong(self, n: int) -> str | None:
        """What cannot be computed for `n` turning dimensions, in words; None: all is well."""
        named = {"theta": self.theta, "factor": self.factor}
        optional = {"attention_factor": self.attention_factor} | {
            "mscale": self.mscale or None,  # 0 is none
            "mscale_all_dim": self.mscale_all_dim or None,
        }
        named |= {name: value for name, value in optional.items() if value is not None}
        if self.kind == "yarn":
            named |= {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow}
        if self.kind == "longrope":
            for name, divisors in (("short", self.short_factor), ("long", self.long_factor)):
                if len(divisors) != n // 2:
                    return (
                        f"{name}_factor has {len(divisors)} factors, expected one of every two "
                        f"dimensions that turn, {n // 2}"
                    )
                named |= {f"{name}_factor[{i}]": value for i, value in enumerate(divisors)}
        for name, value in named.items():
            if not LEAST <= value <= MOST or (name == "theta" and value <= 1):
                least = 1 if name == "theta" else LEAST
                return f"{name} is {value}, expected a number from {least:g} to {MOST:g}"
        if self.kind in ("dynamic", "ntk_alpha") and n == 2:
            return f"is {self.kind}, expected more than 2 dimensions that turn"
        if self.kind not in ("default", "linear", "ntk_alpha") and self.original_context < 2:
            return f"was trained for {self.original_context} positions, expected at least 2"
        return None

    def regime(self, length: int) -> int:
        """Texts of lengths with an equal regime turn by equal frequencies."""
        if self.kind == "dynamic":
            return max(length, self.original_context)
        return int(self.kind == "longrope" and length > self.original_context)


def rope_object(keys: Keys) -> Keys:
    """What says how to turn: rope_scaling, as transformers 4 calls it, or rope_parameters."""
    return Keys(keys.file, keys.object("rope_scaling") or keys.object("rope_parameters"))


def ropes_from_json(keys: Keys, context_length: int, family: Family) -> dict[str, Rope]:
    """By layer type, or under "" for all of them.

    transformers 5 has rope_parameters, maybe by layer type; 4 has rope_theta and rope_scaling,
    which in types with a sliding_theta are for the layers that do not slide.
    """
    parts = _by_type(rope_object(keys).raw)
    if family.sliding_theta is not None:
        parameters = keys.object("rope_parameters")
        named = _by_type(parameters)
        full = named.get("full_attention", {}) if named else parameters
        parts = {
            "full_attention": full | keys.object("rope_scaling"),
            "sliding_attention": {"rope_theta": family.sliding_theta}
            | named.get("sliding_attention", {}),
        }
    elif not parts:
        original = "original_max_position_embeddings"  # it wins over the one in the part
        own = {original: keys.raw[original]} if keys.raw.get(original) is not None else {}
        parts = {"": rope_object(keys).raw | own}
    theta = {"rope_theta": keys.raw.get("rope_theta")}
    return {
        name: _rope(Keys(keys.file, theta | _known(part)), context_length, family)
        for name, part in parts.items()
    }


def _by_type(parameters: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: _known(part) for name, part in parameters.items() if isinstance(part, dict)}


def _known(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if value is not None}


def _rope(keys: Keys, context_length: int, family: Family) -> Rope:
    said = keys.raw.get("rope_type", keys.raw.get("type", "default"))
    kind = family.rope_kinds.get(said, said) if isinstance(said, str) else said
    if kind == "ntk_alpha" != said:
        if keys.raw.get("alpha"):
            return Rope(kind, keys.number("rope_theta", family.rope_theta), keys.number("alpha"))
        kind = "dynamic"
    if kind not in ROPE_KINDS:
        known = ", ".join(ROPE_KINDS)
        raise UnknownRopeType(f"{keys.file}: the rope type is {kind!r}, expected one of: {known}")
    rope = Rope(kind, theta=keys.number("rope_theta", family.rope_theta))
    original = keys.integer(
        "original_max_position_embeddings", family.rope_original_context or context_length
    )
    if kind == "default":
        return rope
    if original < 1:
        raise MalformedFile(
            f"{keys.file}: original_max_position_embeddings is {original}, expected at least 1"
        )
    if kind == "longrope":
        rope = replace(
            rope,
            original_context=original,
            factor=keys.number("factor", context_length / original),
            short_factor=keys.numbers("short_factor"),
            long_factor=keys.numbers("long_factor"),
        )
    else:
        factor = context_length / original if kind == "yarn" else None
        rope = replace(rope, factor=keys.number("factor", factor))
    if kind == "dynamic":
        return replace(rope, original_context=context_length)
    if kind == "llama3":
        rope = replace(
            rope,
            low_freq_factor=keys.number("low_freq_factor"),
            high_freq_factor=keys.number("high_freq_factor"),
            original_context=original,
        )
        if not 0 < rope.low_freq_factor < rope.high_freq_factor:
            raise MalformedFile(
                f"{keys.file}: low_freq_factor is {rope.low_freq_factor}, expected more than 0 "
                f"and less than high_freq_factor, {rope.high_freq_factor}"
            )
    if kind == "yarn":
        rope = replace(
            rope,
            original_context=original,
            beta_fast=keys.number("beta_fast", 0.0) or 32.0,
            beta_slow=keys.number("beta_slow", 0.0) or 1.0,
            truncate=keys.flag("truncate", True),
            mscale=_optional(keys, "mscale"),
            mscale_all_dim=_optional(keys, "mscale_all_dim"),
        )
    if kind in ("yarn", "longrope"):
        rope = replace(rope, attention_factor=_optional(keys, "attention_factor"))
    return rope


def _optional(keys: Keys, key: str) -> float | None:
    return None if keys.raw.get(key) is None else keys.number(key)
