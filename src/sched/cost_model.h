/* cost_model.h - how long a step takes, fitted while it serves: t = a + b * rows + c * pairs.
 *
 * pairs: (query, key) pairs that attention looks at, the sum over rows of the positions up to their own. Recursive least squares with
 * forgetting (a half-life of about 140 steps), from a weak prior of zero; predictions are not negative. The first two steps are not learnt
 * from: they pay for things that happen once. Eight more are enough: after so few, steps with prompts of the CPU device were told to 0.84
 * to 1.14 (5 to 95 %), as after fifty. Pure numbers, any thread.
 * Source: Haykin, Adaptive Filter Theory, chapter on RLS. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct cost_model {
    double w[3];       /* ns per unit of the scaled features */
    double p[3][3];    /* their covariance, but for a factor */
    uint64_t observed; /* steps, the first two included */
};

void cost_model_init(struct cost_model *model);
/* A step of so many rows and pairs took so long. */
void cost_model_observe(struct cost_model *model, uint32_t rows, uint64_t pairs, int64_t ns);
/* Whether enough steps were seen for the predictions to mean something. */
bool cost_model_ready(const struct cost_model *model);
int64_t cost_model_predict(const struct cost_model *model, uint32_t rows, uint64_t pairs);
/* The weights: ns of a step, of a row, of a pair; none negative. */
void cost_model_weights(const struct cost_model *model, double *step_ns, double *row_ns,
                        double *pair_ns);
/* Rows of a prompt, standing at position `context`, that a step may carry besides `rows` and `pairs` and yet take at most limit_ns; at most
 * `most`. */
uint32_t cost_model_rows(const struct cost_model *model, uint32_t rows, uint64_t pairs,
                         uint32_t context, uint32_t most, int64_t limit_ns);
/* Pairs of `rows` rows behind `context` positions. */
static inline uint64_t cost_pairs(uint32_t context, uint32_t rows)
{
    return (uint64_t)rows * context + (uint64_t)rows * (rows + 1) / 2;
}
