"""What a family's tensors are in one GGUF file; biases, ties and flags are told by their names."""

from collections.abc import Container
from dataclasses import replace

from rillm.families.base import GGUF_NAMES, Family, Key

_BIASES = {"output_bias": "output", "mlp_bias": "up", "head_bias": "head"}


def flags_from_names(family: Family, tensors: Container[str]) -> dict[str, bool]:
    """The flags of a config.json upon which tensors depend."""
    flags = {}
    for table, if_there in ((family.names_if, True), (family.names_unless, False)):
        for flag, names in table.items():
            first = GGUF_NAMES[next(iter(names))].format(0)
            flags[flag] = (first in tensors) == if_there
    return flags


def stored_as(arithmetic: Family, family: Family, tensors: Container[str]) -> Family:
    """The arithmetic over the tensors of a GGUF file.

    Norms are stored as they multiply, matrices as [rows, columns], and q, k, v, or gate and up, as
    one matrix or as several: any family may come either way.
    """
    names = GGUF_NAMES | family.gguf_names

    def there(slot: str, part: str = "weight") -> bool:
        return names[slot].format(0).removesuffix("weight") + part in tensors

    slots = {*arithmetic.names, "rope_factors"} - {"q", "k", "v", "qkv", "gate", "gate_up", "up"}
    qkv = ("qkv",) if there("qkv") else ("q", "k", "v")
    gate_up = ("gate", "up") if there("gate") else ("gate_up",)
    slots.update(qkv, gate_up if arithmetic.gated else ("up",))
    changes = {"tied": not there("head")}
    for field, slot in {"attention_bias": qkv[0], **_BIASES}.items():
        if isinstance(getattr(family, field), Key):
            changes[field] = there(slot, "bias")
    return replace(
        arithmetic,
        names={slot: names[slot] for slot in slots},
        rotary_pairs=family.gguf_pairs,
        norm_offset=0.0,
        fused="blocks",
        transposed=False,
        **changes,
    )
