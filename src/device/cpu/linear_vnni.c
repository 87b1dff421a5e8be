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

/* Rows of prepared activations at one block: q and struct q8_block of row r at base[r / 4] + r % 4 * stride. Four rows to
 * a base, because there are not enough registers for a pointer each. */
struct row_bases {
    const int8_t *q[ROWS_MAX / 4], *x[ROWS_MAX / 4];
    size_t stride;
};

FORCE_INLINE const struct q8_block *row_block(const struct row_bases *rows, uint32_t r)
{
    return (const struct q8_block *)(const void *)(rows->x[r / 4] + r % 4 * rows->stride);
}

/* -128 * the sum of the activations of a part, and what dx times their sum is. */
FORCE_INLINE int32_t part_off(const struct q8_block *x, const int parts, const int part)
{
    if (parts == 1) return x->off;
    return part == 0 ? x->off_low : x->off - x->off_low;
}
FORCE_INLINE float part_sx(const struct q8_block *x, const int parts, const int part)
{
    return parts == 1 ? x->sx : x->dx * (float)(part_off(x, parts, part) / -128);
}

/* zero * -sum(q), from off = -128 * sum(q). */
FORCE_INLINE __m512i zero_start(int32_t off, int zero)
{
    if (zero == 0) return _mm512_setzero_si512();
    return _mm512_srai_epi32(_mm512_set1_epi32(off), (unsigned)__builtin_ctz(128 / (unsigned)zero));
}

/* All rows advance together, group by group: eight chains of vpdpbusd (5 cycles each) keep both ports busy, where row
 * after row would fill the scheduler with one waiting chain. */
FORCE_INLINE void add_part(enum dtype dtype, const struct vec_block *w,
                           const struct row_bases *rows, const uint32_t count, const int part,
                           __m512 acc[ROWS_MAX])
{
    const int parts = vec_parts(dtype), groups = 8 / parts;
    __m512i dot[ROWS_MAX];

#pragma GCC unroll 8
    for (uint32_t r = 0; r < count; r++)
        dot[r] = zero_start(part_off(row_block(rows, r), parts, part), vec_zero(dtype));
#pragma GCC unroll 8
    for (int g = part * groups; g < (part + 1) * groups; g++)
#pragma GCC unroll 8
        for (uint32_t r = 0; r < count; r++) {
            int32_t four;
            memcpy(&four, rows->q[r / 4] + r % 4 * rows->stride + 4 * g, 4);
            dot[r] = _mm512_dpbusd_epi32(dot[r], w->u[g], _mm512_set1_epi32(four));
        }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < count; r++) {
        const struct q8_block *x = row_block(rows, r);
        __m512 scale = _mm512_mul_ps(w->d[part], _mm512_set1_ps(x->dx));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), scale, acc[r]);
        if (vec_has_min(dtype))
            acc[r] = _mm512_fmadd_ps(w->m[part], _mm512_set1_ps(part_sx(x, parts, part)), acc[r]);
    }
}

FORCE_INLINE void vnni_rows(enum dtype dtype, const struct linear *linear, const void *input,
                            uint32_t row, const uint32_t count, float *y, uint64_t y_stride,
                            uint32_t tile)
{
    const uint32_t cols = linear->weight.cols, blocks = cols / QBLOCK;
    const struct vec_tile t = vec_tile(dtype, linear->packed, tile, blocks);
    const __mmask16 lanes = tile_mask(linear, tile);
    struct row_bases rows = {.stride = q8_row_bytes(cols)};
    __m512 acc[ROWS_MAX];

    for (uint32_t i = 0; i < ROWS_MAX / 4; i++) {
        rows.q[i] = q8_row_q(input, row, cols) + i * 4 * rows.stride;
        rows.x[i] = rows.q[i] + cols;
    }
    for (uint32_t r = 0; r < count; r++)
        acc[r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++) {
        struct vec_block w;
        vec_block_load(dtype, &t, b, &w);
        vec_prefetch(dtype, &t, b);
        for (int part = 0; part < vec_parts(dtype); part++)
            add_part(dtype, &w, &rows, count, part, acc);
        for (uint32_t i = 0; i < ROWS_MAX / 4; i++) {
            rows.q[i] += QBLOCK;
            rows.x[i] += sizeof(struct q8_block);
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
