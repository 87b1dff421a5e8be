/* linear_avx2.c - AVX2 + FMA + F16C kernels, the twins of the AVX-512 ones: a tile's 16 lanes are two registers of 8,
 * done one after the other. Layout and order of sums: linear_kernel.h.
 *
 * vpmaddubsw adds two products in 16 bits with saturation. Codes up to 15 let eight groups gather there (8 * 2 * 15 *
 * 127 = 30480), up to 31 four, up to 63 two; full bytes take the detour by |w| and x * sign(w), where 2 * 128 * 127 fits. */
#include "device/cpu/linear_kernel.h"

#include <assert.h>
#include <immintrin.h>

#define FORCE_INLINE static inline __attribute__((always_inline))

enum { HALF = 8, ROWS_MAX = 4, HALVES = 2 };

FORCE_INLINE __m256i load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
FORCE_INLINE __m256 load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
FORCE_INLINE __m256 load_bf16(const uint8_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
FORCE_INLINE __m128i load_64(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

/* Lanes of a half of a tile that are outputs, for masked loads and stores. */
FORCE_INLINE __m256i half_mask(const struct linear *linear, uint32_t tile, uint32_t half)
{
    int32_t left = (int32_t)linear->weight.rows - (int32_t)(tile * LANES + half * HALF);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* --- a block of half a tile in registers --- */

struct half_block {
    __m256i u[8];
    __m256 d[2], m[2];
};

FORCE_INLINE bool is_wide(enum dtype dtype)
{
    return dtype == DTYPE_Q8_0 || dtype == DTYPE_IQ4_NL || dtype == DTYPE_IQ4_XS ||
           dtype == DTYPE_MXFP4;
}
FORCE_INLINE bool has_plane(enum dtype dtype)
{
    return dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q5_K || dtype == DTYPE_Q6_K;
}
FORCE_INLINE bool has_min(enum dtype dtype)
{
    return dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q2_K ||
           dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K;
}
FORCE_INLINE int part_count(enum dtype dtype)
{
    return dtype == DTYPE_Q2_K || dtype == DTYPE_Q3_K || dtype == DTYPE_Q6_K ? 2 : 1;
}
/* Of the codes as multiplied: wide ones are made signed first. */
FORCE_INLINE int zero_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_Q4_0: return 8;
    case DTYPE_Q5_0: return 16;
    case DTYPE_Q3_K: return 4;
    case DTYPE_Q6_K: return 32;
    default: return 0;
    }
}

/* 32 bits to 32 bytes, each `value` or 0. */
FORCE_INLINE __m256i spread_bits(const uint8_t *bits, int value)
{
    const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2,
                                             2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit_of = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    int32_t four;
    memcpy(&four, bits, 4);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(four), byte_of), bit_of);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, bit_of), _mm256_set1_epi8((char)value));
}

FORCE_INLINE void add_plane(const uint8_t *plane, uint32_t half, int value, __m256i u[8])
{
    for (int g = 0; g < 8; g++)
        u[g] = _mm256_or_si256(u[g], spread_bits(plane + 8 * g + 4 * half, value));
}

FORCE_INLINE void load_nibbles(const uint8_t *quants, uint32_t half, __m256i u[8])
{
    const __m256i low = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; j++) {
        __m256i v = load_256(quants + 64 * j + 32 * half);
        u[j] = _mm256_and_si256(v, low);
        u[j + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    }
}

/* Wide codes become signed: table entries and bytes are stored moved up by 128. */
FORCE_INLINE void make_signed(__m256i u[8])
{
    for (int g = 0; g < 8; g++)
        u[g] = _mm256_xor_si256(u[g], _mm256_set1_epi8((char)0x80));
}

FORCE_INLINE void look_up(const uint8_t table[16], __m256i u[8])
{
    const __m256i t =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    for (int g = 0; g < 8; g++)
        u[g] = _mm256_shuffle_epi8(t, u[g]);
}

FORCE_INLINE void load_codes(enum dtype dtype, const uint8_t *quants, uint32_t half, __m256i u[8])
{
    switch (dtype) {
    case DTYPE_Q8_0:
        for (int g = 0; g < 8; g++)
            u[g] = load_256(quants + 64 * g + 32 * half);
        break;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
        for (int g = 0; g < 8; g++)
            u[g] = _mm256_setzero_si256();
        add_plane(quants, half, 1, u);
        add_plane(quants + 64, half, 2, u);
        if (dtype == DTYPE_Q3_K) add_plane(quants + 128, half, 4, u);
        break;
    default: load_nibbles(quants, half, u);
    }
    if (has_plane(dtype)) add_plane(quants + 256, half, 16, u);
    if (dtype == DTYPE_Q6_K) add_plane(quants + 320, half, 32, u);
    if (dtype == DTYPE_IQ4_NL || dtype == DTYPE_IQ4_XS) look_up(linear_iq4nl_table, u);
    if (dtype == DTYPE_MXFP4) look_up(linear_mxfp4_table, u);
    if (is_wide(dtype)) make_signed(u);
}

FORCE_INLINE __m256 u8_to_f32(__m128i v)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v));
}
FORCE_INLINE __m256 i8_to_f32(__m128i v)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
}
FORCE_INLINE __m256 negative(__m256 v)
{
    return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}

/* scales: the group's, at this half's lanes of the first 32 bytes; byte arrays start at `bytes`. */
FORCE_INLINE void load_group_scales(enum dtype dtype, const uint8_t *group, uint32_t half,
                                    uint32_t s, struct half_block *w)
{
    const uint8_t *bytes = group + HALF * half;
    const __m256 d = load_f16(group + 16 * half), dmin = load_f16(group + 32 + 16 * half);
    const __m128i low = _mm_set1_epi8(15);

    switch (dtype) {
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        w->d[0] = _mm256_mul_ps(d, u8_to_f32(load_64(bytes + 64 + 32 * s)));
        w->m[0] = negative(_mm256_mul_ps(dmin, u8_to_f32(load_64(bytes + 80 + 32 * s))));
        break;
    case DTYPE_Q2_K:
        for (uint32_t h = 0; h < 2; h++) {
            __m128i code = load_64(bytes + 64 + 32 * s + 16 * h);
            __m128i min = _mm_and_si128(_mm_srli_epi16(code, 4), low);
            w->d[h] = _mm256_mul_ps(d, u8_to_f32(_mm_and_si128(code, low)));
            w->m[h] = negative(_mm256_mul_ps(dmin, u8_to_f32(min)));
        }
        break;
    case DTYPE_Q3_K:
    case DTYPE_Q6_K:
        for (uint32_t h = 0; h < 2; h++)
            w->d[h] = _mm256_mul_ps(d, i8_to_f32(load_64(bytes + 32 + 32 * s + 16 * h)));
        break;
    default: w->d[0] = _mm256_mul_ps(d, i8_to_f32(load_64(bytes + 32 + 16 * s)));
    }
}

FORCE_INLINE void load_scales(enum dtype dtype, const uint8_t *scales, uint32_t scale_bytes,
                              uint32_t b, uint32_t half, struct half_block *w)
{
    switch (dtype) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        w->d[0] = load_f16(scales + (size_t)b * 64 + 16 * half);
        w->m[0] = load_f16(scales + (size_t)b * 64 + 32 + 16 * half);
        break;
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL: w->d[0] = load_f16(scales + (size_t)b * 32 + 16 * half); break;
    case DTYPE_MXFP4: w->d[0] = load_bf16(scales + (size_t)b * 32 + 16 * half); break;
    default: load_group_scales(dtype, scales + (size_t)(b / 8) * scale_bytes, half, b % 8, w);
    }
}

/* --- products --- */

FORCE_INLINE __m256i pair_dots(enum dtype dtype, __m256i u, const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, 4);
    __m256i x = _mm256_set1_epi32(four);
    if (is_wide(dtype)) return _mm256_maddubs_epi16(_mm256_abs_epi8(u), _mm256_sign_epi8(x, u));
    return _mm256_maddubs_epi16(u, x);
}

FORCE_INLINE __m256i dot_groups(enum dtype dtype, __m256i acc, const __m256i *u, const int8_t *q,
                                int groups)
{
    const int together = is_wide(dtype)                   ? 1
                         : dtype == DTYPE_Q6_K            ? 2
                         : has_plane(dtype) && groups > 4 ? 4
                                                          : groups;
    for (int g = 0; g < groups; g += together) {
        __m256i pairs = pair_dots(dtype, u[g], q + 4 * g);
        for (int i = 1; i < together; i++)
            pairs = _mm256_add_epi16(pairs, pair_dots(dtype, u[g + i], q + 4 * (g + i)));
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return acc;
}

FORCE_INLINE __m256i zero_start(int32_t off, int zero)
{
    if (zero == 0) return _mm256_setzero_si256();
    return _mm256_set1_epi32(off >> __builtin_ctz(128 / (unsigned)zero));
}

FORCE_INLINE __m256 add_part(bool with_min, __m256 acc, __m256i dot, __m256 d, __m256 m, float dx,
                             float sx)
{
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(d, _mm256_set1_ps(dx)), acc);
    return with_min ? _mm256_fmadd_ps(m, _mm256_set1_ps(sx), acc) : acc;
}

FORCE_INLINE __m256 add_block(enum dtype dtype, __m256 acc, const struct half_block *w,
                              const int8_t *q, const struct q8_block *x)
{
    const int zero = zero_of(dtype);
    const bool with_min = has_min(dtype);
    const float dx = x->dx;

    if (part_count(dtype) == 1) {
        __m256i dot = dot_groups(dtype, zero_start(x->off, zero), w->u, q, 8);
        return add_part(with_min, acc, dot, w->d[0], w->m[0], dx, x->sx);
    }
    int32_t low = x->off_low, high = x->off - low;
    __m256i dot = dot_groups(dtype, zero_start(low, zero), w->u, q, 4);
    acc = add_part(with_min, acc, dot, w->d[0], w->m[0], dx, dx * (float)(low / -128));
    dot = dot_groups(dtype, zero_start(high, zero), w->u + 4, q + 16, 4);
    return add_part(with_min, acc, dot, w->d[1], w->m[1], dx, dx * (float)(high / -128));
}

FORCE_INLINE void quant_rows(enum dtype dtype, const struct linear *linear, const void *input,
                             uint32_t row, const uint32_t count, float *y, uint64_t y_stride,
                             uint32_t tile, uint32_t half)
{
    const struct quant_layout *layout = quant_layout(dtype);
    const uint32_t cols = linear->weight.cols, blocks = cols / QBLOCK;
    const uint8_t *scales =
        (const uint8_t *)linear->packed + tile * quant_tile_bytes(layout, blocks);
    const uint8_t *quants = scales + quant_scales_bytes(layout, blocks);
    const __m256i lanes = half_mask(linear, tile, half);
    const int8_t *q = q8_row_q(input, row, cols);
    const size_t x_stride = q8_row_bytes(cols);
    __m256 acc[ROWS_MAX];

    for (uint32_t r = 0; r < count; r++)
        acc[r] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, quants += layout->quant_bytes) {
        struct half_block w = {0};
        load_codes(dtype, quants, half, w.u);
        load_scales(dtype, scales, layout->scale_bytes, b, half, &w);
        for (uint32_t r = 0; r < count; r++)
            acc[r] =
                add_block(dtype, acc[r], &w, q + r * x_stride + b * QBLOCK,
                          (const struct q8_block *)(const void *)(q + r * x_stride + cols) + b);
    }
    for (uint32_t r = 0; r < count; r++)
        _mm256_maskstore_ps(y + (row + r) * y_stride + (size_t)tile * LANES + half * HALF, lanes,
                            acc[r]);
}

FORCE_INLINE void run_quant(enum dtype dtype, const struct linear *linear, const void *input,
                            uint32_t rows, float *y, uint64_t y_stride, uint32_t tile_begin,
                            uint32_t tile_end)
{
    for (uint32_t i = tile_begin * HALVES; i < tile_end * HALVES; i++) {
        uint32_t row = 0, tile = i / HALVES, half = i % HALVES;
        for (; rows - row >= ROWS_MAX; row += ROWS_MAX)
            quant_rows(dtype, linear, input, row, ROWS_MAX, y, y_stride, tile, half);
        for (; row < rows; row++)
            quant_rows(dtype, linear, input, row, 1, y, y_stride, tile, half);
    }
}

#define QUANT_KERNEL(NAME, DTYPE)                                                               \
    static void run_##NAME(const struct linear *linear, const void *input, uint32_t rows,       \
                           float *y, uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end) \
    {                                                                                           \
        run_quant(DTYPE, linear, input, rows, y, y_stride, tile_begin, tile_end);               \
    }
QUANT_KERNEL(q4_0, DTYPE_Q4_0)
QUANT_KERNEL(q4_1, DTYPE_Q4_1)
QUANT_KERNEL(q5_0, DTYPE_Q5_0)
QUANT_KERNEL(q5_1, DTYPE_Q5_1)
QUANT_KERNEL(q8_0, DTYPE_Q8_0)
QUANT_KERNEL(iq4_nl, DTYPE_IQ4_NL)
QUANT_KERNEL(mxfp4, DTYPE_MXFP4)
QUANT_KERNEL(q2_k, DTYPE_Q2_K)
QUANT_KERNEL(q3_k, DTYPE_Q3_K)
QUANT_KERNEL(q4_k, DTYPE_Q4_K)
QUANT_KERNEL(q5_k, DTYPE_Q5_K)
QUANT_KERNEL(q6_k, DTYPE_Q6_K)
QUANT_KERNEL(iq4_xs, DTYPE_IQ4_XS)
#undef QUANT_KERNEL

linear_run_fn *linear_avx2_quant(enum dtype dtype)
{
    static linear_run_fn *const runs[DTYPE_COUNT] = {
        [DTYPE_Q4_0] = run_q4_0,     [DTYPE_Q4_1] = run_q4_1, [DTYPE_Q5_0] = run_q5_0,
        [DTYPE_Q5_1] = run_q5_1,     [DTYPE_Q8_0] = run_q8_0, [DTYPE_IQ4_NL] = run_iq4_nl,
        [DTYPE_MXFP4] = run_mxfp4,   [DTYPE_Q2_K] = run_q2_k, [DTYPE_Q3_K] = run_q3_k,
        [DTYPE_Q4_K] = run_q4_k,     [DTYPE_Q5_K] = run_q5_k, [DTYPE_Q6_K] = run_q6_k,
        [DTYPE_IQ4_XS] = run_iq4_xs,
    };
    return runs[dtype];
}

/* --- floats and `exact` --- */

FORCE_INLINE __m256 load_weights(enum dtype dtype, const uint8_t *p)
{
    switch (dtype) {
    case DTYPE_F16: return load_f16(p);
    case DTYPE_BF16: return load_bf16(p);
    default: return _mm256_loadu_ps((const float *)(const void *)p);
    }
}

/* A chunk of columns of one tile. */
struct float_chunk {
    const uint8_t *w; /* [count][16] */
    const float *x;
    uint64_t x_stride;
    float *y;
    uint64_t y_stride;
    uint32_t count;
    bool first;
    __m256i lanes[HALVES];
};

FORCE_INLINE void chunk_rows(enum dtype dtype, const struct float_chunk *c, uint32_t row,
                             const uint32_t rows)
{
    const uint32_t size = dtype == DTYPE_F32 ? 4 : 2;
    __m256 a[HALVES][ROWS_MAX];

    for (uint32_t r = 0; r < rows; r++)
        a[0][r] = a[1][r] = _mm256_setzero_ps();
    for (uint32_t k = 0; k < c->count; k++) {
        const uint8_t *w = c->w + (size_t)k * LANES * size;
        __m256 w0 = load_weights(dtype, w), w1 = load_weights(dtype, w + HALF * size);
        for (uint32_t r = 0; r < rows; r++) {
            __m256 x = _mm256_set1_ps(c->x[(row + r) * c->x_stride + k]);
            a[0][r] = _mm256_fmadd_ps(w0, x, a[0][r]);
            a[1][r] = _mm256_fmadd_ps(w1, x, a[1][r]);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < HALVES; h++) {
            float *y = c->y + (row + r) * c->y_stride + h * HALF;
            __m256 sum = c->first ? _mm256_setzero_ps() : _mm256_maskload_ps(y, c->lanes[h]);
            _mm256_maskstore_ps(y, c->lanes[h], _mm256_add_ps(sum, a[h][r]));
        }
}

FORCE_INLINE void chunk_all_rows(enum dtype dtype, const struct float_chunk *c, uint32_t rows)
{
    uint32_t row = 0;
    for (; rows - row >= ROWS_MAX; row += ROWS_MAX)
        chunk_rows(dtype, c, row, ROWS_MAX);
    for (; row < rows; row++)
        chunk_rows(dtype, c, row, 1);
}

FORCE_INLINE void chunk_start(struct float_chunk *c, const struct linear *linear, const void *input,
                              float *y, uint64_t y_stride, uint32_t tile, uint32_t col)
{
    const uint32_t cols = linear->weight.cols;
    c->x = (const float *)input + col;
    c->x_stride = linear_input_row_bytes(LINEAR_INPUT_F32, cols) / sizeof(float);
    c->y = y + (size_t)tile * LANES;
    c->y_stride = y_stride;
    c->count = cols - col < CHUNK ? cols - col : CHUNK;
    c->first = col == 0;
    c->lanes[0] = half_mask(linear, tile, 0);
    c->lanes[1] = half_mask(linear, tile, 1);
}

FORCE_INLINE void run_float(enum dtype dtype, const struct linear *linear, const void *input,
                            uint32_t rows, float *y, uint64_t y_stride, uint32_t tile_begin,
                            uint32_t tile_end)
{
    const uint32_t cols = linear->weight.cols, size = dtype == DTYPE_F32 ? 4 : 2;
    struct float_chunk c;

    for (uint32_t tile = tile_begin; tile < tile_end; tile++)
        for (uint32_t col = 0; col < cols; col += CHUNK) {
            chunk_start(&c, linear, input, y, y_stride, tile, col);
            c.w = (const uint8_t *)linear->packed + ((uint64_t)tile * cols + col) * LANES * size;
            chunk_all_rows(dtype, &c, rows);
        }
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

linear_run_fn *linear_avx2_float(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return run_f32;
    case DTYPE_F16: return run_f16;
    case DTYPE_BF16: return run_bf16;
    default: return NULL;
    }
}

static void decode_half_chunk(const struct linear *linear, uint32_t tile, uint32_t half,
                              uint32_t col, uint32_t count, float *out)
{
    const enum dtype dtype = linear->weight.dtype;
    const struct quant_layout *layout = quant_layout(dtype);
    const uint32_t blocks = linear->weight.cols / QBLOCK;
    const uint8_t *scales =
        (const uint8_t *)linear->packed + tile * quant_tile_bytes(layout, blocks);
    const uint8_t *quants = scales + quant_scales_bytes(layout, blocks);
    const __m256i zero = _mm256_set1_epi32(zero_of(dtype));

    for (uint32_t b = col / QBLOCK; b < (col + count) / QBLOCK; b++) {
        struct half_block w = {0};
        load_codes(dtype, quants + (size_t)b * layout->quant_bytes, half, w.u);
        load_scales(dtype, scales, layout->scale_bytes, b, half, &w);
        for (int k = 0; k < QBLOCK; k++, out += LANES) {
            int part = part_count(dtype) == 2 ? k / 16 : 0;
            /* sign extension serves both: codes that are not wide stay below 128 */
            __m256i u = _mm256_srai_epi32(_mm256_slli_epi32(w.u[k / 4], 24 - 8 * (k % 4)), 24);
            __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(u, zero)), w.d[part]);
            _mm256_storeu_ps(out + half * HALF, has_min(dtype) ? _mm256_add_ps(v, w.m[part]) : v);
        }
    }
}

void linear_avx2_exact(const struct linear *linear, const void *input, uint32_t rows, float *y,
                       uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    float w[CHUNK * LANES] __attribute__((aligned(64)));
    struct float_chunk c;

    for (uint32_t tile = tile_begin; tile < tile_end; tile++)
        for (uint32_t col = 0; col < linear->weight.cols; col += CHUNK) {
            chunk_start(&c, linear, input, y, y_stride, tile, col);
            c.w = (const uint8_t *)w;
            if (linear->in_rows) {
                decode_rows_chunk(linear, tile, col, c.count, w);
            } else {
                decode_half_chunk(linear, tile, 0, col, c.count, w);
                decode_half_chunk(linear, tile, 1, col, c.count, w);
            }
            chunk_all_rows(DTYPE_F32, &c, rows);
        }
}

/* --- activations to int8, see q8_row() --- */

FORCE_INLINE int32_t max_8(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

FORCE_INLINE int32_t sum_8(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

static bool quantise_block(const float *x, int8_t *q, struct q8_block *block)
{
    const __m256i abs_mask = _mm256_set1_epi32(0x7fffffff);
    __m256i largest_bits = _mm256_setzero_si256(), v[4];
    float largest;

    for (int i = 0; i < 4; i++)
        largest_bits =
            _mm256_max_epi32(largest_bits, _mm256_and_si256(load_256(x + 8 * i), abs_mask));
    int32_t bits = max_8(largest_bits);
    memcpy(&largest, &bits, 4);
    if (bits >= 0x7f800000 || largest < 1e-30f) return false;
    const __m256 scale = _mm256_set1_ps(127.0f / largest);
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), scale));
    int32_t low = sum_8(_mm256_add_epi32(v[0], v[1])), high = sum_8(_mm256_add_epi32(v[2], v[3]));
    /* packs work on 128-bit halves: the last permutation puts the dwords back in order */
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    const float dx = largest / 127.0f;
    *block = (struct q8_block){dx, dx * (float)(low + high), -128 * (low + high), -128 * low};
    return true;
}

void quantise_row_avx2(const float *x, uint32_t cols, void *row)
{
    int8_t *q = row;
    struct q8_block *block = (struct q8_block *)(void *)(q + cols);

    for (uint32_t b = 0; b < cols / QBLOCK; b++, q += QBLOCK, x += QBLOCK)
        if (!quantise_block(x, q, &block[b])) quantise_block_generic(x, q, &block[b]);
}
