/* linear_amx.c - AMX int8 tiles for many rows of quantised weights. Layout and order of sums: linear_kernel.h.
 *
 * A tile of 16 outputs is unpacked once, SPAN_BLOCKS blocks at a time, to signed bytes and float scales (in L1), and
 * multiplied with 16 rows at a time: TDPBSSD gives the 16 x 16 exact integer dots of one 32-block, stored to a buffer,
 * and vectors scale and add them. The scales change every 32 weights, so a TMUL is half as deep as it could be (8 of 16
 * rows of B); what costs is not TMUL but the 16 x {convert, scale, add[, minimum]} per 16 x 16 x 32 products.
 * Sums stay in registers over a span and wait in y between spans. Rows left over, and batches
 * of fewer than AMX_ROWS_MIN, go through the VNNI kernel, whose sums are the same.
 * Formats with two scales in a block (Q2_K, Q3_K, Q6_K) take half as deep a TMUL twice, and twice the vectors.
 * Floor    64 vector instructions of two ports = 32 cycles per 8192 products with a minimum, 24 without.
 * Measured bench/cpu/README.md.  Source: Intel SDM vol. 1, 18; optimisation manual, 20 (AMX). */
#include "device/cpu/linear_avx512.h"

#include <assert.h>

enum {
    AMX_ROWS = 16,
    AMX_ROWS_MIN =
        48, /* fewer rows do not pay for unpacking a tile to L1: at 16, VNNI is 1.1 to 1.2 times as fast */
    SPAN_BLOCKS = 64,
    PHASE_UNITS = 4
};

/* 64 blocks are 2048 columns: 32 KiB of bytes and up to 16 KiB of scales. A unit is what has one scale: a block of 32
 * weights, or half of one in the formats with two parts. */
struct span {
    int8_t w[SPAN_BLOCKS][8][64];
    float d[SPAN_BLOCKS * 2][LANES], m[SPAN_BLOCKS * 2][LANES];
    int32_t dots[2][PHASE_UNITS][AMX_ROWS][LANES];
};

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(struct tile_config) == 64, "LDTILECFG reads 64 bytes");

/* tmm0-3: dots, 16 rows x 16 int32; tmm4, 5: activations, 16 rows x 32 bytes; tmm6, 7: weights, 8 x 16 x 4 bytes. With
 * two parts half of both. */
static void configure_tiles(int parts)
{
    struct tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.row_bytes[t] = t == 4 || t == 5 ? (uint16_t)(QBLOCK / parts) : 64;
        c.rows[t] = t >= 6 ? (uint8_t)(8 / parts) : 16;
    }
    _tile_loadconfig(&c);
}

FORCE_INLINE void span_load(enum dtype dtype, const struct vec_tile *t, uint32_t first,
                            uint32_t blocks, struct span *s)
{
    const __m512i zero = _mm512_set1_epi8((char)vec_zero(dtype));
    for (uint32_t b = 0; b < blocks; b++) {
        struct vec_block w;
        vec_block_load(dtype, t, first + b, &w);
        for (int g = 0; g < 8; g++)
            _mm512_store_si512(s->w[b][g], _mm512_sub_epi8(w.u[g], zero));
        for (uint32_t part = 0; part < (uint32_t)vec_parts(dtype); part++) {
            const uint32_t unit = b * (uint32_t)vec_parts(dtype) + part;
            _mm512_store_ps(s->d[unit], w.d[part]);
            if (vec_has_min(dtype)) _mm512_store_ps(s->m[unit], w.m[part]);
        }
    }
}

#define DOT(ACC, A, B, I)                                               \
    do {                                                                \
        _tile_zero(ACC);                                                \
        _tile_loadd(A, q + (size_t)(I)*QBLOCK / (size_t)parts, stride); \
        _tile_loadd(B, w + (size_t)(I)*512 / (size_t)parts, 64);        \
        _tile_dpbssd(ACC, A, B);                                        \
    } while (0)

/* Dots of PHASE_UNITS units; those past `units` are not touched. */
FORCE_INLINE void phase_dots(const int parts, const int8_t *q, size_t stride, const int8_t *w,
                             uint32_t units, int32_t (*dots)[AMX_ROWS][LANES])
{
    DOT(0, 4, 6, 0);
    if (units > 1) DOT(1, 5, 7, 1);
    if (units > 2) DOT(2, 4, 6, 2);
    if (units > 3) DOT(3, 5, 7, 3);
    _tile_stored(0, dots[0], 64);
    if (units > 1) _tile_stored(1, dots[1], 64);
    if (units > 2) _tile_stored(2, dots[2], 64);
    if (units > 3) _tile_stored(3, dots[3], 64);
}

/* dx times the sum of a unit's activations, as linear_vnni.c has it. */
FORCE_INLINE float unit_sx(const int parts, const struct q8_block *x, const uint32_t part)
{
    if (parts == 1) return x->sx;
    return x->dx * (float)((part == 0 ? x->off_low : x->off - x->off_low) / -128);
}

/* x: the struct q8_block of row 0 and the block of unit u, the first of its block, rows `stride` bytes apart. Four rows to a
 * base pointer: sixteen pointers would not fit the registers. */
FORCE_INLINE void phase_add(const int parts, bool has_min, const struct span *s, uint32_t u,
                            const uint32_t units, const uint8_t *x, size_t stride,
                            int32_t (*dots)[AMX_ROWS][LANES], __m512 acc[AMX_ROWS])
{
    const uint8_t *base[4] = {x, x + 4 * stride, x + 8 * stride, x + 12 * stride};

    for (uint32_t i = 0; i < units; i++) {
        const uint32_t part = i % (uint32_t)parts;
        const __m512 d = _mm512_load_ps(s->d[u + i]), m = _mm512_load_ps(s->m[u + i]);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < AMX_ROWS; r++) {
            const struct q8_block *block =
                (const struct q8_block *)(const void *)(base[r / 4] + r % 4 * stride);
            __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots[i][r]));
            __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(block->dx));
            acc[r] = _mm512_fmadd_ps(dot, scale, acc[r]);
            if (has_min)
                acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(unit_sx(parts, block, part)), acc[r]);
        }
        for (int j = 0; j < 4 && part + 1 == (uint32_t)parts; j++)
            base[j] += sizeof(struct q8_block);
    }
}

/* 16 rows over one span. The dots of a phase are made while those of the one before are added. */
FORCE_INLINE void span_rows(const int parts, bool has_min, struct span *s, uint32_t first,
                            uint32_t blocks, const struct linear *linear, const void *input,
                            uint32_t row, float *y, uint64_t y_stride, __mmask16 lanes)
{
    const uint32_t cols = linear->weight.cols;
    const size_t stride = q8_row_bytes(cols);
    const int8_t *q = q8_row_q(input, row, cols) + (size_t)first * QBLOCK;
    const uint8_t *x = (const uint8_t *)(q8_row_blocks(input, row, cols) + first);
    __m512 acc[AMX_ROWS];
    uint32_t turn = 0;

#pragma GCC unroll 16
    for (uint32_t r = 0; r < AMX_ROWS; r++)
        acc[r] = first == 0 ? _mm512_setzero_ps()
                            : _mm512_maskz_loadu_ps(lanes, y + (row + r) * y_stride);
    const uint32_t units = blocks * (uint32_t)parts;
    const size_t q_bytes = QBLOCK / (size_t)parts, w_bytes = 512 / (size_t)parts;

    phase_dots(parts, q, stride, s->w[0][0], units, s->dots[0]);
    for (uint32_t u = 0; u < units; u += PHASE_UNITS, turn ^= 1) {
        uint32_t next = u + PHASE_UNITS, count = units - u;
        if (next < units)
            phase_dots(parts, q + next * q_bytes, stride, s->w[0][0] + next * w_bytes, units - next,
                       s->dots[turn ^ 1]);
        if (count >= PHASE_UNITS)
            phase_add(parts, has_min, s, u, PHASE_UNITS, x, stride, s->dots[turn], acc);
        else
            phase_add(parts, has_min, s, u, count, x, stride, s->dots[turn], acc);
        x += PHASE_UNITS / parts * (int)sizeof(struct q8_block);
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < AMX_ROWS; r++)
        _mm512_mask_storeu_ps(y + (row + r) * y_stride, lanes, acc[r]);
}

FORCE_INLINE void amx_tile(enum dtype dtype, const struct linear *linear, const void *input,
                           uint32_t rows, float *y, uint64_t y_stride, uint32_t tile)
{
    const uint32_t blocks = linear->weight.cols / QBLOCK;
    const struct vec_tile t = vec_tile(dtype, linear->packed, tile, blocks);
    struct span s __attribute__((aligned(64)));

    for (uint32_t first = 0; first < blocks; first += SPAN_BLOCKS) {
        uint32_t count = blocks - first < SPAN_BLOCKS ? blocks - first : SPAN_BLOCKS;
        span_load(dtype, &t, first, count, &s);
        for (uint32_t row = 0; row < rows; row += AMX_ROWS)
            span_rows(vec_parts(dtype), vec_has_min(dtype), &s, first, count, linear, input, row,
                      y + (size_t)tile * LANES, y_stride, tile_mask(linear, tile));
    }
}

#define AMX_KERNEL(NAME, DTYPE)                                                            \
    static void tile_##NAME(const struct linear *linear, const void *input, uint32_t rows, \
                            float *y, uint64_t y_stride, uint32_t tile)                    \
    {                                                                                      \
        amx_tile(DTYPE, linear, input, rows, y, y_stride, tile);                           \
    }
AMX_KERNEL(q4_0, DTYPE_Q4_0)
AMX_KERNEL(q4_1, DTYPE_Q4_1)
AMX_KERNEL(q5_0, DTYPE_Q5_0)
AMX_KERNEL(q5_1, DTYPE_Q5_1)
AMX_KERNEL(q8_0, DTYPE_Q8_0)
AMX_KERNEL(iq4_nl, DTYPE_IQ4_NL)
AMX_KERNEL(mxfp4, DTYPE_MXFP4)
AMX_KERNEL(q4_k, DTYPE_Q4_K)
AMX_KERNEL(q5_k, DTYPE_Q5_K)
AMX_KERNEL(iq4_xs, DTYPE_IQ4_XS)
AMX_KERNEL(q2_k, DTYPE_Q2_K)
AMX_KERNEL(q3_k, DTYPE_Q3_K)
AMX_KERNEL(q6_k, DTYPE_Q6_K)
#undef AMX_KERNEL

/* rows: a multiple of AMX_ROWS. */
typedef void amx_tile_fn(const struct linear *linear, const void *input, uint32_t rows, float *y,
                         uint64_t y_stride, uint32_t tile);
static amx_tile_fn *const amx_tiles[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = tile_q4_0,     [DTYPE_Q4_1] = tile_q4_1, [DTYPE_Q5_0] = tile_q5_0,
    [DTYPE_Q5_1] = tile_q5_1,     [DTYPE_Q8_0] = tile_q8_0, [DTYPE_IQ4_NL] = tile_iq4_nl,
    [DTYPE_MXFP4] = tile_mxfp4,   [DTYPE_Q4_K] = tile_q4_k, [DTYPE_Q5_K] = tile_q5_k,
    [DTYPE_IQ4_XS] = tile_iq4_xs, [DTYPE_Q2_K] = tile_q2_k, [DTYPE_Q3_K] = tile_q3_k,
    [DTYPE_Q6_K] = tile_q6_k,
};

static void run_amx(const struct linear *linear, const void *input, uint32_t rows, float *y,
                    uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    const uint32_t whole = rows < AMX_ROWS_MIN ? 0 : rows / AMX_ROWS * AMX_ROWS;
    amx_tile_fn *amx_rows = amx_tiles[linear->weight.dtype];
    vnni_tile_fn *vnni_rows = linear_vnni_tile(linear->weight.dtype);

    if (whole) configure_tiles(vec_parts(linear->weight.dtype));
    for (uint32_t tile = tile_begin; tile < tile_end; tile++) {
        if (whole) amx_rows(linear, input, whole, y, y_stride, tile);
        if (whole < rows) vnni_rows(linear, input, whole, rows, y, y_stride, tile);
    }
    if (whole) _tile_release(); /* so that context switches need not carry 8 KiB */
}

linear_run_fn *linear_amx_quant(enum dtype dtype)
{
    return amx_tiles[dtype] ? run_amx : NULL;
}
