/* cpu_kernels.c - compiles cpu_kernels_body.h once for each instruction set. */
#include "device/cpu/cpu_kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "formats/quant_blocks.h"

#pragma GCC diagnostic ignored "-Wpsabi" /* wide vectors never cross a real call */

enum { LANES = 16, SUM_RUN = 256 };
typedef float lanes __attribute__((vector_size(64)));
typedef int32_t lanes_i __attribute__((vector_size(64)));
typedef float lanes_at __attribute__((vector_size(64), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* --- plain --- */
#define ISA(name) name##_generic
INLINE lanes fma_generic(lanes a, lanes b, lanes c)
{
    return a * b + c;
}
INLINE lanes half_load_generic(const uint16_t *src)
{
    float out[LANES];
    lanes v;

    for (uint32_t i = 0; i < LANES; i++)
        out[i] = f16_to_f32(src[i]);
    memcpy(&v, out, sizeof v);
    return v;
}
INLINE bool any_generic(lanes_i mask)
{
    int32_t any = 0;

    for (uint32_t i = 0; i < LANES; i++)
        any |= mask[i];
    return any != 0;
}
INLINE void half_store_generic(lanes v, uint16_t *dst)
{
    for (uint32_t i = 0; i < LANES; i++)
        dst[i] = f32_to_f16(v[i]);
}
#include "device/cpu/cpu_kernels_body.h"
#undef ISA

#if defined(__x86_64__)
/* --- AVX2, FMA, F16C --- */
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define ISA(name) name##_avx2
union halves {
    lanes v;
    __m256 h[2];
};
INLINE lanes fma_avx2(lanes a, lanes b, lanes c)
{
    union halves x = {a}, y = {b}, z = {c};

    z.h[0] = _mm256_fmadd_ps(x.h[0], y.h[0], z.h[0]);
    z.h[1] = _mm256_fmadd_ps(x.h[1], y.h[1], z.h[1]);
    return z.v;
}
INLINE lanes half_load_avx2(const uint16_t *src)
{
    union halves x;

    x.h[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src));
    x.h[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + 8)));
    return x.v;
}
INLINE bool any_avx2(lanes_i mask)
{
    union halves x = {(lanes)mask};

    return _mm256_movemask_ps(_mm256_or_ps(x.h[0], x.h[1])) != 0;
}
INLINE void half_store_avx2(lanes v, uint16_t *dst)
{
    union halves x = {v};

    _mm_storeu_si128((__m128i *)(void *)dst, _mm256_cvtps_ph(x.h[0], _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(dst + 8),
                     _mm256_cvtps_ph(x.h[1], _MM_FROUND_TO_NEAREST_INT));
}
#include "device/cpu/cpu_kernels_body.h"
#undef ISA
#pragma GCC pop_options

/* --- AVX-512 --- */
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define ISA(name) name##_avx512
INLINE lanes fma_avx512(lanes a, lanes b, lanes c)
{
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
INLINE lanes half_load_avx512(const uint16_t *src)
{
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)src));
}
INLINE bool any_avx512(lanes_i mask)
{
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}
INLINE void half_store_avx512(lanes v, uint16_t *dst)
{
    _mm256_storeu_si256((__m256i *)(void *)dst,
                        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}
#include "device/cpu/cpu_kernels_body.h"
#undef ISA
#pragma GCC pop_options
#endif

const struct cpu_kernels *cpu_kernels(enum cpu_isa isa)
{
    assert(isa < CPU_ISA_COUNT);
#if defined(__x86_64__)
    if (isa >= CPU_ISA_AVX512) return &kernels_avx512;
    if (isa == CPU_ISA_AVX2) return &kernels_avx2;
#endif
    return &kernels_generic;
}
