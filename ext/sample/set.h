/* Tokens and their law, softmax(logits / temperature): what the filters narrow, and what a draw chooses from. */
#ifndef RILLM_SAMPLE_SET_H
#define RILLM_SAMPLE_SET_H

#include "../kernels/kernels.h"
#include "../runtime/floats.h"

struct Set {
    const struct Kernels *kernels;
    const float *logits;   /* [n], in order of token ids; no NaN, no +inf */
    const int32_t *tokens; /* [n], or NULL: token i is i */
    int32_t n;
    float largest;         /* of logits; finite */
    float temperature;     /* above 0 */
    float *own_logits;     /* both NULL until the first narrowing */
    int32_t *own_tokens;
    int32_t *greatest;     /* logits, by order_of_f32, of each NOISE_TOKENS of a vocabulary; NULL: no memory */
};

/* The last that is kept in an order by key, larger first, on a tie by token. */
struct Border {
    float key;
    int32_t place;
};

/* With w = exp(x), x = (logit − largest) / temperature: Σ w and Σ w·x. */
struct Moments { double weight, weighted; };

/* The whole vocabulary; false: NaN or +inf among the logits, or nothing finite. */
bool set_open(struct Set *set, const struct Kernels *kernels, const float *logits, int32_t n);
void set_close(struct Set *set);

float set_weight(const struct Set *set, float logit);
struct Moments set_moments(const struct Set *set);
int32_t set_count(const struct Set *set, float bar); /* of logits ≥ bar */

/* The smallest beginning of the order by key (of finite keys) that has `least` tokens and weighs `goal`. `width`
   guesses how far below the largest key it ends. */
enum Status set_border(const struct Set *set, const float *key /* [n] */, float width, double goal, int32_t least,
                       struct Border *border);
/* Keeps what comes before the border, and the border. */
enum Status set_narrow(struct Set *set, const float *key /* [n] */, struct Border border);
enum Status set_keep_largest(struct Set *set);

/* One filter; the coin of XTC is tossed with the noise of `key`. */
enum Status set_filter(struct Set *set, const struct SamplerStep *step, int32_t min_keep, const struct NoiseKey *key);

#endif
