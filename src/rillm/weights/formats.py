"""Which format each matrix is packed in: the file's own, or the one asked for."""

from rillm.checkpoint import Tensor

# the format that holds a kind's values exactly; in as many bits, but the last five in more
NATIVE = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "Q8_0": "q8",
    "Q4_0": "q4",
    "Q4_1": "q4m",
    "Q5_0": "q5",
    "Q5_1": "q5m",
    "Q4_K": "q4k",
    "Q5_K": "q5k",
    "Q6_K": "q6k",
    "Q2_K": "q4k16",
    "Q3_K": "q6k",
    "IQ4_NL": "q8",
    "IQ4_XS": "q8k",
    "MXFP4": "q5b",
}
FLOATS = ("f32", "bf16", "f16")
ALIASES = {"int8": "q8", "int4": "q4"}
CHOICES = ("auto", *FLOATS, "q8", "q4", "q4_64")


def canonical(weights: str) -> str:
    """The name of a `weights=` choice; ValueError for an unknown one."""
    weights = ALIASES.get(str(weights), weights)
    if weights not in CHOICES:
        known = ", ".join((*CHOICES, *ALIASES))
        raise ValueError(f"weights is {weights!r}, expected one of {known}")
    return weights


def is_quantized(tensor: Tensor) -> bool:
    return tensor.kind not in ("F32", "F16", "BF16")


def choose(weights: str, tensor: Tensor, slot: str, quantized_file: bool) -> str:
    """The format of one matrix.

    auto keeps what a quantized file holds and makes int8 of a float one. "q4" is four bits with
    scale and minimum for the body; embedding and head, where a bit costs most, stay at eight.
    "q4_64" is that with groups of 64 columns in the body instead of 32.
    """
    if weights == "auto":
        return NATIVE[tensor.kind] if quantized_file else "q8"
    if weights in ("q4", "q4_64"):
        return "q8" if slot in ("embedding", "head") else "q4m" if weights == "q4" else "q4_64"
    return weights
