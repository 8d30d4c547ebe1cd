/* The contract: logits are a function of weights, formats, tokens and positions alone. Every way of taking the same
   tokens through the engine must give the bits of the plainest one. */
#include "model.h"

#include <stdlib.h>

enum { N_THREADS_AT_MOST = 4, N_SCHEDULES = 4 };

static struct Engine *engine_of(struct Model *model, const struct Kernels *kernels, int32_t n_threads)
{
    struct Engine *engine = NULL;
    if (!CHECK(engine_create(&engine, &model->plan, kernels, n_threads) == STATUS_OK, "%d threads", n_threads))
        abort();
    return engine;
}

static struct Cache *cache_of(struct Model *model)
{
    struct Cache *cache = NULL;
    if (!CHECK(cache_create(&cache, &model->plan, model->shape->kv, &(struct Context){ .length = TOKENS_AT_MOST })
                   == STATUS_OK,
               "cache"))
        abort();
    return cache;
}

/* From `cache` empty to the end of the first text; 0: a chunk of any size to 16. Unseen slots are NaN all the way. */
static void read_text(struct Model *model, struct Engine *engine, struct Cache *cache, int32_t chunk, const char *what)
{
    struct Random random = random_named(what, chunk);
    bool equal = CHECK(cache_rewind(cache, 0) == STATUS_OK, "%s", what);
    for (int32_t step = 0; equal && cache_length(cache) < model->texts[0].n_tokens; step++) {
        if (step % 16 < 2)
            cache_fill_unseen(cache, 0xff); /* pages come with the first step and later, slots fall free before it */
        equal = goes_on(model, engine, cache, chunk ? chunk : random_between(&random, 1, 16), what);
    }
}

/* Rows of three caches in one step, in any company, logits of all rows or of each text's last. */
static void interleave(struct Model *model, struct Engine *engine, struct Cache *caches[N_TEXTS])
{
    struct Random random = random_named("interleave", 0);
    int32_t n[N_TEXTS] = { model->texts[0].n_tokens - 30 }; /* the first is some blocks ahead */
    for (int32_t i = 0; i < N_TEXTS; i++)
        CHECK(cache_rewind(caches[i], 0) == STATUS_OK, "%d", i);
    if (!step_equals(model, engine, caches, n, true, "ahead"))
        return;
    for (int32_t step = 0; step < 16; step++) {
        int32_t n_rows = 0;
        for (int32_t i = 0; i < N_TEXTS; i++) {
            int32_t left = model->texts[i].n_tokens - cache_length(caches[i]);
            n[i] = random_below(&random, step % 2 ? 3 : 8);
            n[i] = n[i] < left ? n[i] : left;
            n_rows += n[i];
            if (step % 8 < 2)
                cache_fill_unseen(caches[i], 0xff);
        }
        if (n_rows && !step_equals(model, engine, caches, n, step % 3 != 0, "several caches"))
            return;
    }
}

/* Goes astray with another text's tokens, comes back, and goes on as if nothing had been. */
static void rewind_and_go_on(struct Model *model, struct Engine *engine, struct Cache *cache)
{
    float *logits = line_alloc((size_t)model->vocab_stride * sizeof *logits);
    struct Random random = random_named("rewind", 0);
    for (int32_t turn = 0; turn < 4; turn++) {
        int32_t position = random_below(&random, cache_length(cache) + 1);
        CHECK(cache_rewind(cache, position) == STATUS_OK, "to %d", position);
        for (int32_t i = 0; i < 5 && position + i < TOKENS_AT_MOST; i++) {
            struct Row astray = { cache, position + i, model->texts[1].tokens[i], -1, NULL, 0, WANTS_LOGITS };
            CHECK(engine_forward(engine, &astray, 1, logits) == STATUS_OK, "astray at %d", position + i);
        }
        CHECK(cache_rewind(cache, position) == STATUS_OK, "back to %d", position);
        if (turn % 2)
            cache_fill_unseen(cache, 0xff);
        if (position < model->texts[0].n_tokens)
            goes_on(model, engine, cache, 1 + turn * 3, "rewound");
    }
    CHECK(cache_rewind(cache, cache_length(cache) + 1) == STATUS_BAD_POSITION
              && cache_rewind(cache, -1) == STATUS_BAD_POSITION,
          "past the end");
    free(logits);
}

/* A chain of drafts of which some come true: its rows have the logits of plain steps, and so has what follows. */
static void draft_and_go_on(struct Model *model, struct Engine *engine, struct Cache *cache)
{
    const struct Text *text = &model->texts[0];
    const size_t stride = (size_t)model->vocab_stride;
    struct Random random = random_named("draft", 0);
    float *logits = line_alloc(stride * 12 * sizeof *logits);
    int32_t path[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    CHECK(cache_rewind(cache, 0) == STATUS_OK, "to the start");
    for (int32_t turn = 0; turn < 12 && cache_length(cache) + 14 < text->n_tokens; turn++) {
        int32_t at = cache_length(cache), n = random_between(&random, 2, 12), n_true = random_below(&random, n);
        struct Row rows[12];
        for (int32_t i = 0; i < n; i++) /* the first row is no draft; those after it are, and go astray after n_true */
            rows[i] = (struct Row){ cache, at + i, i <= n_true ? text->tokens[at + i] : 1, i - 1,
                                    NULL,  0,      i ? WANTS_LOGITS | DRAFT : WANTS_LOGITS };
        bool equal = engine_forward(engine, rows, n, logits) == STATUS_OK && cache_length(cache) == at + 1;
        for (int32_t i = 0; equal && i <= n_true; i++)
            equal = all_same_bits(logits + (size_t)i * stride, text->expected + (size_t)(at + i) * stride, stride);
        CHECK(equal && cache_commit(cache, path, n_true) == STATUS_OK, "%d drafts at %d, %d true", n - 1, at, n_true);
        if (turn % 2)
            cache_fill_unseen(cache, 0xff);
        goes_on(model, engine, cache, 1, "after drafts");
    }
    free(logits);
}

/* The caller's rounding mode and subnormals are its own: nothing is read from them and they come back as they were. */
static void odd_float_states(struct Model *model, const struct Kernels *kernels, int32_t n_threads)
{
    for (int state = n_threads % 2 + 1; state < N_FLOAT_STATES; state += 2) {
        struct Engine *engine = engine_of(model, kernels, n_threads);
        struct Cache *cache = cache_of(model);
        set_float_state(state);
        uint64_t before = float_state();
        goes_on(model, engine, cache, 3, "another rounding mode"); /* starts the threads */
        goes_on(model, engine, cache, 12, "another rounding mode");
        goes_on(model, engine, cache, 1, "another rounding mode");
        uint64_t after = float_state();
        set_float_state(0);
        CHECK(before == after, "state %d: was %llx, is %llx", state, (unsigned long long)before,
              (unsigned long long)after);
        cache_destroy(cache);
        engine_destroy(engine);
    }
}

static void hold_contract(struct Model *model, const struct Kernels *kernels, int32_t n_threads, int32_t chunk)
{
    struct Engine *engine = engine_of(model, kernels, n_threads);
    struct Cache *caches[N_TEXTS] = { cache_of(model), cache_of(model), cache_of(model) };
    char what[64];
    snprintf(what, sizeof what, "%s, %d threads", kernels->isa, n_threads);
    read_text(model, engine, caches[0], chunk, what);
    read_text(model, engine, caches[0], 0, what);
    rewind_and_go_on(model, engine, caches[0]);
    draft_and_go_on(model, engine, caches[0]);
    interleave(model, engine, caches);
    odd_float_states(model, kernels, n_threads);
    for (int32_t i = 0; i < N_TEXTS; i++)
        cache_destroy(caches[i]);
    engine_destroy(engine);
}

/* How rows and panels are dealt out does not depend on the table: all thread counts for the first and the last table,
   one of them in turn for those between. */
void test_forward(void)
{
    static const int32_t chunks[] = { 1, 2, 64, 9, 16, 3, 33, 8, 17, 5, 15 };
    enum { N_CHUNKS = sizeof chunks / sizeof chunks[0] };
    int32_t turn = 0;
    for (int32_t s = 0; s < N_SHAPES; s++) {
        struct Model *model = model_create(&shapes[s]);
        for (int32_t i = 0; i < N_TEXTS; i++) {
            const struct Text *text = &model->texts[i];
            int32_t n = text->n_tokens * model->vocab_stride;
            hash_bits(text->expected, (size_t)n * sizeof(float));
            for (int32_t c = 0; c < n; c++)
                if (!CHECK(fabsf(text->expected[c]) < 1e3f, "%s: a logit of %g", shapes[s].name, text->expected[c]))
                    break;
        }
        for (int32_t isa = 0; isa < n_isas; isa++)
            for (int32_t n_threads = 1; n_threads <= N_THREADS_AT_MOST; n_threads++)
                if (isa == 0 || isa == n_isas - 1 || (isa + s) % N_THREADS_AT_MOST + 1 == n_threads)
                    hold_contract(model, isas[isa], n_threads, chunks[turn++ % N_CHUNKS]);
        model_destroy(model);
    }
}

/* ---- what is refused, and that a refusal changes nothing -------------------------------------------- */

void test_refused_steps(void)
{
    struct Model *model = model_create(&shapes[0]);
    struct Engine *engine = engine_of(model, isas[0], 2);
    struct Cache *cache = cache_of(model), *small = NULL;
    static struct Row many[MAX_ROWS + 1];
    const float input[80] = { 0 };
    float *logits = line_alloc((size_t)model->vocab_stride * 2 * sizeof *logits);
    CHECK(cache_create(&small, &model->plan, KV_F32, &(struct Context){ .length = 2 }) == STATUS_OK, "context of 2");
    goes_on(model, engine, cache, 5, "before");

#define REFUSES(status, n_rows, ...)                                                                                   \
    CHECK(engine_forward(engine, (struct Row[]){ __VA_ARGS__ }, n_rows, logits) == status, "row %s", #__VA_ARGS__)
    REFUSES(STATUS_BAD_ARGUMENT, 0, { cache, 5, 1, -1, NULL, 0, 0 });
    REFUSES(STATUS_BAD_TOKEN, 1, { cache, 5, -1, -1, NULL, 0, 0 });
    REFUSES(STATUS_BAD_TOKEN, 1, { cache, 5, model->shape->vocab_size, -1, NULL, 0, 0 });
    REFUSES(STATUS_BAD_POSITION, 1, { cache, 4, 1, -1, NULL, 0, 0 });
    REFUSES(STATUS_BAD_POSITION, 1, { cache, 6, 1, -1, NULL, 0, 0 });
    REFUSES(STATUS_BAD_POSITION, 2, { cache, 5, 1, -1, NULL, 0, 0 }, { cache, 5, 1, 0, NULL, 0, 0 });
    REFUSES(STATUS_UNSUPPORTED, 2, { cache, 5, 1, -1, NULL, 0, 0 }, { cache, 6, 1, -1, NULL, 0, 0 });
    REFUSES(STATUS_UNSUPPORTED, 1, { cache, 5, 1, 3, NULL, 0, 0 });
    REFUSES(STATUS_UNSUPPORTED, 1, { cache, 5, 1, -1, input, 0, 0 });
    REFUSES(STATUS_UNSUPPORTED, 1, { cache, 5, 1, -1, NULL, 1, 0 });
    REFUSES(STATUS_UNSUPPORTED, 1, { cache, 5, 1, -1, NULL, 0, WANTS_HIDDEN });
    REFUSES(STATUS_UNSUPPORTED, 2, { cache, 5, 1, -1, NULL, 0, DRAFT }, { cache, 5, 2, -1, NULL, 0, DRAFT });
    REFUSES(STATUS_UNSUPPORTED, 2, { cache, 5, 1, -1, NULL, 0, DRAFT }, { cache, 6, 1, 0, NULL, 0, 0 });
    REFUSES(STATUS_CONTEXT_FULL, 3, { small, 0, 1, -1, NULL, 0, 0 }, { small, 1, 1, 0, NULL, 0, 0 },
            { small, 2, 1, 1, NULL, 0, 0 });
#undef REFUSES
    CHECK(engine_forward(engine, many, MAX_ROWS + 1, logits) == STATUS_BAD_ARGUMENT, "too many rows");
    CHECK(cache_commit(cache, NULL, 0) == STATUS_OK && cache_commit(cache, (int32_t[]){ 0 }, 1) == STATUS_BAD_ARGUMENT,
          "nothing to commit");
    CHECK(cache_length(cache) == 5 && cache_length(small) == 0, "lengths %d, %d", cache_length(cache),
          cache_length(small));
    goes_on(model, engine, cache, 7, "after refusals");

    struct Engine *none = NULL;
    struct Cache *no_cache = NULL;
    CHECK(engine_create(&none, &model->plan, isas[0], 0) == STATUS_BAD_ARGUMENT, "0 threads");
    CHECK(engine_create(&none, &model->plan, isas[0], MAX_THREADS + 1) == STATUS_BAD_ARGUMENT, "too many threads");
    const int32_t planes = model->plan.activation_planes;
    model->plan.activation_planes = 3;
    CHECK(engine_create(&none, &model->plan, isas[0], 1) == STATUS_BAD_ARGUMENT, "three planes");
    model->plan.activation_planes = planes;
    CHECK(cache_create(&no_cache, &model->plan, KV_F32, &(struct Context){ .length = 0 }) == STATUS_BAD_ARGUMENT,
          "context of 0");
    CHECK(!none && !no_cache, "created all the same");
    engine_destroy(NULL), cache_destroy(NULL);
    cache_destroy(small), cache_destroy(cache);
    engine_destroy(engine);
    model_destroy(model);
    free(logits);
}

/* The system refuses the k-th mapping: the step says so, changes nothing, and goes through when asked again. */
void test_refused_memory(void)
{
    struct Model *model = model_create(&shapes[7]);
    for (int32_t allowed = 0; allowed < 4; allowed++) {
        struct Engine *engine = engine_of(model, isas[0], 2);
        struct Cache *cache = cache_of(model);
        float *logits = line_alloc((size_t)(model->vocab_stride * 2) * sizeof *logits);
        for (int32_t step = 0; step < 3; step++) {
            int32_t length = cache_length(cache), n = step == 1 ? 255 : 1;
            static struct Row rows[255];
            for (int32_t r = 0; r < n; r++)
                rows[r] = (struct Row){ cache, length + r, model->texts[0].tokens[length + r], r - 1, NULL, 0, 0 };
            refuse_memory_after(allowed);
            enum Status status = engine_forward(engine, rows, n, logits);
            refuse_memory_after(-1);
            CHECK(status == STATUS_OK || status == STATUS_NO_MEMORY, "status %d", (int)status);
            CHECK(allowed > 0 || status == STATUS_NO_MEMORY, "step %d: status %d", step, (int)status);
            CHECK(cache_length(cache) == length + (status == STATUS_OK ? n : 0), "length %d", cache_length(cache));
            CHECK(cache_rewind(cache, length) == STATUS_OK, "to %d", length);
            goes_on(model, engine, cache, n, "after a refusal");
        }
        cache_destroy(cache);
        engine_destroy(engine);
        free(logits);
    }
    model_destroy(model);
}
