# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The only owner of C objects: weights in an arena, caches, and the engine that steps over them."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import numpy as np

from rillm import errors

LANES_PER_PANEL = LANES
ROWS_PER_STEP = MAX_ROWS
THREADS_AT_MOST = MAX_THREADS
HEAD_DIM_AT_MOST = MAX_HEAD_DIM
POSITIONS_PER_PAGE = PAGE_POSITIONS
MOST_POSITIONS = POSITIONS_AT_MOST
ISA_NAMES = tuple(isa_names[i].decode() for i in range(N_ISAS))
FORMAT_NAMES = tuple(formats[i].name.decode() for i in range(N_FORMATS))
SOURCE_KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
                "IQ4_NL", "IQ4_XS", "MXFP4")
KV_FORMATS = {"f32": KV_F32, "f16": KV_F16, "q8": KV_Q8}
ACTIVATION_FORMATS = {"int8": 1, "int16": 2}  # planes of int8
CONTEXT_POLICIES = ("stop", "slide", "sink")
NORM_KINDS = ("none", "rms", "layer")
SAMPLERS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "xtc",
            "mirostat")
STAGES = ("embed", "heads", "attend", "output", "gate_up", "down", "logits")
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu2", "xielu")


cdef int check(Status status) except -1:
    """Turns a status of the C side into an exception."""
    if status == STATUS_OK:
        return 0
    if status == STATUS_NO_MEMORY:
        raise MemoryError("the system refused memory for the cache or the buffers of a step")
    if status == STATUS_UNSUPPORTED:
        raise errors.UnsupportedRow("a row asks for what this version does not do: an input vector, an adapter, hidden "
                                    "states, a parent that is not the row before, or to follow a draft as none")
    if status == STATUS_BAD_TOKEN:
        raise ValueError("a token id lies outside the vocabulary")
    if status == STATUS_BAD_POSITION:
        raise ValueError("a position does not continue its cache")
    if status == STATUS_CONTEXT_FULL:
        raise errors.ContextFull("the context of this session is full")
    if status == STATUS_NOT_HELD:
        raise errors.NotHeld("what a row at that position would see is not held")
    if status == STATUS_NO_THREAD:
        raise RuntimeError("the system refused to start a worker thread; ask for fewer with threads=")
    if status == STATUS_BAD_LOGITS:
        raise errors.BadLogits("the logits hold NaN or +inf, or nothing finite: no token can be chosen")
    raise ValueError(f"bad argument (status {<int>status})")


cdef const Kernels *kernels_named(str isa) except NULL:
    if isa not in ISA_NAMES:
        raise errors.UnsupportedISA(f"got ISA {isa!r}, expected one of {', '.join(ISA_NAMES)}")
    if isa not in available_isas():
        raise errors.UnsupportedISA(f"ISA {isa!r} cannot run here: available are {', '.join(available_isas())}")
    return kernels_for(<Isa><int>ISA_NAMES.index(isa))


def available_isas():
    """The instruction sets that were compiled in and that CPU and system carry, portable first."""
    return [ISA_NAMES[i] for i in range(N_ISAS) if isa_available(<Isa>i)]


def panel_bytes(format, int32_t n_columns):
    """Bytes of one panel (16 rows) of a matrix with `n_columns` columns."""
    return format_panel_bytes(&formats[<int>FORMAT_NAMES.index(format)], n_columns)


def kv_bytes(str format, int32_t head_dim):
    """Bytes of K and V of one head and position."""
    return kv_block_bytes(<KvFormat><int>KV_FORMATS[format], (head_dim + 15) // 16 * 16) // BLOCK_POSITIONS


def row_bytes(kind, int32_t n_columns):
    """Bytes of one row of a tensor of a file; 0 when the columns are not whole blocks."""
    return source_row_bytes(<SourceKind><int>SOURCE_KINDS.index(kind), n_columns)


def widen(kind, const uint8_t[::1] source, int32_t n_columns):
    """The values of consecutive rows of a tensor of a file: float32 [n_rows, n_columns]."""
    cdef SourceKind c_kind = <SourceKind><int>SOURCE_KINDS.index(kind)
    cdef size_t stride = source_row_bytes(c_kind, n_columns)
    if stride == 0 or source.shape[0] % stride:
        raise ValueError(f"{source.shape[0]} bytes of {kind} are not whole rows of {n_columns} columns")
    cdef Py_ssize_t n_rows = source.shape[0] // <Py_ssize_t>stride, r
    out = np.empty((n_rows, n_columns), np.float32)
    cdef float[:, ::1] view = out
    for r in range(n_rows):
        source_to_f32(c_kind, &source[r * <Py_ssize_t>stride], n_columns, &view[r, 0])
    return out


cdef class Weights:
    """Packed matrices and vectors of a model in one zeroed arena of n_bytes; offsets are multiples of 64."""
    cdef Arena arena
    cdef readonly size_t n_bytes

    def __cinit__(self, size_t n_bytes):
        check(arena_map(&self.arena, n_bytes))
        self.n_bytes = n_bytes

    def __dealloc__(self):
        arena_unmap(&self.arena)

    @property
    def huge_pages(self):
        return self.arena.huge_pages

    cdef uint8_t *place(self, size_t offset, size_t n_bytes) except NULL:
        if offset % 64 or offset > self.n_bytes or n_bytes > self.n_bytes - offset:
            raise ValueError(f"{n_bytes} bytes at {offset} lie outside an arena of {self.n_bytes}")
        return self.arena.base + offset

    def vector(self, size_t offset, const float[::1] values):
        """Places float32 values."""
        memcpy(self.place(offset, values.nbytes), &values[0], values.nbytes)

    def pack(self, format, kind, const uint8_t[::1] source, const int32_t[::1] rows, int32_t n_columns,
             size_t offset, size_t stride):
        """Packs source rows (rows: [n_panels · 16], −1 for zeros) into panels; False if a value does not fit.

        Releases the GIL: several threads may pack into one arena.
        """
        cdef PackJob job
        job.format = &formats[<int>FORMAT_NAMES.index(format)]
        job.kind = <SourceKind><int>SOURCE_KINDS.index(kind)
        job.source = &source[0]
        job.rows = &rows[0]
        job.n_columns = n_columns
        job.n_panels = <int32_t>(rows.shape[0] // LANES)
        job.stride_bytes = stride
        if rows.shape[0] % LANES or job.n_panels < 1:
            raise ValueError(f"{rows.shape[0]} rows are not whole panels")
        job.panels = self.place(offset, (job.n_panels - 1) * stride + format_panel_bytes(job.format, n_columns))
        cdef size_t row = source_row_bytes(job.kind, n_columns)
        if row == 0 or <size_t>(np.max(rows) + 1) * row > source.nbytes:
            raise ValueError("rows lie outside the source")
        cdef bint fits
        with nogil:
            fits = pack_panels(&job)
        return fits

    def unpack(self, format, size_t offset, size_t stride, int32_t n_panels, int32_t n_columns):
        """The values that panels stand for: float32 [n_panels · 16, n_columns]."""
        cdef const Format *c_format = &formats[<int>FORMAT_NAMES.index(format)]
        out = np.empty((n_panels * LANES, n_columns), np.float32)
        cdef float[:, ::1] view = out
        cdef int32_t i
        self.place(offset, (n_panels - 1) * stride + format_panel_bytes(c_format, n_columns))
        for i in range(n_panels * LANES):
            unpack_row(c_format, self.arena.base + offset + <size_t>(i // LANES) * stride, i % LANES, n_columns,
                       &view[i, 0])
        return out

    def view(self):
        """The arena as float32, for measuring how fast it can be read."""
        return np.asarray(<float[:self.n_bytes // 4]>(<float *>self.arena.base))

    def checksum(self, size_t offset, size_t n_bytes):
        """64 bits that whole lines of the arena almost surely share with no others; releases the GIL."""
        cdef const uint8_t *lines = self.place(offset, n_bytes)
        cdef uint64_t checksum
        with nogil:
            checksum = lines_checksum(lines, n_bytes // LINE_BYTES)
        return checksum

    def bytes(self, size_t offset, size_t n_bytes):
        """A copy of a part of the arena: uint8 [n_bytes]."""
        return np.array(<uint8_t[:n_bytes]>self.place(offset, n_bytes))


cdef class RopeTable:
    """Frequencies of each kind of layer: a sequence of (float32 [n_pairs], amplitude)."""
    cdef Rope *ropes
    cdef list kept

    def __cinit__(self, described):
        cdef const float[::1] frequencies
        self.kept = []
        self.ropes = <Rope *>calloc(<size_t>max(len(described), 1), sizeof(Rope))
        if self.ropes == NULL:
            raise MemoryError
        for i, (values, amplitude) in enumerate(described):
            self.kept.append(np.array(values, np.float32))
            frequencies = self.kept[i]
            self.ropes[i].inverse_frequencies = &frequencies[0]
            self.ropes[i].n_pairs = <int32_t>frequencies.shape[0]
            self.ropes[i].amplitude = amplitude

    def __dealloc__(self):
        free(self.ropes)


cdef class Engine:
    """A plan bound to weights, an instruction set and threads.

    plan : rillm.plan.Plan, whose offsets lie in weights.
    """
    cdef Plan plan
    cdef CEngine *engine
    cdef Segment *segments
    cdef int32_t n_segments
    cdef Weights weights
    cdef RopeTable ropes
    cdef readonly str isa
    cdef readonly int n_threads
    cdef int64_t[N_STAGES] stage_nanoseconds

    def __cinit__(self, plan, Weights weights, str isa, int n_threads):
        cdef const Kernels *kernels = kernels_named(isa)
        cdef int32_t i
        self.weights = weights
        self.isa = isa
        self.n_threads = n_threads
        self.plan.dim = plan.dim
        self.plan.n_layers = len(plan.layers)
        self.plan.n_heads = plan.n_heads
        self.plan.n_kv_heads = plan.n_kv_heads
        self.plan.head_dim = plan.head_dim
        self.plan.ffn_dim = plan.ffn_dim
        self.plan.vocab_size = plan.vocab_size
        self.plan.activation = <ActivationFunction><int>ACTIVATIONS.index(plan.activation)
        self.plan.position_scale = plan.position_scale
        self.plan.position_scale_context = plan.position_scale_context
        self.plan.activation_planes = ACTIVATION_FORMATS[plan.activation_format]
        self.plan.attention_softcap = plan.attention_softcap
        self.plan.embedding_scale = plan.embedding_scale
        self.plan.residual_scale = plan.residual_scale
        self.plan.logit_scale = plan.logit_scale
        self.plan.logit_softcap = plan.logit_softcap
        self.plan.qkv_clip = plan.qkv_clip
        self.plan.n_ropes = len(plan.ropes)
        self.ropes = RopeTable(plan.ropes)
        self.plan.ropes = self.ropes.ropes
        self.plan.final_norm = self.norm(plan.final_norm)
        self.plan.layers = <Layer *>calloc(<size_t>max(len(plan.layers), 1), sizeof(Layer))
        self.segments = <Segment *>calloc(<size_t>plan.n_segments, sizeof(Segment))
        if self.plan.layers == NULL or self.segments == NULL:
            raise MemoryError
        self.set_matrix(&self.plan.embedding, plan.embedding)
        self.set_matrix(&self.plan.positions, plan.positions)
        self.set_matrix(&self.plan.head, plan.head)
        for i in range(self.plan.n_layers):
            self.set_layer(&self.plan.layers[i], plan.layers[i])
        check(engine_create(&self.engine, &self.plan, kernels, n_threads))

    def __dealloc__(self):
        engine_destroy(self.engine)
        free(self.plan.layers)
        free(self.segments)

    cdef const float *vector(self, offset) except? NULL:
        if offset is None:
            return NULL
        return <const float *>(self.weights.arena.base + <size_t>offset)

    cdef Norm norm(self, described):
        cdef Norm norm
        norm.kind, norm.epsilon, norm.weight, norm.bias = NORM_NONE, 0, NULL, NULL
        if described is not None:
            norm.kind = <NormKind><int>NORM_KINDS.index(described.kind)
            norm.epsilon = described.epsilon
            norm.weight = self.vector(described.weight)
            norm.bias = self.vector(described.bias)
        return norm

    cdef int set_layer(self, Layer *layer, described) except -1:
        layer.attention_norm = self.norm(described.attention_norm)
        layer.attention_post_norm = self.norm(described.attention_post_norm)
        layer.mlp_norm = self.norm(described.mlp_norm)
        layer.mlp_post_norm = self.norm(described.mlp_post_norm)
        layer.q_norm = self.norm(described.q_norm)
        layer.k_norm = self.norm(described.k_norm)
        layer.activation_parameters = self.vector(described.activation_parameters)
        layer.attention_scale = described.attention_scale
        layer.rope = described.rope
        layer.window = described.window
        layer.is_parallel = described.is_parallel
        layer.norms_whole_qk = described.norms_whole_qk
        layer.norms_after_rope = described.norms_after_rope
        self.set_matrix(&layer.qkv, described.qkv)
        self.set_matrix(&layer.output, described.output)
        self.set_matrix(&layer.gate, described.gate)
        self.set_matrix(&layer.up, described.up)
        self.set_matrix(&layer.down, described.down)
        return 0

    cdef int set_matrix(self, Matrix *matrix, described) except -1:
        if described is None:
            return 0
        matrix.segments = self.segments + self.n_segments
        matrix.bias = self.vector(described.bias)
        matrix.n_columns = described.n_columns
        for part in described.segments:
            segment = &self.segments[self.n_segments]
            segment.format = &formats[<int>FORMAT_NAMES.index(part.format)]
            segment.panels = self.weights.arena.base + <size_t>part.offset
            segment.stride_bytes = part.stride
            segment.panel_bytes = format_panel_bytes(segment.format, described.n_columns)
            segment.n_panels = part.n_panels
            matrix.n_panels += part.n_panels
            matrix.n_segments += 1
            self.n_segments += 1
        return 0

    def clock(self, bint is_on):
        """Starts to add up what each stage takes, from nothing, or stops."""
        for i in range(N_STAGES):
            self.stage_nanoseconds[i] = 0
        engine_clock(self.engine, self.stage_nanoseconds if is_on else NULL)

    @property
    def stage_seconds(self):
        """Of every step since `clock(True)`, by stage, each with its barrier."""
        return {name: self.stage_nanoseconds[i] * 1e-9 for i, name in enumerate(STAGES)}

    def forward(self, tokens, caches, wants=None, int32_t n_drafts=0):
        """One step of len(tokens) rows; each row continues the cache beside it.

        tokens : sequence of ids; caches : a Cache, or a sequence of them, one a row.
        wants : sequence of bool, the rows whose logits are wanted; by default the last row's.
        n_drafts : how many rows at the end are drafts: no part of their caches before `Cache.commit`.
        Returns float32 [n_wanted, vocab_size], a view of freshly allocated memory.
        """
        cdef const int32_t[::1] ids = np.ascontiguousarray(tokens, np.int32)
        cdef int32_t n = <int32_t>ids.shape[0], r, n_wanted = 0
        if not 1 <= n <= MAX_ROWS:
            raise ValueError(f"a step takes 1 to {MAX_ROWS} rows, got {n}")
        one = isinstance(caches, Cache)
        cdef Row *rows = <Row *>calloc(<size_t>n, sizeof(Row))
        if rows == NULL:
            raise MemoryError
        cdef Cache cache
        cdef float[:, ::1] logits
        cdef float *out = NULL
        cdef Status status
        try:
            last_row, position = {}, {}
            for r in range(n):
                cache = caches if one else caches[r]
                rows[r].cache = cache.open_cache()
                rows[r].token = ids[r]
                rows[r].position = position.get(cache, cache_length(cache.cache))
                rows[r].parent = last_row.get(cache, -1)
                position[cache] = rows[r].position + 1
                last_row[cache] = r
                if (r == n - 1) if wants is None else wants[r]:
                    rows[r].flags = WANTS_LOGITS
                    n_wanted += 1
                if r >= n - n_drafts:
                    rows[r].flags = rows[r].flags | <uint16_t>DRAFT
            array = np.empty((n_wanted, self.plan.head.n_panels * LANES), np.float32)
            logits = array
            if n_wanted:
                out = &logits[0, 0]
            with nogil:
                status = engine_forward(self.engine, rows, n, out)
            check(status)
        finally:
            free(rows)
        return array[:, :self.plan.vocab_size]


include "cache.pxi"
include "sampling.pxi"


def rotation(float angle):
    """(cos, sin) of an angle in radians, as RoPE uses them: the same bits on every machine."""
    return exact_cos(angle), exact_sin(angle)
