/* cuda_breakdown.h - where a decode step's time goes, by kind of stage: for benchmarks.
 *
 * Runs the body again with the rows of the last step (their K and V are written once more, the same bytes), launch by launch
 * with an event behind every stage, and the sampling: what graphs and overlap save is the difference to the whole. */
#pragma once

#include "device/device.h"

enum { CUDA_BREAKDOWN_KINDS = STAGE_SAMPLE + 1 };

/* rows: of the last step, all decodes. us: by enum stage_kind, sums over layers, medians of `repeats` (1..99). Only between
 * steps. Errors: STATUS_DEVICE. */
enum status cuda_breakdown(struct device *device, uint32_t rows, uint32_t repeats,
                           double us[CUDA_BREAKDOWN_KINDS], struct error *err);

/* Launches in the graph of a body of `rows` decodes; 0 where such a step runs launch by launch. */
uint32_t cuda_body_launches(const struct device *device, uint32_t rows);
