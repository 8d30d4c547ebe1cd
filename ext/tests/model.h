/* Tiny random models in every mixture of formats and of what families ask for, and steps over several caches. */
#ifndef RILLM_TESTS_MODEL_H
#define RILLM_TESTS_MODEL_H

#include "tests.h"

enum {
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_OUTPUT,
    TENSOR_GATE,
    TENSOR_UP,
    TENSOR_DOWN,
    TENSOR_EMBEDDING,
    TENSOR_HEAD,
    N_TENSORS
};

struct Shape {
    const char *name;
    int32_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size;
    enum FormatId formats[N_TENSORS];
    enum KvFormat kv;
    int32_t n_tokens;                        /* of the longest text */
    bool has_biases, has_no_gate, has_no_pre_norms, has_post_norms, has_qk_norms, has_learned_positions;
    bool is_parallel, norms_whole_qk, norms_after_rope;
    int32_t planes;                          /* of activations */
    int32_t window, n_ropes, n_pairs;        /* window: of even layers; n_pairs 0: half a head */
    enum NormKind norm;                      /* NORM_NONE: RMS */
    enum ActivationFunction activation;
    float softcap, clip, scale;              /* scale: of embedding, residual, logits and position; 0: one */
};

enum { N_TEXTS = 3, TOKENS_AT_MOST = 320, N_SHAPES = 15, ALLOCATIONS_AT_MOST = 256 };
extern const struct Shape shapes[N_SHAPES];

/* A text knows the logits that must follow each of its tokens, computed plainly: portable, alone, one by one. */
struct Text {
    int32_t tokens[TOKENS_AT_MOST], n_tokens;
    float *expected;                         /* [n_tokens, vocab_stride] */
};

struct Model {
    const struct Shape *shape;
    struct Plan plan;
    int32_t vocab_stride;
    struct Text texts[N_TEXTS];
    void *allocations[ALLOCATIONS_AT_MOST];
    int32_t n_allocations;
};

struct Model *model_create(const struct Shape *shape);   /* the plan; texts have their tokens and expected logits */
void model_destroy(struct Model *model);
void *keep(struct Model *model, void *memory);           /* freed with the model */

/* steps.c */
void expect_texts(struct Model *model);
/* One step: n[i] tokens of text i go on in cache i, rows of the texts taken in turn; each row's logits are checked
   when all_rows, else each text's last. False when a bit differs or the engine refused. */
bool step_equals(struct Model *model, struct Engine *engine, struct Cache *caches[N_TEXTS], const int32_t n[N_TEXTS],
                 bool all_rows, const char *what);
/* The same for text 0 alone. */
bool goes_on(struct Model *model, struct Engine *engine, struct Cache *cache, int32_t n, const char *what);

#endif
