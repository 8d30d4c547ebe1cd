/* Floats to integer codes, group by group of 16 rows at once. A scale is rounded to f16 first and then divided by. */
#include <math.h>

#include "codes.h"
#include "../runtime/floats.h"

#define FOR_ROWS for (int r = 0; r < LANES; r++)

static float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; } /* |x| < 2^22, ties to even */

static float clamped(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* Codes lie between low and high; stored, offset is added. */
struct Range {
    float low, high;
    int offset;
};

/* Scale and minimum of each row, as f16 holds them, and the squared error of the codes that follow from them. */
struct Fit { float scale[LANES], minimum[LANES], error[LANES]; };

static float code_of(float x, float divisor, float minimum, struct Range range)
{
    return nearest(clamped((x - minimum) / divisor, range.low, range.high));
}

static float divisor_of(float scale) { return scale == 0.0f ? INFINITY : scale; } /* so that all codes are 0 */

/* Rounds scale and minimum; a row where they do not fit f16 has the largest error: quantize_group refuses it. */
static void measure(struct Fit *fit, const struct FloatGroup *group, struct Range range)
{
    float scale[LANES], minimum[LANES], divisor[LANES], error[LANES] = { 0 };
    FOR_ROWS
    {
        scale[r] = f32_of_f16(f16_of_f32(fit->scale[r]));
        minimum[r] = f32_of_f16(f16_of_f32(fit->minimum[r]));
        divisor[r] = divisor_of(scale[r]);
    }
    for (int c = 0; c < group->n_columns; c++)
        FOR_ROWS
        {
            float code = code_of(group->x[c][r], divisor[r], minimum[r], range);
            float miss = group->x[c][r] - (code * scale[r] + minimum[r]);
            error[r] += miss * miss;
        }
    FOR_ROWS
    {
        float zero = (scale[r] - scale[r]) + (minimum[r] - minimum[r]);
        fit->scale[r] = scale[r];
        fit->minimum[r] = minimum[r];
        fit->error[r] = zero == 0.0f ? error[r] : FLT_MAX;
    }
}

static void keep_better(struct Fit *best, const struct Fit *fit, const float *may_win /* [16], or NULL: all */)
{
    FOR_ROWS
    {
        bool wins = fit->error[r] < best->error[r] && (!may_win || may_win[r] > 0.0f);
        best->scale[r] = wins ? fit->scale[r] : best->scale[r];
        best->minimum[r] = wins ? fit->minimum[r] : best->minimum[r];
        best->error[r] = wins ? fit->error[r] : best->error[r];
    }
}

/* The value of largest magnitude lies near −8 or +8; sixteen scales about it compete. */
static void fit_q4(struct Fit *best, const struct FloatGroup *group, const float *extreme, struct Range range)
{
    FOR_ROWS best->scale[r] = extreme[r] / -8.0f;
    measure(best, group, range);
    for (int i = 0; i < 16; i++) {
        struct Fit fit = { 0 };
        float end = -(6.8f + 0.1f * (float)i);
        FOR_ROWS fit.scale[r] = extreme[r] / end;
        measure(&fit, group, range);
        keep_better(best, &fit, NULL);
    }
}

/* Sixteen step sizes; for the codes of each, scale and minimum by least squares. */
static void fit_q4m(struct Fit *best, const struct FloatGroup *group, const float *low, const float *high,
                    struct Range range)
{
    FOR_ROWS
    {
        best->scale[r] = (high[r] - low[r]) / 15.0f;
        best->minimum[r] = low[r];
    }
    measure(best, group, range);
    const float n = (float)group->n_columns;
    for (int i = 0; i < 16; i++) {
        float sum_q[LANES] = { 0 }, sum_qq[LANES] = { 0 }, sum_x[LANES] = { 0 }, sum_qx[LANES] = { 0 };
        float step[LANES], may_win[LANES];
        FOR_ROWS step[r] = (high[r] - low[r]) / (13.0f + 0.2f * (float)i);
        for (int c = 0; c < group->n_columns; c++)
            FOR_ROWS
            {
                float x = group->x[c][r], q = code_of(x, step[r], low[r], range);
                sum_q[r] += q;
                sum_qq[r] += q * q;
                sum_x[r] += x;
                sum_qx[r] += q * x;
            }
        struct Fit fit;
        FOR_ROWS
        {
            may_win[r] = n * sum_qq[r] - sum_q[r] * sum_q[r];   /* the determinant */
            fit.scale[r] = (n * sum_qx[r] - sum_q[r] * sum_x[r]) / may_win[r];
            fit.minimum[r] = (sum_x[r] - fit.scale[r] * sum_q[r]) / n;
        }
        measure(&fit, group, range);
        keep_better(best, &fit, may_win);
    }
}

/* The least and the greatest value of each row; false if one is not finite, or if they lie too far apart. */
static bool find_ends(const struct FloatGroup *group, float *low, float *high)
{
    float not_finite[LANES] = { 0 }, sum = 0.0f;
    FOR_ROWS low[r] = high[r] = group->x[0][r];
    for (int c = 0; c < group->n_columns; c++)
        FOR_ROWS
        {
            float x = group->x[c][r];
            not_finite[r] += x - x;
            low[r] = x < low[r] ? x : low[r];
            high[r] = x > high[r] ? x : high[r];
        }
    FOR_ROWS sum += not_finite[r] + (high[r] - low[r] < FLT_MAX ? 0.0f : 1.0f);
    return sum == 0.0f;
}

static void encode(const struct Fit *fit, const struct FloatGroup *group, int n_columns, struct Range range,
                   struct Words *words)
{
    float divisor[LANES];
    FOR_ROWS divisor[r] = divisor_of(fit->scale[r]);
    memset(words, 0, sizeof *words);
    for (int c = 0; c < n_columns; c++) {
        const float *x = c < group->n_columns ? group->x[c] : fit->minimum;
        uint32_t *word = words->word[c / 4];
        const int shift = c % 4 * 8;
        FOR_ROWS
        {
            int32_t code = (int32_t)code_of(x[r], divisor[r], fit->minimum[r], range) + range.offset;
            word[r] |= ((uint32_t)code & 0xff) << shift;
        }
    }
}

bool quantize_group(const struct Format *format, const struct FloatGroup *group, uint16_t *scales, uint16_t *minima,
                    struct Words *words)
{
    struct Fit fit = { 0 };
    struct Range range;
    float low[LANES], high[LANES], extreme[LANES];
    if (!format->group || !format_takes_floats(format) || !find_ends(group, low, high))
        return false;
    FOR_ROWS extreme[r] = -low[r] > high[r] ? low[r] : high[r];
    if (format->bits == 8) {
        range = (struct Range){ -127.0f, 127.0f, 0 };
        FOR_ROWS fit.scale[r] = f32_of_f16(f16_of_f32((extreme[r] < 0.0f ? -extreme[r] : extreme[r]) / 127.0f));
    } else if (format->minimum) {
        range = (struct Range){ 0.0f, 15.0f, 0 };
        fit_q4m(&fit, group, low, high, range);
    } else {
        range = (struct Range){ -8.0f, 7.0f, 8 };
        fit_q4(&fit, group, extreme, range);
    }
    float not_finite = 0.0f;
    FOR_ROWS
    {
        scales[r] = f16_of_f32(fit.scale[r]);
        minima[r] = f16_of_f32(fit.minimum[r]);
        not_finite += (fit.scale[r] - fit.scale[r]) + (fit.minimum[r] - fit.minimum[r]);
    }
    if (not_finite != 0.0f)
        return false;
    encode(&fit, group, format->group, range, words);
    return true;
}
