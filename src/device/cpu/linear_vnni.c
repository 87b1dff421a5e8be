/* linear_vnni.c - AVX-512 VNNI kernels: quantised weights, int8 activations. Layout and order: linear_kernel.h.
 *
 * Quantised, per block of 32 and tile of 16 outputs: the block is unpacked once in registers and multiplied with up to
 * ROWS_MAX rows; 8 vpdpbusd a row take their activations as 4-byte broadcasts from memory.
 * Floor    decode: the packed bytes; Q4_1 320 bytes are 12 loads, 12 unpacking and 14 arithmetic instructions, about 13
 *          cycles, where memory needs 32 (10 bytes a cycle of one core). Measured: bench/cpu/README.md. */
#include "device/cpu/linear_avx512.h"

#include <assert.h>

enum { ROWS_MAX = 8 };

/* --- quantised --- */

FORCE_INLINE __m512i dot_groups(__m512i acc, const __m512i *u, const int8_t *q, int groups)
{
    for (int g = 0; g < groups; g++) {
        int32_t four;
        memcpy(&four, q + 4 * g, 4);
        acc = _mm512_dpbusd_epi32(acc, u[g], _mm512_set1_epi32(four));
    }
    return acc;
}

/* zero * -sum(q), from off = -128 * sum(q). */
FORCE_INLINE __m512i zero_start(int32_t off, int zero)
{
    if (zero == 0) return _mm512_setzero_si512();
    return _mm512_srai_epi32(_mm512_set1_epi32(off), (unsigned)__builtin_ctz(128 / (unsigned)zero));
}

FORCE_INLINE __m512 add_part(__m512 acc, __m512i dot, __m512 d, __m512 m, float dx, float sx,
                             bool has_min)
{
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(d, _mm512_set1_ps(dx)), acc);
    return has_min ? _mm512_fmadd_ps(m, _mm512_set1_ps(sx), acc) : acc;
}

FORCE_INLINE __m512 add_block(enum dtype dtype, __m512 acc, const struct vec_block *w,
                              const int8_t *q, const struct q8_block *x)
{
    const int zero = vec_zero(dtype), parts = vec_parts(dtype);
    const bool has_min = vec_has_min(dtype);

    if (parts == 1) {
        __m512i dot = dot_groups(zero_start(x->off, zero), w->u, q, 8);
        return add_part(acc, dot, w->d[0], w->m[0], x->dx, x->sx, has_min);
    }
    int32_t low = x->off_low, high = x->off - low;
    float dx = x->dx;
    __m512i dot = dot_groups(zero_start(low, zero), w->u, q, 4);
    acc = add_part(acc, dot, w->d[0], w->m[0], dx, dx * (float)(low / -128), has_min);
    dot = dot_groups(zero_start(high, zero), w->u + 4, q + 16, 4);
    return add_part(acc, dot, w->d[1], w->m[1], dx, dx * (float)(high / -128), has_min);
}

FORCE_INLINE void vnni_rows(enum dtype dtype, const struct linear *linear, const void *input,
                            uint32_t row, const uint32_t count, float *y, uint64_t y_stride,
                            uint32_t tile)
{
    const uint32_t cols = linear->weight.cols, blocks = cols / QBLOCK;
    const struct vec_tile t = vec_tile(dtype, linear->packed, tile, blocks);
    const __mmask16 lanes = tile_mask(linear, tile);
    const size_t x_stride = q8_row_bytes(cols);
    /* Four rows to a base, so that rows need no pointer each (there are not enough registers for those). */
    const int8_t *q[ROWS_MAX / 4], *x[ROWS_MAX / 4];
    __m512 acc[ROWS_MAX];

    for (uint32_t i = 0; i < ROWS_MAX / 4; i++) {
        q[i] = q8_row_q(input, row, cols) + i * 4 * x_stride;
        x[i] = q[i] + cols;
    }
    for (uint32_t r = 0; r < count; r++)
        acc[r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++) {
        struct vec_block w;
        vec_block_load(dtype, &t, b, &w);
        vec_prefetch(dtype, &t, b);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < count; r++) {
            const void *block = x[r / 4] + r % 4 * x_stride;
            acc[r] = add_block(dtype, acc[r], &w, q[r / 4] + r % 4 * x_stride, block);
        }
        for (uint32_t i = 0; i < ROWS_MAX / 4; i++) {
            q[i] += QBLOCK;
            x[i] += sizeof(struct q8_block);
        }
    }
    for (uint32_t r = 0; r < count; r++)
        _mm512_mask_storeu_ps(y + (row + r) * y_stride + (size_t)tile * LANES, lanes, acc[r]);
}

FORCE_INLINE void vnni_tile(enum dtype dtype, const struct linear *linear, const void *input,
                            uint32_t row, uint32_t rows, float *y, uint64_t y_stride, uint32_t tile)
{
    for (; rows - row >= 8; row += 8)
        vnni_rows(dtype, linear, input, row, 8, y, y_stride, tile);
    if (rows - row >= 4) {
        vnni_rows(dtype, linear, input, row, 4, y, y_stride, tile);
        row += 4;
    }
    if (rows - row >= 2) {
        vnni_rows(dtype, linear, input, row, 2, y, y_stride, tile);
        row += 2;
    }
    if (rows - row >= 1) vnni_rows(dtype, linear, input, row, 1, y, y_stride, tile);
}

#define VNNI_KERNEL(NAME, DTYPE)                                                          \
    static void tile_##NAME(const struct linear *linear, const void *input, uint32_t row, \
                            uint32_t rows, float *y, uint64_t y_stride, uint32_t tile)    \
    {                                                                                     \
        vnni_tile(DTYPE, linear, input, row, rows, y, y_stride, tile);                    \
    }
VNNI_KERNEL(q4_0, DTYPE_Q4_0)
VNNI_KERNEL(q4_1, DTYPE_Q4_1)
VNNI_KERNEL(q5_0, DTYPE_Q5_0)
VNNI_KERNEL(q5_1, DTYPE_Q5_1)
VNNI_KERNEL(q8_0, DTYPE_Q8_0)
VNNI_KERNEL(iq4_nl, DTYPE_IQ4_NL)
VNNI_KERNEL(mxfp4, DTYPE_MXFP4)
VNNI_KERNEL(q2_k, DTYPE_Q2_K)
VNNI_KERNEL(q3_k, DTYPE_Q3_K)
VNNI_KERNEL(q4_k, DTYPE_Q4_K)
VNNI_KERNEL(q5_k, DTYPE_Q5_K)
VNNI_KERNEL(q6_k, DTYPE_Q6_K)
VNNI_KERNEL(iq4_xs, DTYPE_IQ4_XS)
#undef VNNI_KERNEL

vnni_tile_fn *linear_vnni_tile(enum dtype dtype)
{
    static vnni_tile_fn *const tiles[DTYPE_COUNT] = {
        [DTYPE_Q4_0] = tile_q4_0,     [DTYPE_Q4_1] = tile_q4_1, [DTYPE_Q5_0] = tile_q5_0,
        [DTYPE_Q5_1] = tile_q5_1,     [DTYPE_Q8_0] = tile_q8_0, [DTYPE_IQ4_NL] = tile_iq4_nl,
        [DTYPE_MXFP4] = tile_mxfp4,   [DTYPE_Q2_K] = tile_q2_k, [DTYPE_Q3_K] = tile_q3_k,
        [DTYPE_Q4_K] = tile_q4_k,     [DTYPE_Q5_K] = tile_q5_k, [DTYPE_Q6_K] = tile_q6_k,
        [DTYPE_IQ4_XS] = tile_iq4_xs,
    };
    return tiles[dtype];
}

static void run_vnni(const struct linear *linear, const void *input, uint32_t rows, float *y,
                     uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    vnni_tile_fn *tile_rows = linear_vnni_tile(linear->weight.dtype);
    for (uint32_t tile = tile_begin; tile < tile_end; tile++)
        tile_rows(linear, input, 0, rows, y, y_stride, tile);
}

linear_run_fn *linear_vnni_quant(enum dtype dtype)
{
    return linear_vnni_tile(dtype) ? run_vnni : NULL;
}
