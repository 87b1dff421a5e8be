#include "device/dummy_weights.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"

/* Where a block's half-precision scales stand (ggml's layouts), and how wide its quants spread: the standard deviation of
 * the values is about `spread` times the first scale. */
struct block_scales {
    enum dtype dtype;
    int16_t d_at, min_at; /* byte offsets; -1: none */
    float spread;
    float min_ratio; /* min = d * min_ratio centres the quants on zero */
};
static const struct block_scales block_scales[] = {
    {DTYPE_Q4_0, 0, -1, 4.6f, 0},      {DTYPE_Q4_1, 0, 2, 4.6f, -7.5f},
    {DTYPE_Q5_0, 0, -1, 9.2f, 0},      {DTYPE_Q5_1, 0, 2, 9.2f, -15.5f},
    {DTYPE_Q8_0, 0, -1, 74.0f, 0},     {DTYPE_Q2_K, 80, 82, 12.0f, 1.5f},
    {DTYPE_Q3_K, 108, -1, 42.0f, 0},   {DTYPE_Q4_K, 0, 2, 200.0f, 7.5f},
    {DTYPE_Q5_K, 0, 2, 400.0f, 15.5f}, {DTYPE_Q6_K, 208, -1, 1370.0f, 0},
    {DTYPE_IQ4_NL, 0, -1, 70.0f, 0},   {DTYPE_IQ4_XS, 0, -1, 1300.0f, 0},
};

static uint64_t row_seed(const struct plan_weight *weight, uint32_t row)
{
    return hash_mix64(weight->dummy_seed ^ hash_mix64((uint64_t)row + 0x9e3779b97f4a7c15u));
}

static float value_at(const struct plan_weight *weight, uint64_t seed, uint32_t col)
{
    double unit = (double)(hash_mix64(seed + col) >> 11) * 0x1p-52 - 1; /* -1 .. 1 */

    if (weight->rows == 1)
        return (float)(strstr(weight->name, "norm") ? 1 + unit * 0.1 : unit * 0.02);
    return (float)(unit * sqrt(3.0 / weight->cols)); /* variance 1/cols keeps a product's size */
}

static bool write_float(enum dtype dtype, float value, uint32_t col, void *dst)
{
    uint16_t half;

    switch (dtype) {
    case DTYPE_F32: memcpy((char *)dst + 4 * (size_t)col, &value, 4); return true;
    case DTYPE_F16: half = f32_to_f16(value); break;
    case DTYPE_BF16: half = f32_to_bf16(value); break;
    default: return false;
    }
    memcpy((char *)dst + 2 * (size_t)col, &half, 2);
    return true;
}

static void fill_random(uint64_t seed, unsigned char *dst, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t bits = hash_mix64(seed + at / 8 * 0x9e3779b97f4a7c15u + 1);
        memcpy(dst + at, &bits, bytes - at < 8 ? bytes - at : 8);
    }
}

static void set_scales(const struct plan_weight *weight, unsigned char *block)
{
    float sigma = 1.0f / sqrtf((float)weight->cols);

    if (weight->dtype == DTYPE_MXFP4) { /* one power of two; its quants spread by about 3 */
        block[0] = (unsigned char)(127 + (int)floorf(log2f(sigma / 3)));
        return;
    }
    for (size_t i = 0; i < sizeof block_scales / sizeof *block_scales; i++) {
        const struct block_scales *s = &block_scales[i];
        if (s->dtype != weight->dtype) continue;
        float d = sigma / s->spread;
        uint16_t half = f32_to_f16(d);
        memcpy(block + s->d_at, &half, 2);
        half = f32_to_f16(d * s->min_ratio);
        if (s->min_at >= 0) memcpy(block + s->min_at, &half, 2);
    }
}

void dummy_weight_row(const struct plan_weight *weight, uint32_t row, void *dst)
{
    const struct dtype_info *info = dtype_info(weight->dtype);
    uint64_t seed = row_seed(weight, row), bytes = dtype_row_bytes(weight->dtype, weight->cols);
    unsigned char *block = dst;

    assert(row < weight->rows && bytes);
    if (info->is_float) {
        for (uint32_t col = 0; col < weight->cols; col++)
            write_float(weight->dtype, value_at(weight, seed, col), col, dst);
        return;
    }
    fill_random(seed, dst, bytes);
    if (info->block_elements == 1) { /* FP8: exponents below 1, no NaN */
        for (uint64_t i = 0; i < bytes; i++)
            block[i] &= 0xb7;
        return;
    }
    for (uint64_t at = 0; at < bytes; at += info->block_bytes)
        set_scales(weight, block + at);
}
