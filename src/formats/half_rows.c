/* half_rows.c - many floats to 16 bits at once: what loading a model does to every weight. */
#include <assert.h>
#include <string.h>

#include "formats/quant_blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* The processor's own conversion; of a NaN it keeps the upper bits of the payload, so those go the other way. */
__attribute__((target("avx,f16c"))) static uint64_t f16_by_eights(const float *from, uint64_t count,
                                                                  uint16_t *to)
{
    uint64_t i = 0;

    for (; i + 8 <= count; i += 8) {
        __m256 v = _mm256_loadu_ps(from + i);
        if (_mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q))) {
            for (uint64_t k = i; k < i + 8; k++)
                to[k] = f32_to_f16(from[k]);
            continue;
        }
        _mm_storeu_si128((__m128i *)(void *)(to + i),
                         _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    return i;
}

static bool has_f16c(void)
{
    return __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
}
#else
static uint64_t f16_by_eights(const float *from, uint64_t count, uint16_t *to)
{
    (void)from, (void)count, (void)to;
    return 0;
}

static bool has_f16c(void)
{
    return false;
}
#endif

/* Without a branch, so that the compiler takes several at once. */
static void row_to_bf16(const float *from, uint64_t count, uint16_t *to)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits, nearest, quiet;
        memcpy(&bits, from + i, sizeof bits);
        nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        quiet = bits >> 16 | 0x40;
        to[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : nearest);
    }
}

void f32_row_to_half(enum dtype half, const float *from, uint64_t count, uint16_t *to)
{
    uint64_t i = 0;

    assert(half == DTYPE_F16 || half == DTYPE_BF16);
    if (half == DTYPE_BF16) {
        row_to_bf16(from, count, to);
        return;
    }
    if (has_f16c()) i = f16_by_eights(from, count, to);
    for (; i < count; i++)
        to[i] = f32_to_f16(from[i]);
}
