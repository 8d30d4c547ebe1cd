# The C API as Cython sees it: the only extern block of the house.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "rillm.h" nogil:
    enum: LANES, GROUP, TILE_ROWS, BLOCK_POSITIONS, PAGE_POSITIONS, MAX_THREADS, MAX_ROWS, MAX_HEAD_DIM
    enum: POSITIONS_AT_MOST, LINE_BYTES
    enum: N_FORMATS, N_ISAS, KV_F32, KV_F16, KV_Q8, WANTS_LOGITS, DRAFT, NOISE_GUMBEL, FORMAT_F32

    enum Status:
        STATUS_OK, STATUS_NO_MEMORY, STATUS_UNSUPPORTED, STATUS_BAD_TOKEN, STATUS_BAD_POSITION
        STATUS_CONTEXT_FULL, STATUS_NOT_HELD, STATUS_BAD_ARGUMENT, STATUS_NO_THREAD, STATUS_BAD_LOGITS
    enum FormatId:
        pass
    enum SourceKind:
        pass
    enum KvFormat:
        pass
    enum Isa:
        ISA_PORTABLE

    struct Format:
        const char *name
        FormatId id
        uint8_t bits, group, scale, minimum
        int8_t zero
    const Format formats[]
    size_t format_panel_bytes(const Format *format, int32_t n_columns) noexcept
    size_t source_row_bytes(SourceKind kind, int32_t n_columns) noexcept

    struct PackJob:
        const Format *format
        SourceKind kind
        const uint8_t *source
        const int32_t *rows
        int32_t n_columns, n_panels
        uint8_t *panels
        size_t stride_bytes
    bint pack_panels(const PackJob *job) noexcept
    void unpack_row(const Format *format, const uint8_t *panel, int32_t row, int32_t n_columns,
                    float *out) noexcept
    void source_to_f32(SourceKind kind, const uint8_t *source, int32_t n_columns, float *out) noexcept

    struct Activation:
        float *values
        int8_t *q
        float *scales
        int32_t *minus_sums
        int32_t stride
    struct Segment:
        const Format *format
        const uint8_t *panels
        size_t stride_bytes, panel_bytes
        int32_t n_panels
    struct Matrix:
        Segment *segments
        const float *bias
        int32_t n_segments, n_panels, n_columns
    enum NormKind:
        NORM_NONE, NORM_RMS, NORM_LAYER
    struct Norm:
        NormKind kind
        float epsilon
        const float *weight
        const float *bias
    struct Rope:
        const float *inverse_frequencies
        int32_t n_pairs
        float amplitude
    enum ActivationFunction:
        pass
    struct Layer:
        Norm attention_norm, attention_post_norm, mlp_norm, mlp_post_norm, q_norm, k_norm
        Matrix qkv, output, gate, up, down
        const float *activation_parameters
        float attention_scale
        int32_t rope, window
        bint is_parallel, norms_whole_qk, norms_after_rope
    struct Plan:
        int32_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size, n_ropes
        ActivationFunction activation
        float attention_softcap, position_scale
        int32_t position_scale_context, activation_planes
        float embedding_scale, residual_scale, logit_scale, logit_softcap, qkv_clip
        const Rope *ropes
        Norm final_norm
        Matrix embedding, head, positions
        Layer *layers

    struct Arena:
        uint8_t *base
        size_t n_bytes
        bint huge_pages
    Status arena_map(Arena *arena, size_t n_bytes) noexcept
    void arena_unmap(Arena *arena) noexcept
    uint64_t lines_checksum(const uint8_t *lines, size_t n_lines) noexcept nogil

    enum ContextPolicy:
        pass
    struct CContext "Context":
        int32_t length
        ContextPolicy policy
        int32_t n_keep, limit
    struct CCache "Cache":
        pass
    Status cache_create(CCache **cache, const Plan *plan, KvFormat format, const CContext *context) noexcept
    void cache_destroy(CCache *cache) noexcept
    int32_t cache_length(const CCache *cache) noexcept
    Status cache_rewind(CCache *cache, int32_t length) noexcept
    int32_t cache_earliest(const CCache *cache) noexcept
    Status cache_commit(CCache *cache, const int32_t *path, int32_t n) noexcept
    void cache_set_ropes(CCache *cache, const Rope *ropes) noexcept
    size_t kv_block_bytes(KvFormat format, int32_t head_width) noexcept
    size_t cache_bytes(const CCache *cache, bint shared_only) noexcept
    void cache_fill_unseen(CCache *cache, uint8_t byte) noexcept

    struct CPage "Page":
        pass
    Status page_create(CPage **page, size_t n_bytes) noexcept
    CPage *page_retain(CPage *page) noexcept
    void page_release(CPage *page) noexcept
    uint8_t *page_data(CPage *page) noexcept
    int32_t cache_rings(const CCache *cache) noexcept
    size_t cache_page_bytes(const CCache *cache, int32_t ring) noexcept
    CPage *cache_page(const CCache *cache, int32_t ring, int32_t page) noexcept
    bint cache_copy_page(const CCache *cache, int32_t ring, int32_t page, uint8_t *out) noexcept
    bint cache_needs(const CCache *cache, int32_t ring, int32_t length, int32_t page) noexcept
    void cache_adopt(CCache *cache, int32_t ring, int32_t number, CPage *page) noexcept
    Status cache_resume(CCache *cache, int32_t length) noexcept

    struct Row:
        CCache *cache
        int32_t position, token, parent
        const float *input
        uint16_t adapter, flags
    struct CEngine "Engine":
        pass
    struct Kernels:
        const char *isa
    Status engine_create(CEngine **engine, Plan *plan, const Kernels *kernels, int32_t n_threads) noexcept
    void engine_destroy(CEngine *engine) noexcept
    enum: N_STAGES
    void engine_clock(CEngine *engine, int64_t *nanoseconds) noexcept
    Status engine_forward(CEngine *engine, const Row *rows, int32_t n_rows, float *logits) noexcept

    const char *const isa_names[]
    bint isa_available(Isa isa) noexcept
    const Kernels *kernels_for(Isa isa) noexcept

    struct NoiseKey:
        uint64_t seed
        uint32_t index, completion, purpose
    void philox4x32_10(const uint32_t *counter, const uint32_t *key, uint32_t *out) noexcept
    float noise_gumbel(const NoiseKey *key, uint32_t token) noexcept
    float noise_of_word(uint32_t word) noexcept
    enum: SAMPLER_MIROSTAT
    enum SamplerKind:
        pass
    struct SamplerStep:
        SamplerKind kind
        double[3] parameters
    struct Sampler:
        const SamplerStep *steps
        const Kernels *kernels
        int32_t n_steps, min_keep
        bint wants_surprise
    struct Choice:
        int32_t token
        float score
        double surprise
    Status sample_token(const float *logits, int32_t n, const Sampler *sampler, const NoiseKey *key,
                        Choice *choice) noexcept
    Status sample_many(const float *logits, int32_t n, const Sampler *sampler, const NoiseKey *key, int32_t *tokens,
                       int32_t count) noexcept
    Status sample_kept(const float *logits, int32_t n, const Sampler *sampler, const NoiseKey *key, int32_t *tokens,
                       float *probabilities, int32_t *n_kept) noexcept
    Status rank_tokens(const Kernels *kernels, const float *logits, int32_t n, int32_t *n_best, int32_t *tokens,
                       double *log_total) noexcept
    void suffix_matches(const int32_t *ids, int32_t n, int32_t *lengths) noexcept

    double exact_sin(double radians) noexcept
    double exact_cos(double radians) noexcept


cdef int check(Status status) except -1
cdef const Kernels *kernels_named(str isa) except NULL
