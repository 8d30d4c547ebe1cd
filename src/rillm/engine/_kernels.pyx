# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""One thin function a kernel, for tests and bench: the table of an instruction set, called from Python."""
from libc.stdint cimport int8_t, int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

import numpy as np

from rillm.engine._engine cimport (
    BLOCK_POSITIONS, GROUP, LANES, TILE_ROWS, Activation, FormatId, NoiseKey, kernels_named,
)
from rillm.engine._engine import FORMAT_NAMES, kv_bytes


cdef extern from "kernels/kernels.h" nogil:
    enum: NOISE_BLOCKS
    enum: NOISE_LANES
    struct Noise:
        uint32_t words[4][NOISE_BLOCKS]
        uint32_t least[NOISE_LANES]
    struct Extremes:
        int32_t least, greatest
    ctypedef void matmul_fn(const uint8_t *panels, size_t stride_bytes, int32_t n_panels, int32_t n_columns,
                            const Activation *x, int32_t first_row, int32_t n_rows, float *out,
                            size_t out_stride) noexcept
    ctypedef void activate_fn(const float *x, const float *up, int32_t n, const float *parameters,
                              float *out) noexcept
    ctypedef void store_kv_fn(const float *key, const float *value, int32_t dim, int32_t position,
                              void *block) noexcept
    ctypedef void attend_block_fn(const float *queries, int32_t n_heads, int32_t dim, const void *block,
                                  const void *next, int32_t first, int32_t last, float scale, float softcap,
                                  float *partials) noexcept
    ctypedef struct Table "struct Kernels":
        void (*quantize)(const float *x, int32_t n_columns, int8_t *q, float *scales, int32_t *minus_sums) noexcept
        void (*norm_rms)(const float *x, const float *weight, const float *bias, int32_t width, int32_t n,
                         float epsilon, float *out) noexcept
        void (*norm_layer)(const float *x, const float *weight, const float *bias, int32_t width, int32_t n,
                           float epsilon, float *out) noexcept
        void (*rope_half)(float *head, const float *cosines, const float *sines, int32_t half) noexcept
        activate_fn *silu
        activate_fn *gelu_tanh
        activate_fn *gelu
        activate_fn *relu2
        activate_fn *xielu
        void (*softcap)(float *x, int32_t n, float cap) noexcept
        float (*read_sum)(const float *x, size_t n) noexcept nogil
        void (*add)(float *x, const float *y, int32_t n) noexcept
        store_kv_fn *store_kv_f32
        store_kv_fn *store_kv_f16
        store_kv_fn *store_kv_q8
        attend_block_fn *attend_block_q8
        attend_block_fn *attend_block_f32
        attend_block_fn *attend_block_f16
        void (*merge_partial)(float *into, const float *partial, int32_t dim) noexcept
        void (*finish_partial)(const float *partial, int32_t dim, float *out) noexcept
        Extremes (*extremes)(const float *x, int32_t n) noexcept
        void (*noise)(const NoiseKey *key, uint32_t first_block, Noise *noise) noexcept
    matmul_fn *kernels_matmul(const Table *kernels, FormatId format) noexcept


cdef const Table *table(str isa) except NULL:
    return <const Table *>kernels_named(isa)


def _padded(array, multiple):
    """float32 rows with their columns padded by zeros."""
    array = np.atleast_2d(np.asarray(array, np.float32))
    columns = -(-array.shape[1] // multiple) * multiple
    out = np.zeros((array.shape[0], columns), np.float32)
    out[:, :array.shape[1]] = array
    return out


def aligned(n_bytes):
    """Zeroed uint8 [n_bytes] on a 64-byte line, as kernels expect panels and blocks."""
    memory = np.zeros(n_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start:start + n_bytes]


def quantize(isa, x):
    """float32 [n] to (int8 q [n padded to 32], float32 scales [groups], int32 minus_sums [groups])."""
    cdef float[:, ::1] values = _padded(x, GROUP)
    cdef Py_ssize_t n = values.shape[1]
    q, scales, sums = np.empty(n, np.int8), np.empty(n // GROUP, np.float32), np.empty(n // GROUP, np.int32)
    cdef int8_t[::1] c_q = q
    cdef float[::1] c_scales = scales
    cdef int32_t[::1] c_sums = sums
    table(isa).quantize(&values[0, 0], <int32_t>n, &c_q[0], &c_scales[0], &c_sums[0])
    return q, scales, sums


def matmul(isa, format, const uint8_t[::1] panels, size_t stride, int32_t n_panels, int32_t n_columns, q, scales,
           minus_sums, values, int repeats=1):
    """Panels (at `stride` bytes) times rows: float32 [n_rows, n_panels · 16].

    values : float32 [n_rows, columns]; q, scales, minus_sums : the same rows as int8 groups, for integer formats.
    repeats : calls, for timing; each writes the same output.
    """
    cdef matmul_fn *multiply = kernels_matmul(table(isa), <FormatId><int>FORMAT_NAMES.index(format))
    cdef float[:, ::1] c_values = _padded(values, 64)
    cdef Activation x
    cdef int32_t n_rows = <int32_t>c_values.shape[0], _i
    cdef Py_ssize_t columns = c_values.shape[1]
    if not 1 <= n_rows <= TILE_ROWS:
        raise ValueError(f"a tile has 1 to {TILE_ROWS} rows, got {n_rows}")
    c_q_array = np.zeros((n_rows, columns), np.int8)
    c_scale_array = np.zeros((n_rows, columns // GROUP), np.float32)
    c_sum_array = np.zeros((n_rows, columns // GROUP), np.int32)
    if q is not None:
        c_q_array[:, :np.shape(q)[1]] = q
        c_scale_array[:, :np.shape(scales)[1]] = scales
        c_sum_array[:, :np.shape(minus_sums)[1]] = minus_sums
    cdef int8_t[:, ::1] c_q = c_q_array
    cdef float[:, ::1] c_scales = c_scale_array
    cdef int32_t[:, ::1] c_sums = c_sum_array
    x.values, x.q, x.scales, x.minus_sums = &c_values[0, 0], &c_q[0, 0], &c_scales[0, 0], &c_sums[0, 0]
    x.stride = <int32_t>columns
    out = np.zeros((n_rows, n_panels * LANES), np.float32)
    cdef float[:, ::1] c_out = out
    with nogil:
        for _i in range(repeats):
            multiply(&panels[0], stride, n_panels, n_columns, &x, 0, n_rows, &c_out[0, 0],
                     <size_t>(n_panels * LANES))
    return out


def norm(isa, kind, x, weight, bias, float epsilon):
    """kind "rms" or "layer"; float32 [n] → float32 [n]; bias may be None."""
    cdef float[:, ::1] c_x = _padded(x, LANES), c_weight = _padded(weight, LANES), out = _padded(x, LANES)
    cdef float[:, ::1] c_bias = _padded(weight if bias is None else bias, LANES)
    cdef const Table *kernels = table(isa)
    cdef const float *bias_or_null = NULL if bias is None else &c_bias[0, 0]
    cdef int32_t width = <int32_t>c_x.shape[1], n = <int32_t>len(x)
    if kind == "rms":
        kernels.norm_rms(&c_x[0, 0], &c_weight[0, 0], bias_or_null, width, n, epsilon, &out[0, 0])
    else:
        kernels.norm_layer(&c_x[0, 0], &c_weight[0, 0], bias_or_null, width, n, epsilon, &out[0, 0])
    return np.asarray(out)[0, :len(x)]


def rope_half(isa, head, cosines, sines):
    """float32 [2 · half] turned by [half] angles."""
    out = np.array(head, np.float32)
    cdef float[::1] c_head = out
    cdef const float[::1] c = np.asarray(cosines, np.float32), s = np.asarray(sines, np.float32)
    table(isa).rope_half(&c_head[0], &c[0], &s[0], <int32_t>c.shape[0])
    return out


def activate(isa, str function, x, up=None, parameters=()):
    """activation(x), times up where given: float32 [n]."""
    cdef const Table *kernels = table(isa)
    cdef activate_fn *apply
    if function == "silu":
        apply = kernels.silu
    elif function == "gelu_tanh":
        apply = kernels.gelu_tanh
    elif function == "gelu":
        apply = kernels.gelu
    elif function == "relu2":
        apply = kernels.relu2
    elif function == "xielu":
        apply = kernels.xielu
    else:
        raise ValueError(f"unknown activation {function!r}")
    cdef float[:, ::1] c_x = _padded(x, LANES), c_up = _padded(x if up is None else up, LANES), out = _padded(x, LANES)
    cdef float[:, ::1] c_parameters = _padded([*parameters, 0.0], LANES)
    apply(&c_x[0, 0], NULL if up is None else &c_up[0, 0], <int32_t>c_x.shape[1],
          &c_parameters[0, 0], &out[0, 0])
    return np.asarray(out)[0, :len(x)]


def softcap(isa, x, float cap):
    """cap · tanh(x / cap), float32 [n]."""
    cdef float[:, ::1] out = _padded(x, LANES)
    table(isa).softcap(&out[0, 0], <int32_t>out.shape[1], cap)
    return np.asarray(out)[0, :len(x)]


def read_sum(isa, const float[::1] x):
    """Reads x once, as fast as memory allows; the length is a multiple of 64. Releases the GIL."""
    cdef const Table *kernels = table(isa)
    cdef float total
    if x.shape[0] == 0 or x.shape[0] % 64:
        raise ValueError(f"{x.shape[0]} floats are not a multiple of 64")
    with nogil:
        total = kernels.read_sum(&x[0], <size_t>x.shape[0])
    return total


def add(isa, x, y):
    """x + y, float32 [n]."""
    cdef float[:, ::1] c_x = _padded(x, LANES), c_y = _padded(y, LANES)
    table(isa).add(&c_x[0, 0], &c_y[0, 0], <int32_t>c_x.shape[1])
    return np.asarray(c_x)[0, :len(x)]


def attend(isa, kv, queries, keys, values, int32_t first, int32_t last, float scale, float softcap=0.0,
           int unseen_byte=0xff):
    """Attention of heads over positions first ≤ p < last of consecutive blocks, merged in order.

    queries : float32 [n_heads, dim], dim a multiple of 16; keys, values : float32 [n_positions, dim].
    Slots outside first..last hold unseen_byte. Returns float32 [n_heads, dim].
    """
    cdef float[:, ::1] q = np.ascontiguousarray(queries, np.float32)
    cdef float[:, ::1] k = np.ascontiguousarray(keys, np.float32), v = np.ascontiguousarray(values, np.float32)
    cdef const Table *kernels = table(isa)
    cdef store_kv_fn *store = kernels.store_kv_f32
    cdef attend_block_fn *attend_block = kernels.attend_block_f32
    if kv == "f16":
        store, attend_block = kernels.store_kv_f16, kernels.attend_block_f16
    elif kv == "q8":
        store, attend_block = kernels.store_kv_q8, kernels.attend_block_q8
    cdef int32_t dim = <int32_t>q.shape[1], n_heads = <int32_t>q.shape[0], b, p, h, size = LANES + dim
    cdef int32_t first_block = first // BLOCK_POSITIONS, n_blocks = (last - 1) // BLOCK_POSITIONS + 1
    cdef uint8_t[::1] block = aligned(kv_bytes(kv, dim) * BLOCK_POSITIONS)
    cdef float[:, ::1] sums = np.zeros((n_heads, size), np.float32), partials = np.zeros((n_heads, size), np.float32)
    for b in range(first_block, n_blocks):
        memset(&block[0], unseen_byte, <size_t>block.shape[0])
        for p in range(max(first, b * BLOCK_POSITIONS), min(last, (b + 1) * BLOCK_POSITIONS)):
            store(&k[p, 0], &v[p, 0], dim, p % BLOCK_POSITIONS, &block[0])
        into = sums if b == first_block else partials
        attend_block(&q[0, 0], n_heads, dim, &block[0], NULL, max(first - b * BLOCK_POSITIONS, 0),
                     min(last - b * BLOCK_POSITIONS, BLOCK_POSITIONS), scale, softcap, &into[0, 0])
        if b > first_block:
            for h in range(n_heads):
                kernels.merge_partial(&sums[h, 0], &partials[h, 0], dim)
    out = np.empty((n_heads, dim), np.float32)
    cdef float[:, ::1] c_out = out
    for h in range(n_heads):
        kernels.finish_partial(&sums[h, 0], dim, &c_out[h, 0])
    return out


def extremes(isa, const float[::1] x):
    """(least, greatest) of float32 [n], as the integers that order floats."""
    cdef Extremes found = table(isa).extremes(&x[0], <int32_t>x.shape[0])
    return found.least, found.greatest


def noise(isa, uint64_t seed, uint32_t index, uint32_t completion, uint32_t first_block):
    """Random words, uint32 [4 · NOISE_BLOCKS], of the tokens from 4 · first_block, and the least of each lane, [8]."""
    cdef NoiseKey key
    cdef Noise noise
    key.seed, key.index, key.completion, key.purpose = seed, index, completion, 0
    table(isa).noise(&key, first_block, &noise)
    return np.array(noise.words, np.uint32).T.ravel(), np.array(noise.least, np.uint32)
