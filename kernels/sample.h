/* sample.h - from logits to tokens on the device, without sorting the vocabulary.
 *
 * Order of operations, draws and ties are those of device/step.h (struct step_open); src/device/cpu/cpu_sample.c is the
 * same in C. A result is written straight into mapped host memory. Masses are 2^-40 fixed point, so sums do not depend
 * on the order of threads. */
#pragma once

#include "step_state.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SAMPLE_BAD_LOGITS = 1, SAMPLE_TOPS_MAX = 20, SAMPLE_CHUNK = 8192 };

struct sample_row {
    int32_t slot;
    uint32_t position; /* of the token to draw */
    int32_t target;    /* -1: draw; else an id to be scored */
    uint32_t round;    /* rows of one slot in order: a launch does one round */
    int32_t drawn; /* index among the slot's drawn rows of this step: last[drawn]; -1: not kept */
    int32_t mask;  /* index into masks, -1: none */
};
struct sample_output { /* laid out as device/step.h, struct step_output */
    int32_t token;
    float logprob;
    uint8_t flags, top_count;
    uint16_t reserved;
};
struct sample_top {
    int32_t id;
    float logprob;
};
struct sample_partial {
    float raw_max, raw_sum, z_max;
    int32_t z_arg;
    uint32_t bad;
};

struct sample_args {
    uint32_t rows, round;
    const struct sample_row *in; /* [rows] */
    const float *logits;         /* [rows, stride], stride % 4 == 0 */
    uint64_t stride;
    uint32_t vocab_rows, vocab_tokens;
    const uint32_t *masks; /* [masks, mask_words] */
    uint32_t mask_words;
    struct slot_state state;
    float *work;                     /* [rows, stride] logits as changed */
    struct sample_partial *partials; /* [rows, chunks] */
    uint32_t *counters;              /* [rows], zero before and after */
    struct sample_output *out;       /* [rows] mapped host memory */
    struct sample_top *tops;         /* [rows, top_stride] mapped host memory */
    uint32_t top_stride;
};
cudaError_t sample_rows(const struct kernel_context *ctx, const struct sample_args *args);

#ifdef __cplusplus
}
#endif
