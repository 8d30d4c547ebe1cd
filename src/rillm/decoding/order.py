"""In which order the filters narrow the choice: as transformers, llama.cpp or mlx-lm, or as asked.

What one of them lacks has its place here: top_n_sigma reads the logits before anything is cut;
epsilon_cutoff and eta_cutoff follow typical_p, as in transformers; xtc is the last to cut, as in
llama.cpp; mirostat, where it is on, follows everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rillm.decoding.options import Sampling

PRESETS = {
    "hf": (
        "temperature",
        "top_n_sigma",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "xtc",
        "mirostat",
    ),
    "llama.cpp": (
        "top_n_sigma",
        "top_k",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
        "mirostat",
    ),
    "mlx": (
        "top_n_sigma",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "xtc",
        "top_k",
        "temperature",
        "mirostat",
    ),
}


def sampler_order(name: str, value: Any) -> str | tuple[str, ...]:
    """A preset's name, or filters by name, each once."""
    known = PRESETS["hf"]
    if isinstance(value, str):
        if value not in PRESETS:
            names = f"{', '.join(PRESETS)} or a tuple of {', '.join(known)}"
            raise ValueError(f"{name} is {value!r}: expected {names}")
        return value
    try:
        order = tuple(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: expected a name or a tuple of names") from None
    for each in order:
        if each not in known or order.count(each) > 1:
            raise ValueError(
                f"{name} holds {each!r}: expected each of {', '.join(known)} at most once"
            )
    return order


def steps(options: Sampling) -> list[tuple[Any, ...]]:
    """The filters that are on, in order, with their parameters, as the engine takes them.

    Raises
    ------
    ValueError
        A filter is on that the order leaves out.
    """
    if options.temperature == 0.0:
        return [("temperature", 0.0)]
    heat = (options.temperature, options.dynatemp_range, options.dynatemp_exponent)
    on: dict[str, tuple[float, ...]] = {}
    if options.temperature != 1.0 or options.dynatemp_range > 0.0:
        on["temperature"] = heat
    for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0), ("typical_p", 1.0)):
        if getattr(options, name) != off:
            on[name] = (getattr(options, name),)
    for name in ("epsilon_cutoff", "eta_cutoff", "top_n_sigma"):
        if getattr(options, name) > 0.0:
            on[name] = (getattr(options, name),)
    if options.xtc_probability > 0.0:
        on["xtc"] = (options.xtc_probability, options.xtc_threshold)
    if options.mirostat_mode:
        on["mirostat"] = ()
    order = PRESETS.get(options.sampler_order, options.sampler_order)
    if left_out := [name for name in on if name not in order]:
        raise ValueError(
            f"sampler_order leaves out {', '.join(left_out)}, which is on: name it too"
        )
    return [(name, *on[name]) for name in order if name in on]
