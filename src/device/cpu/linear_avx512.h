/* linear_avx512.h - a packed block in AVX-512 registers, shared by the VNNI and AMX kernels. Private to them.
 * dtype is a constant in every use, so that each kernel is compiled for its format alone. */
#pragma once

#include <immintrin.h>

#include "device/cpu/linear_kernel.h"

#define FORCE_INLINE static inline __attribute__((always_inline))

struct vec_tile {
    const uint8_t *scales, *quants;
};
struct vec_block {
    __m512i u[8]; /* u[g]: bytes k = 4g..4g+3 of 16 outputs, unsigned */
    __m512 d[2], m[2];
};

/* These repeat linear_pack.c's table as constants for the compiler; test_linear's equal bytes need both to agree. */
FORCE_INLINE int vec_zero(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_Q4_0: return 8;
    case DTYPE_Q5_0: return 16;
    case DTYPE_Q3_K: return 4;
    case DTYPE_Q6_K: return 32;
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
    case DTYPE_MXFP4: return 128;
    default: return 0;
    }
}
FORCE_INLINE bool vec_has_min(enum dtype dtype)
{
    return dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q2_K ||
           dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K;
}
FORCE_INLINE int vec_parts(enum dtype dtype)
{
    return dtype == DTYPE_Q2_K || dtype == DTYPE_Q3_K || dtype == DTYPE_Q6_K ? 2 : 1;
}
FORCE_INLINE uint32_t vec_quant_bytes(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_Q8_0: return 512;
    case DTYPE_Q6_K: return 384;
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q5_K: return 320;
    case DTYPE_Q3_K: return 192;
    case DTYPE_Q2_K: return 128;
    default: return 256;
    }
}

FORCE_INLINE struct vec_tile vec_tile(enum dtype dtype, const void *packed, uint32_t tile,
                                      uint32_t blocks)
{
    const struct quant_layout *layout = quant_layout(dtype);
    const uint8_t *base = (const uint8_t *)packed + tile * quant_tile_bytes(layout, blocks);
    return (struct vec_tile){base, base + quant_scales_bytes(layout, blocks)};
}

/* Lanes of this tile that are outputs. */
FORCE_INLINE __mmask16 tile_mask(const struct linear *linear, uint32_t tile)
{
    uint32_t left = linear->weight.rows - tile * LANES;
    return left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
}

/* The hardware's streams end at page borders and restart slowly; half a page ahead hides that. A prefetch past the end
 * of the weight is harmless. */
FORCE_INLINE void vec_prefetch(enum dtype dtype, const struct vec_tile *t, uint32_t b)
{
    const uint8_t *ahead = t->quants + (size_t)b * vec_quant_bytes(dtype) + 2048;
    for (uint32_t i = 0; i < vec_quant_bytes(dtype); i += 64)
        _mm_prefetch((const char *)ahead + i, _MM_HINT_T0);
}

FORCE_INLINE void load_nibbles(const uint8_t *quants, __m512i u[8])
{
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < 4; j++) {
        __m512i v = _mm512_loadu_si512(quants + 64 * j);
        u[j] = _mm512_and_si512(v, low);
        u[j + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
}

FORCE_INLINE void add_plane(const uint8_t *plane, int bit, __m512i u[8])
{
    const __m512i value = _mm512_set1_epi8((char)bit);
    for (int g = 0; g < 8; g++) {
        uint64_t mask;
        memcpy(&mask, plane + 8 * g, 8);
        u[g] = _mm512_mask_add_epi8(u[g], mask, u[g], value);
    }
}

FORCE_INLINE void look_up(const uint8_t table[16], __m512i u[8])
{
    const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table));
    for (int g = 0; g < 8; g++)
        u[g] = _mm512_shuffle_epi8(t, u[g]);
}

FORCE_INLINE void load_codes(enum dtype dtype, const uint8_t *quants, __m512i u[8])
{
    switch (dtype) {
    case DTYPE_Q8_0:
        for (int g = 0; g < 8; g++)
            u[g] = _mm512_loadu_si512(quants + 64 * g);
        break;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
        for (int g = 0; g < 8; g++)
            u[g] = _mm512_setzero_si512();
        add_plane(quants, 1, u);
        add_plane(quants + 64, 2, u);
        if (dtype == DTYPE_Q3_K) add_plane(quants + 128, 4, u);
        break;
    default: load_nibbles(quants, u);
    }
    if (dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q5_K || dtype == DTYPE_Q6_K)
        add_plane(quants + 256, 16, u);
    if (dtype == DTYPE_Q6_K) add_plane(quants + 320, 32, u);
    if (dtype == DTYPE_IQ4_NL || dtype == DTYPE_IQ4_XS) look_up(linear_iq4nl_table, u);
    if (dtype == DTYPE_MXFP4) look_up(linear_mxfp4_table, u);
}

FORCE_INLINE __m256i load_256(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
FORCE_INLINE __m128i load_128(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
FORCE_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(load_256(p));
}
FORCE_INLINE __m512 load_bf16(const uint8_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(p)), 16));
}
FORCE_INLINE __m512 u8_to_f32(__m128i v)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v));
}
FORCE_INLINE __m512 i8_to_f32(__m128i v)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}
FORCE_INLINE __m512 negative(__m512 v)
{
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(v), _mm512_set1_epi32((int)0x80000000)));
}

/* Scales of block s of a group of eight. */
FORCE_INLINE void load_group_scales(enum dtype dtype, const uint8_t *scales, uint32_t s,
                                    struct vec_block *w)
{
    const __m512 d = load_f16(scales);
    const __m128i low = _mm_set1_epi8(15);

    switch (dtype) {
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        w->d[0] = _mm512_mul_ps(d, u8_to_f32(load_128(scales + 64 + 32 * s)));
        w->m[0] = negative(
            _mm512_mul_ps(load_f16(scales + 32), u8_to_f32(load_128(scales + 80 + 32 * s))));
        break;
    case DTYPE_Q2_K:
        for (uint32_t h = 0; h < 2; h++) {
            __m128i code = load_128(scales + 64 + 32 * s + 16 * h);
            __m128i min = _mm_and_si128(_mm_srli_epi16(code, 4), low);
            w->d[h] = _mm512_mul_ps(d, u8_to_f32(_mm_and_si128(code, low)));
            w->m[h] = negative(_mm512_mul_ps(load_f16(scales + 32), u8_to_f32(min)));
        }
        break;
    case DTYPE_Q3_K:
    case DTYPE_Q6_K:
        for (uint32_t h = 0; h < 2; h++)
            w->d[h] = _mm512_mul_ps(d, i8_to_f32(load_128(scales + 32 + 32 * s + 16 * h)));
        break;
    default: w->d[0] = _mm512_mul_ps(d, i8_to_f32(load_128(scales + 32 + 16 * s)));
    }
}

FORCE_INLINE void load_scales(enum dtype dtype, const struct vec_tile *t, uint32_t b,
                              struct vec_block *w)
{
    w->m[0] = w->m[1] = w->d[1] = _mm512_setzero_ps();
    switch (dtype) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        w->d[0] = load_f16(t->scales + (size_t)b * 64);
        w->m[0] = load_f16(t->scales + (size_t)b * 64 + 32);
        break;
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL: w->d[0] = load_f16(t->scales + (size_t)b * 32); break;
    case DTYPE_MXFP4: w->d[0] = load_bf16(t->scales + (size_t)b * 32); break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q2_K: load_group_scales(dtype, t->scales + (size_t)(b / 8) * 320, b % 8, w); break;
    case DTYPE_Q3_K:
    case DTYPE_Q6_K: load_group_scales(dtype, t->scales + (size_t)(b / 8) * 288, b % 8, w); break;
    default: load_group_scales(dtype, t->scales + (size_t)(b / 8) * 160, b % 8, w);
    }
}

FORCE_INLINE void vec_block_load(enum dtype dtype, const struct vec_tile *t, uint32_t b,
                                 struct vec_block *w)
{
    load_codes(dtype, t->quants + (size_t)b * vec_quant_bytes(dtype), w->u);
    load_scales(dtype, t, b, w);
}

/* The VNNI kernel for rows [row, rows) of one tile: AMX uses it for the rows that do not fill a tile of its own. */
typedef void vnni_tile_fn(const struct linear *linear, const void *input, uint32_t row,
                          uint32_t rows, float *y, uint64_t y_stride, uint32_t tile);
vnni_tile_fn *linear_vnni_tile(enum dtype dtype);
