"""Random blocks of every kind of GGUF file, and what they hold.

All knowledge is the gguf package's: its dequantize of blocks whose codes are set to one gives the
scales, of blocks whose scale is set to one the codes. Here is only where in a block they lie.
"""

from dataclasses import dataclass

import gguf
import numpy as np

from weights import random_integers, random_tensor


@dataclass(frozen=True)
class Kind:
    """What a test needs to know of a kind of block; the gguf package knows the rest."""

    n_columns: int  # of a block, as are bytes
    n_bytes: int
    group: int  # columns that share scale and minimum
    scale: int | None  # where the float16 lies; None: a byte, the exponent, comes first
    minimum: int | None
    ones: dict[tuple[int, int], int]  # bytes from .. to that make every code one


KINDS = {
    "Q8_0": Kind(32, 34, 32, 0, None, {(2, 34): 1}),
    "Q4_0": Kind(32, 18, 32, 0, None, {(2, 18): 0x99}),
    "Q4_1": Kind(32, 20, 32, 0, 2, {(4, 20): 0x11}),
    "Q5_0": Kind(32, 22, 32, 0, None, {(2, 6): 0xFF, (6, 22): 0x11}),
    "Q5_1": Kind(32, 24, 32, 0, 2, {(4, 8): 0, (8, 24): 0x11}),
    "Q2_K": Kind(256, 84, 16, 80, 82, {(16, 80): 0x55}),
    "Q3_K": Kind(256, 110, 16, 108, None, {(0, 32): 0xFF, (32, 96): 0x55}),
    "Q4_K": Kind(256, 144, 32, 0, 2, {(16, 144): 0x11}),
    "Q5_K": Kind(256, 176, 32, 0, 2, {(16, 48): 0, (48, 176): 0x11}),
    "Q6_K": Kind(256, 210, 16, 208, None, {(0, 128): 0x11, (128, 192): 0xAA}),
    "IQ4_NL": Kind(32, 18, 32, 0, None, {(2, 18): 0x88}),
    "IQ4_XS": Kind(256, 136, 32, 0, None, {(8, 136): 0x88}),
    "MXFP4": Kind(32, 17, 32, None, None, {(1, 17): 0x11}),
}


def with_float(blocks, at, values):
    """Blocks with other numbers at an offset, as float16."""
    changed = blocks.copy()
    halves = np.full(len(blocks), values, np.float16)
    changed[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return changed


def with_scale(kind, blocks, values):
    if KINDS[kind].scale is not None:
        return with_float(blocks, KINDS[kind].scale, values)
    changed = blocks.copy()
    changed[:, 0] = 128 + np.log2(values)  # MXFP4: scales are powers of two, codes twice the values
    return changed


def with_minimum(kind, blocks, values):
    at = KINDS[kind].minimum
    return blocks if at is None else with_float(blocks, at, values)


def dequantize(kind, blocks):
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])


def random_blocks(kind, name, n_rows, n_columns):
    """Any bytes, scales any finite float16: uint8 [n_rows · blocks, bytes]."""
    n_blocks, n_bytes = n_rows * n_columns // KINDS[kind].n_columns, KINDS[kind].n_bytes
    raw = random_integers(f"{kind} {name}", n_blocks * n_bytes)
    blocks = (raw >> np.uint64(56)).astype(np.uint8).reshape(n_blocks, n_bytes)
    for at in (KINDS[kind].scale, KINDS[kind].minimum):
        if at is not None:
            blocks[:, at + 1] &= 0xFB  # never all ones in the exponent
    if kind == "MXFP4":
        blocks[:, 0] %= 253
    return blocks


def parts(kind, blocks, n_rows):
    """Codes [n_rows, columns], scales and minima [n_rows, groups]: whole numbers and float32."""

    def groups(values):
        return values.reshape(n_rows, -1, KINDS[kind].group)

    ones = blocks.copy()
    for (start, end), byte in KINDS[kind].ones.items():
        ones[:, start:end] = byte
    plain = with_minimum(kind, blocks, 0.0)
    scales = groups(dequantize(kind, with_minimum(kind, ones, 0.0)))[:, :, 0]
    units = groups(dequantize(kind, with_scale(kind, with_minimum(kind, ones, 0.0), 1.0)))
    products = groups(dequantize(kind, with_scale(kind, plain, 1.0)))
    codes = np.divide(products, units, out=np.zeros_like(products), where=units != 0)
    assert np.array_equal(codes, np.rint(codes))
    minima = None
    if KINDS[kind].minimum is not None:
        minima = groups(dequantize(kind, with_scale(kind, blocks, 0.0)))[:, :, 0]
    return codes.astype(np.int64).reshape(n_rows, -1), scales, minima


def gentle_blocks(kind, name, n_rows, n_columns):
    """Random blocks; rows 1 to 4 hold zeros, ones and the extremes of codes and scales."""
    blocks = random_blocks(kind, name, n_rows, n_columns)
    by_row = blocks.reshape(n_rows, -1, KINDS[kind].n_bytes)
    by_row[1], by_row[2], by_row[3, :, ::2], by_row[3, :, 1::2] = 0, 0xFF, 0x80, 0x7F
    by_row[4] = random_integers("edges", by_row[4].size).reshape(by_row[4].shape) % 2 * 255
    scales = random_tensor("scale", (len(blocks),), 0.02)
    if kind == "MXFP4":
        blocks[:, 0] = 110 + blocks[:, 0] % 20
        return blocks
    return with_minimum(kind, with_scale(kind, blocks, scales), scales[::-1] * 3)


def centred(kind, blocks, width):
    """Blocks with one scale and one minimum: values about zero, of that deviation within √2."""
    blocks = with_minimum(kind, with_scale(kind, blocks, 1.0), 0.0)
    values, minimum = dequantize(kind, blocks), 0.0
    if KINDS[kind].minimum is not None:
        unit = dequantize(kind, with_minimum(kind, with_scale(kind, blocks, 0.0), 1.0))
        minimum = -values.mean() / unit.mean()
        values = values + minimum * unit
    scale = 2.0 ** np.rint(np.log2(width / values.std()))
    return with_minimum(kind, with_scale(kind, blocks, scale), minimum * scale)
