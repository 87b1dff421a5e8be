/* cuda_breakdown.h - where a decode step's time goes, by kind of stage: for benchmarks.
 *
 * Runs the body again with the rows of the last step (their K and V are written once more, the same bytes), launch by launch
 * with an event behind every stage, and the sampling: what graphs and overlap save is the difference to the whole. Or leaves out what is
 * asked about. */
#pragma once

#include "device/device.h"

enum { CUDA_BREAKDOWN_KINDS = STAGE_SAMPLE + 1 };

/* rows: of the last step, all decodes. us: by enum stage_kind, sums over layers, medians of `repeats` (1..99). Only between
 * steps. Errors: STATUS_DEVICE. */
enum status cuda_breakdown(struct device *device, uint32_t rows, uint32_t repeats,
                           double us[CUDA_BREAKDOWN_KINDS], struct error *err);

/* Steps from here on are replayed as graphs where there is one for their size, or launched one by one. Between steps; a device
 * opened with enforce_eager has no graphs. */
void cuda_use_graphs(struct device *device, bool on);
/* Steps of one row from here on take all layers in one launch, or not, whatever was measured. Between steps. Returns whether the
 * model and the device have that launch; else nothing changes. */
bool cuda_use_chain(struct device *device, bool on);
/* Steps of `rows` decodes from here on leave out the stages of some kinds (bits 1 << enum stage_kind): their tokens mean nothing, but what
 * they take less is what those stages cost where they stand. After a step of so many rows, whose bytes are written again. False: such
 * steps are not replayed as a graph of stages (or the device failed). */
bool cuda_leave_out(struct device *device, uint32_t rows, uint32_t kinds);
/* Launches in the body's graph of the bucket that holds `rows` decodes; 0: there is none. */
uint32_t cuda_graph_launches(const struct device *device, uint32_t rows);
