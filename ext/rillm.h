/* The whole C API of rillm: what a model is (Plan), what a step is (Row), and the one entry, forward. */
#ifndef RILLM_H
#define RILLM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LANES = 16,           /* rows of a panel, floats of a vector, positions of a K tile */
    GROUP = 32,           /* columns that share an activation scale */
    SUPER = 256,          /* columns that share the f16 of a two-level scale */
    TILE_ROWS = 8,        /* activation rows for which a panel is read once */
    BLOCK_POSITIONS = 128,/* positions that attention reduces on their own before merging */
    PAGE_POSITIONS = 256, /* positions of a cache page */
    PAGE_BLOCKS = PAGE_POSITIONS / BLOCK_POSITIONS,
    POSITIONS_AT_MOST = INT32_MAX - PAGE_POSITIONS,
    LINE_BYTES = 64,
    MAX_THREADS = 256,
    MAX_ROWS = 512,       /* rows of one step */
    MAX_HEAD_DIM = 512,
};

enum Status {
    STATUS_OK,
    STATUS_NO_MEMORY,
    STATUS_UNSUPPORTED,   /* a field of Row that this version does not carry out */
    STATUS_BAD_TOKEN,
    STATUS_BAD_POSITION,  /* rows of a cache must continue it, one position each */
    STATUS_CONTEXT_FULL,
    STATUS_NOT_HELD,      /* what a row at that position would see has left its ring */
    STATUS_BAD_ARGUMENT,
    STATUS_NO_THREAD,     /* the system refused a thread */
    STATUS_BAD_LOGITS,    /* NaN, +inf, or nothing finite */
};

/* ---- formats: how a weight is stored (ext/pack) ------------------------------------------- */

enum FormatId {
    FORMAT_F32,
    FORMAT_F16,
    FORMAT_BF16,
    FORMAT_Q8,
    FORMAT_Q4,
    FORMAT_Q4M,
    FORMAT_Q5,
    FORMAT_Q5M,
    FORMAT_Q5B,
    FORMAT_Q4K,
    FORMAT_Q5K,
    FORMAT_Q6K,
    FORMAT_Q8K,
    FORMAT_Q4K16,
    FORMAT_Q4_64,
    N_FORMATS
};
enum ScaleType {
    SCALE_NONE,
    SCALE_F16,
    SCALE_BF16,
    SCALE_U8_F16,
    SCALE_I8_F16, /* two-level: a group's byte times the f16 of SUPER columns, exact in f32 */
    SCALE_U6_F16, /* the same of six bits, scales and minima */
};

struct Format {
    const char *name;
    enum FormatId id;
    uint8_t bits;         /* of one stored value */
    uint8_t group;        /* columns that share a scale; 0: a float, no scale */
    uint8_t scale;        /* enum ScaleType */
    uint8_t minimum;      /* enum ScaleType: value = scale·q + minimum, two-level: scale·q − minimum */
    int8_t zero;          /* value = scale·(q − zero) */
};
extern const struct Format formats[N_FORMATS];

/* A panel is 16 rows, one stream of memory in lines of 64 bytes. Floats are 1 column a line of f32 or 2 of f16. Codes are
   stretches of two groups, of one where there are minima, of SUPER where scales have two levels: the scales of a stretch,
   padded to a line, then its values in lines of 4 columns of 8 bits or 8 of 4 bits (low nibbles columns 0-3). The last
   stretch has all of its scales, but values only up to the last 32 columns or the last group.
   Scales: f16 [groups of the stretch, 16], minima behind them. Two-level: f16 scales [16] and minima [16], then bytes of
   scales and of minima, [groups of the stretch, 16] each. Of six bits: [8, 16] bytes, the lower four of a scale below
   those of its minimum; then [4, 16], from the lowest the upper two of scale g, minimum g, scale g + 4, minimum g + 4.
   5 or 6 bits: 32 columns are 4 lines of nibbles, then 1 or 2 lines of upper bits, those of columns
   0-3 lowest in a row's four bytes, those of 4-7 next, and so on. */

/* Where the group of a column of codes, not floats, lies, for 16 rows: bytes from the panel's start; subs are those of its
   stretch, lines those of 32 columns. */
struct PanelPlace { size_t scales, minima, subs, lines; };
struct PanelPlace format_place(const struct Format *format, int32_t column);
int32_t format_stretch_columns(const struct Format *format); /* of floats: those of a line */
size_t format_scale_bytes(const struct Format *format);    /* before the values of a stretch */
int32_t format_scale_columns(const struct Format *format); /* that share a 16-bit scale: SUPER or the group */
int32_t format_columns(const struct Format *format, int32_t n_columns); /* padded to whole lines or groups */
bool format_takes_floats(const struct Format *format); /* the others only blocks of a file that they hold exactly */
size_t format_panel_bytes(const struct Format *format, int32_t n_columns);

/* A source is a tensor as a file holds it: row-major, each row whole blocks. */
enum SourceKind {
    SOURCE_F32,
    SOURCE_F16,
    SOURCE_BF16,
    SOURCE_Q8_0,
    SOURCE_Q4_0,
    SOURCE_Q4_1,
    SOURCE_Q5_0,
    SOURCE_Q5_1,
    SOURCE_Q2_K,
    SOURCE_Q3_K,
    SOURCE_Q4_K,
    SOURCE_Q5_K,
    SOURCE_Q6_K,
    SOURCE_IQ4_NL,
    SOURCE_IQ4_XS,
    SOURCE_MXFP4,
    N_SOURCES
};
size_t source_row_bytes(enum SourceKind kind, int32_t n_columns); /* 0: columns are not whole blocks */

struct PackJob {
    const struct Format *format;
    enum SourceKind kind;
    const uint8_t *source;     /* [n_source_rows, source_row_bytes] */
    const int32_t *rows;       /* [n_panels, 16]: source row of each panel row, or -1: zeros */
    int32_t n_columns, n_panels;
    uint8_t *panels;           /* [n_panels] at stride_bytes */
    size_t stride_bytes;
};
/* Fills panels; false when a scale does not fit its stored type, a value is not finite, or the format is one of blocks
   that the source does not hold. */
bool pack_panels(const struct PackJob *job);
void unpack_row(const struct Format *format, const uint8_t *panel, int32_t row, int32_t n_columns,
                float *out /* [n_columns] */);
void source_to_f32(enum SourceKind kind, const uint8_t *source, int32_t n_columns, float *out);

/* ---- matrices and the plan ------------------------------------------------------------------ */

struct Activation {       /* n rows of vectors as a matrix reads them */
    float *values;        /* [n_rows, stride] */
    int8_t *q;            /* [n_rows · n_planes, stride], or unused: in [-127, 127] */
    float *scales;        /* [n_rows · n_planes, stride / GROUP]: values ≈ the sum over planes of scales · q */
    int32_t *minus_sums;  /* [n_rows · n_planes, stride / GROUP]: −Σ q of a group */
    int32_t stride;       /* a multiple of 64; columns past the vector are zeros */
    int32_t n_planes;     /* 1, or 2: the second is of what the first leaves. To integer kernels they are rows */
};

/* For 1 to TILE_ROWS rows; of one panel the stride does not matter. */
typedef void matmul_fn(const uint8_t *panels, size_t stride_bytes, int32_t n_panels, int32_t n_columns,
                       const struct Activation *x, int32_t first_row, int32_t n_rows,
                       float *out /* [n_rows, out_stride], n_panels · 16 written */, size_t out_stride);

struct Segment {          /* a run of panels of one format */
    const struct Format *format;
    const uint8_t *panels;
    size_t stride_bytes;  /* from a panel to the next */
    size_t panel_bytes;
    int32_t n_panels;
    matmul_fn *multiply;  /* of format, in the engine's instruction set: set by engine_create */
};

struct Matrix {
    struct Segment *segments;  /* [n_segments], rows in order */
    const float *bias;         /* [n_panels · 16] or NULL */
    int32_t n_segments, n_panels, n_columns;
    size_t n_bytes;            /* of its panels: set by engine_create, as is what its activation must hold */
    bool reads_integers;
};

enum NormKind { NORM_NONE, NORM_RMS, NORM_LAYER };
struct Norm {
    enum NormKind kind;
    float epsilon;
    const float *weight;      /* [n] */
    const float *bias;        /* [n] or NULL */
};

struct Rope {                 /* pairs (i, i + n_pairs) of a head turn by position · frequency */
    const float *inverse_frequencies;  /* [n_pairs] */
    int32_t n_pairs;
    float amplitude;          /* of cosines and sines */
};

enum ActivationFunction { ACTIVATION_SILU, ACTIVATION_GELU_TANH, ACTIVATION_GELU, ACTIVATION_RELU2, ACTIVATION_XIELU };
typedef void activate_fn(const float *x, const float *up /* or NULL: ones */, int32_t n, const float *parameters,
                         float *out /* activation(x) · up */);

struct Layer {
    struct Norm attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;  /* of x; of what is added to x */
    struct Norm q_norm, k_norm;            /* weights [n_heads, head_dim padded to 16], [n_kv_heads, ...] */
    struct Matrix qkv;                     /* heads of q, then k, then v, each padded to 16 rows */
    struct Matrix output, up, down;
    struct Matrix gate;                    /* alternates with up by panel in memory; without panels: no gate */
    const float *activation_parameters;    /* of xielu: [alpha_p, alpha_n, beta, epsilon] */
    float attention_scale;                 /* of scores */
    int32_t rope;                          /* index in ropes, or -1: positions do not turn */
    int32_t window;                        /* positions seen, its own included; 0: all */
    bool is_parallel;                      /* attention and MLP read the same x */
    bool norms_whole_qk;                   /* q_norm is over all heads together, not over each */
    bool norms_after_rope;
};

struct Plan {
    int32_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size, n_ropes;
    enum ActivationFunction activation;
    float attention_softcap;                       /* a cap of 0: none */
    float embedding_scale, residual_scale, logit_scale, logit_softcap;
    float qkv_clip;                                /* q, k, v are held within ± it; 0: free */
    float position_scale;                          /* q · (1 + it · log(1 + ⌊position / position_scale_context⌋)) */
    int32_t position_scale_context;
    int32_t activation_planes;                     /* int8 vectors that make one: 1, or 2, coarse and fine */
    const struct Rope *ropes;                      /* [n_ropes] */
    struct Norm final_norm;
    struct Matrix embedding, head;
    struct Matrix positions;                       /* learned: added to the embedding; without panels: none */
    struct Layer *layers;                          /* [n_layers] */
    activate_fn *activate;                         /* set by engine_create */
};

/* ---- memory ----------------------------------------------------------------------------------- */

struct Arena {
    uint8_t *base;
    size_t n_bytes;
    bool huge_pages;
};
enum Status arena_map(struct Arena *arena, size_t n_bytes); /* zeroed, 2 MiB-aligned, huge pages if they can be had */
void arena_unmap(struct Arena *arena);
uint64_t lines_checksum(const uint8_t *lines, size_t n_lines); /* against damage, not against malice */

/* ---- cache ------------------------------------------------------------------------------------ */

enum KvFormat { KV_F32, KV_F16, KV_Q8, N_KV_FORMATS }; /* q8: int8, one scale a head and position */
size_t kv_block_bytes(enum KvFormat format, int32_t head_width);

enum ContextPolicy {
    CONTEXT_STOP,             /* length positions, and no more */
    CONTEXT_SLIDE,            /* then each row sees the first n_keep and the last length − n_keep, its own included */
    CONTEXT_SINK,             /* the same, those n_keep as near as if nothing lay between */
};
struct Context {
    int32_t length;           /* the most positions that a row sees */
    enum ContextPolicy policy;
    int32_t n_keep;           /* less than length */
    int32_t limit;            /* positions are below it; 0: as many as there can be */
};

struct Cache;
enum Status cache_create(struct Cache **cache, const struct Plan *plan, enum KvFormat format,
                         const struct Context *context);
void cache_destroy(struct Cache *cache);
int32_t cache_length(const struct Cache *cache);
enum Status cache_rewind(struct Cache *cache, int32_t length); /* STATUS_NOT_HELD: nothing has changed */
int32_t cache_earliest(const struct Cache *cache); /* from there to the length, all can be rewound to; so can 0 */
/* The last step's drafts that come true: the first n of their chain, path[i] = i. */
enum Status cache_commit(struct Cache *cache, const int32_t *path, int32_t n);
size_t cache_bytes(const struct Cache *cache, bool shared_only); /* shared: with another cache, or held by a page */
/* Frequencies of this cache instead of the plan's, [n_ropes]; keys already stored keep their turn. */
void cache_set_ropes(struct Cache *cache, const struct Rope *ropes);
void cache_fill_unseen(struct Cache *cache, uint8_t byte); /* for tests: every slot past the length that is its own */

/* Pages: PAGE_POSITIONS positions of the layers of a ring. Caches of one plan, format and text may share them; one that
   writes where others read takes a copy. */
struct Page;
enum Status page_create(struct Page **page, size_t n_bytes);
struct Page *page_retain(struct Page *page);
void page_release(struct Page *page);
uint8_t *page_data(struct Page *page);
int32_t cache_rings(const struct Cache *cache);
size_t cache_page_bytes(const struct Cache *cache, int32_t ring);
struct Page *cache_page(const struct Cache *cache, int32_t ring, int32_t page); /* NULL: not held */
bool cache_copy_page(const struct Cache *cache, int32_t ring, int32_t page, uint8_t *out); /* past the length: zeros */
bool cache_needs(const struct Cache *cache, int32_t ring, int32_t length, int32_t page); /* to go on at length */
void cache_adopt(struct Cache *cache, int32_t ring, int32_t number, struct Page *page);
enum Status cache_resume(struct Cache *cache, int32_t length); /* after adopting all that it needs */

/* ---- engine ----------------------------------------------------------------------------------- */

enum RowFlags { WANTS_LOGITS = 1, WANTS_HIDDEN = 2, DRAFT = 4 };

struct Row {
    struct Cache *cache;
    int32_t position, token;
    int32_t parent; /* an earlier row of this step, or -1: the committed past of the cache */
    const float *input; /* [dim], or NULL: the embedding of token */
    uint16_t adapter, flags; /* enum RowFlags */
};

struct Engine;
struct Kernels;
enum Status engine_create(struct Engine **engine, struct Plan *plan, const struct Kernels *kernels, int32_t n_threads);
void engine_destroy(struct Engine *engine);
/* From now on adds what each stage takes, barrier included, as the caller sees it; NULL: no more. */
enum Stage { STAGE_EMBED, STAGE_HEADS, STAGE_ATTEND, STAGE_OUTPUT, STAGE_GATE_UP, STAGE_DOWN, STAGE_LOGITS, N_STAGES };
void engine_clock(struct Engine *engine, int64_t *nanoseconds /* [N_STAGES] */);
/* One step. logits: [rows that want them, vocab_stride], vocab_stride = vocab_size rounded up to 16. */
enum Status engine_forward(struct Engine *engine, const struct Row *rows, int32_t n_rows, float *logits);

/* ---- instruction sets -------------------------------------------------------------------------- */

enum Isa { ISA_PORTABLE, ISA_AVX2, ISA_AVXVNNI, ISA_AVX512VNNIVL, ISA_AVX512VNNI, N_ISAS };
extern const char *const isa_names[N_ISAS];
bool isa_compiled(enum Isa isa);
bool isa_available(enum Isa isa); /* compiled in, and both the CPU and the system carry it */
const struct Kernels *kernels_for(enum Isa isa); /* a full table: what isa lacks is filled from below */

/* ---- sampling ----------------------------------------------------------------------------------- */

enum NoisePurpose { NOISE_GUMBEL, NOISE_XTC };
struct NoiseKey {
    uint64_t seed;
    uint32_t index, completion, purpose;
};
#define PHILOX_FACTOR0 0xD2511F53u
#define PHILOX_FACTOR1 0xCD9E8D57u
#define PHILOX_STEP0 0x9E3779B9u
#define PHILOX_STEP1 0xBB67AE85u
enum { PHILOX_ROUNDS = 10 };
void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
void noise_words(const struct NoiseKey *key, uint32_t block, uint32_t words[4]); /* of tokens 4·block + 0..3 */
float noise_of_word(uint32_t word);
float noise_gumbel(const struct NoiseKey *key, uint32_t token);

enum SamplerKind { /* parameters */
                   SAMPLER_TEMPERATURE, /* temperature (0: the largest logit alone), range, exponent */
                   SAMPLER_TOP_K, /* k */
                   SAMPLER_TOP_P, /* mass */
                   SAMPLER_MIN_P, /* share of the largest probability */
                   SAMPLER_TYPICAL_P, /* mass */
                   SAMPLER_EPSILON_CUTOFF,
                   SAMPLER_ETA_CUTOFF,
                   SAMPLER_TOP_N_SIGMA, /* standard deviations */
                   SAMPLER_XTC, /* probability, threshold */
                   SAMPLER_MIROSTAT, /* greatest surprise, in bits */
};
struct SamplerStep {
    enum SamplerKind kind;
    double parameters[3];
};
struct Sampler {
    const struct SamplerStep *steps; /* [n_steps], in order */
    const struct Kernels *kernels; /* what computes it; what comes out is the same */
    int32_t n_steps, min_keep; /* no step but a temperature of 0 leaves fewer than min_keep, 1 or more */
    bool wants_surprise;
};
struct Choice {
    int32_t token;
    float score; /* (logit − max) / temperature + noise: the largest among the kept, ties to the lower id */
    double surprise; /* −log2 of its probability among the kept, if wanted */
};
enum Status sample_token(const float *logits, int32_t n, const struct Sampler *sampler, const struct NoiseKey *key,
                         struct Choice *choice);
/* The tokens [count] that sample_token gives at key->index and the indices after it. */
enum Status sample_many(const float *logits, int32_t n, const struct Sampler *sampler, const struct NoiseKey *key,
                        int32_t *tokens, int32_t count);
/* What the steps leave: tokens [n] in order of ids, their probabilities [n], and how many. */
enum Status sample_kept(const float *logits, int32_t n, const struct Sampler *sampler, const struct NoiseKey *key,
                        int32_t *tokens, float *probabilities, int32_t *n_kept);
/* The n_best largest (fewer if fewer are finite), largest first; and log Σ exp(logit). */
enum Status rank_tokens(const struct Kernels *kernels, const float *logits, int32_t n, int32_t *n_best,
                        int32_t *tokens /* [n_best] */, double *log_total);
/* lengths [n - 1]: how many tokens ids[0..i] and ids[0..n-1] share at their ends. */
void suffix_matches(const int32_t *ids, int32_t n, int32_t *lengths);

/* ---- floats -------------------------------------------------------------------------------------- */

double exact_sin(double radians), exact_cos(double radians); /* the same bits everywhere; |x| < 2^31 */
float f32_from_f16(uint16_t half);
uint16_t f16_from_f32(float value);

#endif
