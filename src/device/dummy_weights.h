/* dummy_weights.h - seeded made-up values for a weight that has no data (plan_weight.data NULL).
 *
 * For measuring a model whose files are not here. A row's bytes depend on the weight's dummy_seed, its dtype and the row
 * only, so any thread may make any row, and a tied embedding and head agree. Norm gains lie near 1, matrices are scaled so
 * that activations neither vanish nor overflow over many layers. Thread: any. */
#pragma once

#include "device/plan.h"

/* Writes dtype_row_bytes(dtype, cols) bytes of row `row` (below weight->rows) to dst. */
void dummy_weight_row(const struct plan_weight *weight, uint32_t row, void *dst);
