/* fit_solve.h - the terms of a device_model.h from measured steps.
 *
 * Least squares with no term below zero, each step weighed by one over its time as the round before told it: so the steps' times together are
 * the model's, and those that were long by chance do not count for less. The table has points at powers of two where
 * there are steps to place them by. Steps that started after the device had stood still are kept out of it; what they took longer is
 * rest_share. What the terms leave are the spreads: SPREAD_PARTS means of equally many steps, in order of measured over told time.
 * Pure numbers, any thread. */
#pragma once

#include "bench/device_model.h"

struct fit_sample {
    struct device_work work;
    double ns;      /* > 0 */
    double idle_ns; /* that the device had stood still before it */
};

enum { SPREAD_PARTS = 32 };

struct fit_quality { /* |model / measured - 1| */
    double mean, worst;
};

/* Fills the table, output_ns, kv_token_ns, pair_ns, rest_ns, rest_share, and spreads where there are enough steps for them. Errors:
 * STATUS_INVALID (too few steps, with the sentence), STATUS_NOMEM. */
enum status fit_solve(const struct fit_sample *samples, uint32_t count, struct device_model *out,
                      struct fit_quality *quality, struct error *err);
