/* Floats to integer codes, group by group. A scale is rounded to f16 first and then divided by. */
#include "codes.h"
#include "../runtime/floats.h"

static float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; } /* |x| < 2^22, ties to even */

static float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* One group as scale and minimum; returns the squared error. */
struct Fit {
    uint16_t scale, minimum;
    float error;
    uint8_t q[GROUP];
};

static bool is_finite_f16(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

static void encode(struct Fit *fit, const float *x, int n, float scale, float minimum, float low, float high,
                   int offset)
{
    fit->scale = f16_from_f32(scale);
    fit->minimum = f16_from_f32(minimum);
    if (!is_finite_f16(fit->scale) || !is_finite_f16(fit->minimum)) {   /* quantize_row refuses it */
        fit->error = FLT_MAX;
        return;
    }
    scale = f32_from_f16(fit->scale);
    minimum = f32_from_f16(fit->minimum);
    fit->error = 0.0f;
    for (int i = 0; i < GROUP; i++) {
        float value = i < n ? x[i] : minimum;
        float code = scale == 0.0f ? 0.0f : nearest(clamped((value - minimum) / scale, low - 1.0f, high + 1.0f));
        code = clamped(code, low, high);
        float miss = value - (code * scale + minimum);
        fit->error += miss * miss;
        fit->q[i] = (uint8_t)(int)(code + (float)offset);
    }
}

static void fit_q8(struct Fit *fit, const float *x, int n, float low, float high)
{
    float largest = -low > high ? -low : high;
    encode(fit, x, n, largest / 127.0f, 0.0f, -127.0f, 127.0f, 0);
}

/* The value of largest magnitude lies near −8 or +8; sixteen scales about it compete. */
static void fit_q4(struct Fit *best, const float *x, int n, float low, float high)
{
    float extreme = -low > high ? low : high;
    encode(best, x, n, extreme / -8.0f, 0.0f, -8.0f, 7.0f, 8);
    for (int i = 0; i < 16; i++) {
        struct Fit fit;
        encode(&fit, x, n, extreme / -(6.8f + 0.1f * (float)i), 0.0f, -8.0f, 7.0f, 8);
        if (fit.error < best->error)
            *best = fit;
    }
}

/* Sixteen step sizes; for the codes of each, scale and minimum by least squares. */
static void fit_q4m(struct Fit *best, const float *x, int n, float low, float high)
{
    encode(best, x, n, (high - low) / 15.0f, low, 0.0f, 15.0f, 0);
    for (int i = 0; i < 16 && high > low; i++) {
        float step = (high - low) / (13.0f + 0.2f * (float)i);
        float sum_q = 0, sum_qq = 0, sum_x = 0, sum_qx = 0;
        for (int k = 0; k < n; k++) {
            float q = clamped(nearest((x[k] - low) / step), 0.0f, 15.0f);
            sum_q += q;
            sum_qq += q * q;
            sum_x += x[k];
            sum_qx += q * x[k];
        }
        float determinant = (float)n * sum_qq - sum_q * sum_q;
        if (!(determinant > 0.0f))
            continue;
        float scale = ((float)n * sum_qx - sum_q * sum_x) / determinant;
        struct Fit fit;
        encode(&fit, x, n, scale, (sum_x - scale * sum_q) / (float)n, 0.0f, 15.0f, 0);
        if (fit.error < best->error)
            *best = fit;
    }
}

bool quantize_row(const struct Format *format, const float *x, int32_t n_columns, struct Codes codes)
{
    for (int32_t start = 0, g = 0; start < n_columns; start += GROUP, g++) {
        int n = n_columns - start < GROUP ? n_columns - start : GROUP;
        float low = x[start], high = x[start];
        for (int i = 0; i < n; i++) {
            float value = x[start + i];
            if (!(value - value == 0.0f))
                return false;
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        if (!(high - low < FLT_MAX))
            return false;
        struct Fit fit;
        switch (format->id) {
        case FORMAT_Q8: fit_q8(&fit, x + start, n, low, high); break;
        case FORMAT_Q4: fit_q4(&fit, x + start, n, low, high); break;
        case FORMAT_Q4M: fit_q4m(&fit, x + start, n, low, high); break;
        default: return false;
        }
        if (!is_finite_f16(fit.scale) || !is_finite_f16(fit.minimum))
            return false;
        codes.scales[g] = fit.scale;
        codes.minima[g] = fit.minimum;
        memcpy(codes.q + start, fit.q, GROUP);
    }
    return true;
}
