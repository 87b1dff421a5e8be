/* linear_avx512.c - AVX-512 kernels for float weights and for `exact`, and the quantiser of activations.
 * Layout and order of sums: linear_kernel.h. A group of tiles shares each broadcast activation, a group of rows each
 * weight: 2 tiles x 8 rows are 16 independent sums, enough for the latency of a multiply-add on two ports. */
#include "device/cpu/linear_avx512.h"

#include <assert.h>

enum { ROWS_MAX = 8, TILES_MAX = 4 };

FORCE_INLINE __m512 load_weights(enum dtype dtype, const uint8_t *p)
{
    switch (dtype) {
    case DTYPE_F16: return load_f16(p);
    case DTYPE_BF16: return load_bf16(p);
    default: return _mm512_loadu_ps(p);
    }
}

/* A chunk of columns of up to TILES_MAX tiles. */
struct float_chunk {
    const uint8_t *w[TILES_MAX]; /* [count][16] elements each */
    __mmask16 lanes[TILES_MAX];
    const float *x; /* first row, at the chunk's first column */
    uint64_t x_stride;
    float *y; /* first row, at the first tile's first output */
    uint64_t y_stride;
    uint32_t count; /* columns */
    bool first;     /* y holds nothing yet */
};

FORCE_INLINE void chunk_rows(enum dtype dtype, const struct float_chunk *c, uint32_t row,
                             const uint32_t rows, const uint32_t tiles)
{
    const uint32_t size = dtype == DTYPE_F32 ? 4 : 2;
    __m512 a[TILES_MAX][ROWS_MAX];

    for (uint32_t t = 0; t < tiles; t++)
        for (uint32_t r = 0; r < rows; r++)
            a[t][r] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < c->count; k++) {
        __m512 w[TILES_MAX];
        for (uint32_t t = 0; t < tiles; t++)
            w[t] = load_weights(dtype, c->w[t] + (size_t)k * LANES * size);
        for (uint32_t r = 0; r < rows; r++) {
            __m512 x = _mm512_set1_ps(c->x[(row + r) * c->x_stride + k]);
            for (uint32_t t = 0; t < tiles; t++)
                a[t][r] = _mm512_fmadd_ps(w[t], x, a[t][r]);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t t = 0; t < tiles; t++) {
            float *y = c->y + (row + r) * c->y_stride + (size_t)t * LANES;
            __m512 sum = c->first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(c->lanes[t], y);
            _mm512_mask_storeu_ps(y, c->lanes[t], _mm512_add_ps(sum, a[t][r]));
        }
}

FORCE_INLINE void chunk_all_rows(enum dtype dtype, const struct float_chunk *c, uint32_t rows,
                                 const uint32_t tiles)
{
    uint32_t row = 0;
    for (; tiles <= 2 && rows - row >= 8; row += 8)
        chunk_rows(dtype, c, row, 8, tiles);
    for (; rows - row >= 4; row += 4)
        chunk_rows(dtype, c, row, 4, tiles);
    for (; row < rows; row++)
        chunk_rows(dtype, c, row, 1, tiles);
}

FORCE_INLINE void tiles_run(enum dtype dtype, const struct linear *linear, const void *input,
                            uint32_t rows, float *y, uint64_t y_stride, uint32_t tile,
                            const uint32_t tiles)
{
    const uint32_t cols = linear->weight.cols, size = dtype == DTYPE_F32 ? 4 : 2;
    struct float_chunk c = {.x_stride = linear_input_row_bytes(LINEAR_INPUT_F32, cols) / 4,
                            .y = y + (size_t)tile * LANES,
                            .y_stride = y_stride};

    for (uint32_t col = 0; col < cols; col += CHUNK) {
        c.count = cols - col < CHUNK ? cols - col : CHUNK;
        c.x = (const float *)input + col;
        c.first = col == 0;
        for (uint32_t t = 0; t < tiles; t++) {
            c.w[t] = (const uint8_t *)linear->packed +
                     ((uint64_t)(tile + t) * cols + col) * LANES * size;
            c.lanes[t] = tile_mask(linear, tile + t);
        }
        chunk_all_rows(dtype, &c, rows, tiles);
    }
}

FORCE_INLINE void run_float(enum dtype dtype, const struct linear *linear, const void *input,
                            uint32_t rows, float *y, uint64_t y_stride, uint32_t tile,
                            uint32_t tile_end)
{
    for (; rows < 8 && tile_end - tile >= 4; tile += 4)
        tiles_run(dtype, linear, input, rows, y, y_stride, tile, 4);
    for (; tile_end - tile >= 2; tile += 2)
        tiles_run(dtype, linear, input, rows, y, y_stride, tile, 2);
    if (tile < tile_end) tiles_run(dtype, linear, input, rows, y, y_stride, tile, 1);
}

#define FLOAT_KERNEL(NAME, DTYPE)                                                               \
    static void run_##NAME(const struct linear *linear, const void *input, uint32_t rows,       \
                           float *y, uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end) \
    {                                                                                           \
        run_float(DTYPE, linear, input, rows, y, y_stride, tile_begin, tile_end);               \
    }
FLOAT_KERNEL(f32, DTYPE_F32)
FLOAT_KERNEL(f16, DTYPE_F16)
FLOAT_KERNEL(bf16, DTYPE_BF16)
#undef FLOAT_KERNEL

linear_run_fn *linear_avx512_float(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return run_f32;
    case DTYPE_F16: return run_f16;
    case DTYPE_BF16: return run_bf16;
    default: return NULL;
    }
}

static void decode_tile_chunk(const struct linear *linear, uint32_t tile, uint32_t col,
                              uint32_t count, float *out)
{
    const enum dtype dtype = linear->weight.dtype;
    const struct vec_tile t = vec_tile(dtype, linear->packed, tile, linear->weight.cols / QBLOCK);
    const __m512i byte = _mm512_set1_epi32(255), zero = _mm512_set1_epi32(vec_zero(dtype));

    for (uint32_t b = 0; b < count / QBLOCK; b++) {
        struct vec_block w;
        vec_block_load(dtype, &t, col / QBLOCK + b, &w);
        for (uint32_t k = 0; k < QBLOCK; k++, out += LANES) {
            uint32_t part = vec_parts(dtype) == 2 ? k / 16 : 0;
            __m512i u = _mm512_and_si512(_mm512_srli_epi32(w.u[k / 4], 8 * (k % 4)), byte);
            __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(u, zero)), w.d[part]);
            _mm512_store_ps(out, vec_has_min(dtype) ? _mm512_add_ps(v, w.m[part]) : v);
        }
    }
}

void linear_avx512_exact(const struct linear *linear, const void *input, uint32_t rows, float *y,
                         uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    const uint32_t cols = linear->weight.cols;
    float w[CHUNK * LANES] __attribute__((aligned(64)));
    struct float_chunk c = {.w = {(const uint8_t *)w},
                            .x_stride = linear_input_row_bytes(LINEAR_INPUT_F32, cols) / 4,
                            .y_stride = y_stride};

    for (uint32_t tile = tile_begin; tile < tile_end; tile++)
        for (uint32_t col = 0; col < cols; col += CHUNK) {
            c.count = cols - col < CHUNK ? cols - col : CHUNK;
            c.x = (const float *)input + col;
            c.y = y + (size_t)tile * LANES;
            c.first = col == 0;
            c.lanes[0] = tile_mask(linear, tile);
            if (linear->in_rows)
                decode_rows_chunk(linear, tile, col, c.count, w);
            else
                decode_tile_chunk(linear, tile, col, c.count, w);
            chunk_all_rows(DTYPE_F32, &c, rows, 1);
        }
}

/* --- activations to int8, see q8_row() --- */

FORCE_INLINE int32_t sum_16(__m512i v)
{
    return _mm512_reduce_add_epi32(v);
}

static bool quantise_block(const float *x, int8_t *q, struct q8_block *block)
{
    const __m512i abs_mask = _mm512_set1_epi32(0x7fffffff);
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    __m512i a0 = _mm512_and_si512(_mm512_castps_si512(x0), abs_mask);
    __m512i a1 = _mm512_and_si512(_mm512_castps_si512(x1), abs_mask);
    int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a0, a1));
    float largest;

    memcpy(&largest, &bits, 4);
    if (bits >= 0x7f800000 || largest < 1e-30f) return false;
    const __m512 scale = _mm512_set1_ps(127.0f / largest);
    __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, scale));
    __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, scale));
    int32_t low = sum_16(q0), high = sum_16(q1);
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(q1));
    const float dx = largest / 127.0f;
    *block = (struct q8_block){dx, dx * (float)(low + high), -128 * (low + high), -128 * low};
    return true;
}

void quantise_row_avx512(const float *x, uint32_t cols, void *row)
{
    int8_t *q = row;
    struct q8_block *block = (struct q8_block *)(void *)(q + cols);

    for (uint32_t b = 0; b < cols / QBLOCK; b++, q += QBLOCK, x += QBLOCK)
        if (!quantise_block(x, q, &block[b])) quantise_block_generic(x, q, &block[b]);
}
