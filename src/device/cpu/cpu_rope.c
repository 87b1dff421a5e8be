/* cpu_rope.c - rotary positions: the tables, and turning one head.
 *
 * Angles are float32 products and the tables hold their cosines, as the reference implementation has it: at position
 * 100,000 a float64 product would differ by more than the tests allow. */
#include <assert.h>
#include <math.h>

#include "device/cpu/cpu_device.h"

void cpu_rope_fill(const struct plan_rope *plan, uint32_t context, struct cpu_rope *out,
                   uint32_t first, uint32_t last)
{
    uint32_t half = plan->dim / 2;

    assert(last <= context);
    for (uint32_t pos = first; pos < last; pos++)
        for (uint32_t i = 0; i < half; i++) {
            float angle = (float)pos * plan->inv_freq[i];
            out->cosines[(uint64_t)pos * half + i] = (float)cos((double)angle) * plan->scale;
            out->sines[(uint64_t)pos * half + i] = (float)sin((double)angle) * plan->scale;
        }
}

void cpu_rope_turn(const struct plan_rope *plan, const struct cpu_rope *rope,
                   enum rope_pairing pairing, uint32_t pos, float *head)
{
    uint32_t half = plan->dim / 2;
    const float *c = rope->cosines + (uint64_t)pos * half, *s = rope->sines + (uint64_t)pos * half;

    if (pairing == ROPE_HALVES) {
        for (uint32_t i = 0; i < half; i++) {
            float a = head[i], b = head[i + half];
            head[i] = a * c[i] - b * s[i];
            head[i + half] = b * c[i] + a * s[i];
        }
        return;
    }
    for (uint32_t i = 0; i < half; i++) {
        float a = head[2 * i], b = head[2 * i + 1];
        head[2 * i] = a * c[i] - b * s[i];
        head[2 * i + 1] = b * c[i] + a * s[i];
    }
}
