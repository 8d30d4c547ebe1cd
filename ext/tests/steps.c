/* Texts through the engine: plainly, for what to expect, and in any company, to compare. */
#include "model.h"

#include <stdlib.h>

static void expect(struct Model *model, struct Text *text)
{
    struct Engine *engine;
    struct Cache *cache;
    text->expected = keep(model, line_alloc((size_t)(text->n_tokens * model->vocab_stride) * sizeof(float)));
    if (engine_create(&engine, &model->plan, isas[0], 1) != STATUS_OK
        || cache_create(&cache, &model->plan, model->shape->kv, &(struct Context){ .length = text->n_tokens })
            != STATUS_OK)
        abort();
    for (int32_t t = 0; t < text->n_tokens; t++) {
        struct Row row = { cache, t, text->tokens[t], -1, NULL, 0, WANTS_LOGITS };
        if (engine_forward(engine, &row, 1, text->expected + t * model->vocab_stride) != STATUS_OK)
            abort();
    }
    cache_destroy(cache);
    engine_destroy(engine);
}

void expect_texts(struct Model *model)
{
    for (int32_t i = 0; i < N_TEXTS; i++) {
        struct Random random = random_named(model->shape->name, -1 - i);
        struct Text *text = &model->texts[i];
        text->n_tokens = i ? 40 : model->shape->n_tokens;
        for (int32_t t = 0; t < text->n_tokens; t++)
            text->tokens[t] = random_below(&random, model->shape->vocab_size);
        expect(model, text);
    }
}

bool step_equals(struct Model *model, struct Engine *engine, struct Cache *caches[N_TEXTS], const int32_t n[N_TEXTS],
                 bool all_rows, const char *what)
{
    static _Thread_local struct Row rows[MAX_ROWS];
    int32_t n_rows = 0, n_wanted = 0, start[N_TEXTS], last[N_TEXTS], n_most = 0;
    const float *expected[MAX_ROWS];
    for (int32_t i = 0; i < N_TEXTS; i++) {
        start[i] = n[i] ? cache_length(caches[i]) : 0;
        last[i] = -1;
        n_most = n[i] > n_most ? n[i] : n_most;
    }
    for (int32_t turn = 0; turn < n_most; turn++)
        for (int32_t i = 0; i < N_TEXTS; i++) {
            if (turn >= n[i])
                continue;
            int32_t position = start[i] + turn;
            bool is_wanted = all_rows || turn == n[i] - 1;
            rows[n_rows] = (struct Row){ caches[i], position, model->texts[i].tokens[position], last[i],
                                         NULL,      0,        is_wanted ? WANTS_LOGITS : 0 };
            last[i] = n_rows++;
            if (is_wanted)
                expected[n_wanted++] = model->texts[i].expected + position * model->vocab_stride;
        }
    size_t stride = (size_t)model->vocab_stride;
    float *logits = line_alloc((size_t)n_wanted * stride * sizeof *logits);
    enum Status status = engine_forward(engine, rows, n_rows, logits);
    bool equal = status == STATUS_OK;
    for (int32_t i = 0; equal && i < n_wanted; i++)
        equal = all_same_bits(logits + (size_t)i * stride, expected[i], stride);
    free(logits);
    return CHECK(equal, "%s, %s: %d rows (%d, %d, %d tokens from %d, %d, %d), status %d", model->shape->name, what,
                 n_rows, n[0], n[1], n[2], start[0], start[1], start[2], (int)status);
}

bool goes_on(struct Model *model, struct Engine *engine, struct Cache *cache, int32_t n, const char *what)
{
    int32_t left = model->texts[0].n_tokens - cache_length(cache);
    return step_equals(model, engine, (struct Cache *[N_TEXTS]){ cache }, (int32_t[N_TEXTS]){ n < left ? n : left },
                       true, what);
}
