"""What differs by layer: which of them slide, and by which rope each turns."""

from rillm.checkpoint.keys import Keys
from rillm.checkpoint.rope_config import Rope, ropes_from_json
from rillm.errors import MalformedFile, UnsupportedConfig
from rillm.families.base import Family

_LAYER_TYPES = ("full_attention", "sliding_attention")


def windows(keys: Keys, family: Family, n_layers: int) -> tuple[int, list[bool]]:
    """The window, 0 if there is none, and which layers have it."""
    types = keys.raw.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != n_layers:
            raise MalformedFile(
                f"{keys.file}: layer_types is {types!r}, expected the types of {n_layers} layers"
            )
        known = _LAYER_TYPES[: 1 if family.window is None else 2]
        if unknown := [kind for kind in types if kind not in known]:
            raise UnsupportedConfig(
                f"{keys.file}: layer_types has {unknown[0]!r}, expected {' or '.join(known)} in a "
                f"{family.model_type} model"
            )
    window = keys.integer(family.window.name, 0) if family.window else 0
    if family.window_if and not keys.flag(family.window_if, False):
        window = 0
    if types is not None and family.reads_layer_types:
        sliding = [kind == "sliding_attention" for kind in types]
        if any(sliding) and not window:
            raise MalformedFile(
                f"{keys.file}: layer_types has layers that slide, but {family.window.name} is "
                f"{keys.raw.get(family.window.name)!r}"
                + (f" and {family.window_if} is not true" if family.window_if else "")
            )
    elif not window:
        return 0, [False] * n_layers
    else:
        of_type = family.sliding_layers
        sliding = list(of_type(keys, n_layers)) if of_type else [True] * n_layers
    return window if any(sliding) else 0, sliding


def turns(
    keys: Keys, family: Family, context_length: int, sliding: list[bool]
) -> tuple[tuple[Rope, ...], tuple[int, ...]]:
    """The kinds of turn, and which of them each layer takes."""
    if family.rotary_share == 0:
        return (), (-1,) * len(sliding)
    by_type = ropes_from_json(keys, context_length, family)
    names = list(by_type)
    turning = family.rope_layers(keys, sliding) if family.rope_layers else [True] * len(sliding)
    wanted = [_LAYER_TYPES[slides] for slides in sliding]
    if len(names) > 1 and not set(wanted) <= set(names):
        raise UnsupportedConfig(
            f"{keys.file}: the rope differs by layer type ({', '.join(names)}), "
            f"expected {' and '.join(sorted(set(wanted)))}"
        )
    indices = [names.index(name) if name in names else 0 for name in wanted]
    layers = tuple(i if turn else -1 for i, turn in zip(indices, turning, strict=True))
    return tuple(by_type.values()), layers
