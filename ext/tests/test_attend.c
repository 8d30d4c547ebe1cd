/* Attention over blocks whose unseen slots are NaN: against softmax in long double, and to the bit across tables,
   heads in company and blocks in a row. */
#include "tests.h"

#include <stdlib.h>

#include "../kernels/ahead.h"

enum { DIM_AT_MOST = 128, HEADS_AT_MOST = 9, N_BLOCKS = 3, N_POSITIONS = N_BLOCKS * BLOCK_POSITIONS };

static store_kv_fn *store_of(const struct Kernels *kernels, bool f16)
{
    return f16 ? kernels->store_kv_f16 : kernels->store_kv_f32;
}

static attend_block_fn *attend_of(const struct Kernels *kernels, bool f16)
{
    return f16 ? kernels->attend_block_f16 : kernels->attend_block_f32;
}

static size_t block_bytes(bool f16, int32_t dim) { return (size_t)2 * BLOCK_POSITIONS * (size_t)dim * (f16 ? 2 : 4); }

/* Each stored number lies where kernels.h says, is rounded as the type rounds, and nothing else is written. */
void test_store_kv(void)
{
    static const int32_t dims[] = { 16, 32, 64, 80, 128 };
    for (int32_t i = 0; i < 10; i++) {
        bool f16 = i % 2;
        int32_t dim = dims[i / 2];
        size_t element = f16 ? 2 : 4, bytes = block_bytes(f16, dim);
        uint8_t *block = line_alloc(bytes), *expected = line_alloc(bytes);
        float key[DIM_AT_MOST], value[DIM_AT_MOST];
        FOR_EACH_ISA(kernels) {
            memset(block, 0xff, bytes);
            memset(expected, 0xff, bytes);
            for (int32_t turn = 0; turn < 64; turn++) {
                struct Random random = random_named("store", i * 64 + turn);
                int32_t position = random_below(&random, BLOCK_POSITIONS);
                bool has_key = turn % 3 != 1, has_value = turn % 3 != 2;
                for (int32_t d = 0; d < dim; d++) {   /* ties of f16 too: 12 significant bits, any exponent */
                    uint32_t bits = random_u32(&random) & 0xfffff000;
                    key[d] = f32_of_bits(bits), value[d] = random_float(&random, f16 && d % 2 ? 1e5f : 1e-6f);
                    key[d] = key[d] == key[d] ? key[d] : 1.0f;
                }
                store_of(kernels, f16)(has_key ? key : NULL, has_value ? value : NULL, dim, position, block);
                for (int32_t d = 0; d < dim; d++) {
                    size_t k = (size_t)((position / LANES * dim + d) * LANES + position % LANES);
                    size_t v = (size_t)((BLOCK_POSITIONS + position) * dim + d);
                    uint16_t key_half = f16_from_f32(key[d]), value_half = f16_from_f32(value[d]);
                    if (has_key)
                        memcpy(expected + k * element, f16 ? (void *)&key_half : (void *)&key[d], element);
                    if (has_value)
                        memcpy(expected + v * element, f16 ? (void *)&value_half : (void *)&value[d], element);
                }
            }
            CHECK(memcmp(block, expected, bytes) == 0, "%s: %s of %d", kernels->isa, f16 ? "f16" : "f32", dim);
        }
        free(block), free(expected);
    }
}

struct Scene {
    bool f16;
    int32_t dim, n_heads, first, last;
    float scale, softcap;
    float queries[HEADS_AT_MOST * DIM_AT_MOST];
    float keys[N_POSITIONS][DIM_AT_MOST], values[N_POSITIONS][DIM_AT_MOST];   /* as the cache type rounds them */
};

static void make_scene(struct Scene *scene, struct Random *random)
{
    scene->scale = 1.0f / sqrtf((float)scene->dim);
    random_floats(random, 2.0f, scene->queries, (size_t)(scene->n_heads * scene->dim));
    for (int32_t p = 0; p < N_POSITIONS; p++)
        for (int32_t d = 0; d < scene->dim; d++) {
            float key = random_float(random, 2.0f), value = random_float(random, 1.0f);
            scene->keys[p][d] = scene->f16 ? f32_from_f16(f16_from_f32(key)) : key;
            scene->values[p][d] = scene->f16 ? f32_from_f16(f16_from_f32(value)) : value;
        }
}

/* Heads first_head ≤ h < last_head as one call; the floats past the partials stay as they are. */
static void attend(const struct Kernels *kernels, const struct Scene *scene, int32_t first_head, int32_t last_head,
                   float *out /* [n_heads, dim] */)
{
    int32_t n_heads = last_head - first_head, dim = scene->dim, size = LANES + dim;
    size_t n_bytes = (size_t)(n_heads * size) * sizeof(float);
    uint8_t *block = line_alloc(block_bytes(scene->f16, dim));
    float *sums = line_alloc(n_bytes), *partials = line_alloc(n_bytes);
    int32_t first_block = scene->first / BLOCK_POSITIONS;
    for (int32_t b = first_block; b * BLOCK_POSITIONS < scene->last; b++) {
        int32_t start = b * BLOCK_POSITIONS, from = scene->first > start ? scene->first - start : 0;
        int32_t to = scene->last - start < BLOCK_POSITIONS ? scene->last - start : BLOCK_POSITIONS;
        memset(block, 0xff, block_bytes(scene->f16, dim));
        for (int32_t p = from; p < to; p++)
            store_of(kernels, scene->f16)(scene->keys[start + p], scene->values[start + p], dim, p, block);
        attend_of(kernels, scene->f16)(scene->queries + first_head * dim, n_heads, dim, block, block, from, to,
                                       scene->scale, scene->softcap, b == first_block ? sums : partials);
        for (int32_t h = 0; b > first_block && h < n_heads; h++)
            kernels->merge_partial(sums + h * size, partials + h * size, dim);
    }
    for (int32_t h = 0; h < n_heads; h++)
        kernels->finish_partial(sums + h * size, dim, out + (first_head + h) * dim);
    free(block), free(sums), free(partials);
}

static void check_against_softmax(const struct Scene *scene, const float *out)
{
    static long double weights[N_POSITIONS];
    for (int32_t h = 0; h < scene->n_heads; h++) {
        long double largest = -INFINITY, sum = 0;
        for (int32_t p = scene->first; p < scene->last; p++) {
            weights[p] = 0;
            for (int32_t d = 0; d < scene->dim; d++)
                weights[p] += (long double)scene->queries[h * scene->dim + d] * scene->keys[p][d];
            weights[p] *= scene->scale;
            if (scene->softcap > 0)
                weights[p] = scene->softcap * tanhl(weights[p] / scene->softcap);
            largest = weights[p] > largest ? weights[p] : largest;
        }
        for (int32_t p = scene->first; p < scene->last; p++)
            sum += weights[p] = expl(weights[p] - largest);
        for (int32_t d = 0; d < scene->dim; d++) {
            long double expected = 0;
            for (int32_t p = scene->first; p < scene->last; p++)
                expected += weights[p] / sum * scene->values[p][d];
            float got = out[h * scene->dim + d];
            CHECK(fabsl(got - expected) <= 5e-6L, "head %d of %d, dim %d of %d, positions %d to %d: %g, expected %Lg",
                  h, scene->n_heads, d, scene->dim, scene->first, scene->last, got, expected);
        }
    }
}

void test_attention(void)
{
    static const int32_t ranges[][2] = { { 0, 1 },   { 0, 15 },    { 0, 16 },  { 0, 17 },    { 5, 6 },     { 13, 50 },
                                         { 0, 128 }, { 127, 128 }, { 0, 129 }, { 100, 257 }, { 130, 131 }, { 0, 384 } };
    static const int32_t dims[] = { 16, 32, 64, 80, 128 };
    static struct Scene scene;
    static float portable[HEADS_AT_MOST * DIM_AT_MOST], out[HEADS_AT_MOST * DIM_AT_MOST];
    const bool leads = hardware_leads;
    enum { N_RANGES = sizeof ranges / sizeof ranges[0] };
    for (int32_t i = 0; i < 5 * N_RANGES * 2; i++) {
        struct Random random = random_named("attention", i);
        scene.f16 = i % 2;
        scene.dim = dims[i / 2 % 5];
        scene.first = ranges[i / 10][0], scene.last = ranges[i / 10][1];
        scene.softcap = i % 3 ? 0.0f : 1.5f;
        scene.n_heads = i * 5 % HEADS_AT_MOST + 1;
        hardware_leads = i % 4 < 2; /* what is asked for ahead changes nothing */
        make_scene(&scene, &random);
        size_t n = (size_t)(scene.n_heads * scene.dim);
        attend(isas[0], &scene, 0, scene.n_heads, portable);
        check_against_softmax(&scene, portable);
        hash_bits(portable, n * sizeof *portable);
        FOR_EACH_ISA(kernels) {
            attend(kernels, &scene, 0, scene.n_heads, out);
            CHECK(all_same_bits(out, portable, n), "%s: %d heads of %d, positions %d to %d", kernels->isa,
                  scene.n_heads, scene.dim, scene.first, scene.last);
            for (int32_t h = 0; h < scene.n_heads; h++)
                attend(kernels, &scene, h, h + 1, out);
            CHECK(all_same_bits(out, portable, n), "%s: %d heads of %d one by one, positions %d to %d", kernels->isa,
                  scene.n_heads, scene.dim, scene.first, scene.last);
        }
    }
    hardware_leads = leads;
}
