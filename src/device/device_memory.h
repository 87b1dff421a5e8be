/* device_memory.h - what a plan will take, in bytes, known without a device.
 *
 * Pure C with no CUDA header, always built. device_compile() must allocate exactly these sums (to the byte for our own
 * buffers; a driver's own memory is an estimate): tests compare. `inferd plan` and the refusal at start print the lines. */
#pragma once

#include "device/device.h"

enum { DEVICE_MEMORY_LINES_MAX = 24 };

struct device_memory_line {
    const char *
        name; /* "weights, Q4_1 packed", "KV pool", "activations", "logits", "rope tables", "graphs" */
    uint64_t bytes;
    bool host;     /* host memory of a device that has its own (staging, pinned results) */
    bool estimate; /* what the driver takes of its own, about; all other lines are exact */
};
struct device_memory {
    uint32_t line_count;
    struct device_memory_line lines[DEVICE_MEMORY_LINES_MAX];
    uint64_t device_bytes, host_bytes;        /* sums */
    uint64_t estimate_bytes;                  /* of device_bytes, the lines that are estimates */
    uint64_t kv_block_bytes[PLAN_GROUPS_MAX]; /* one block, all layers of the group */
};

/* Errors: STATUS_UNSUPPORTED as device_compile. Takes microseconds; reads no weights. */
enum status device_memory_plan(const struct device_options *options, const struct plan *plan,
                               const struct device_limits *limits, struct device_memory *out,
                               struct error *err);

/* Each kind's own sum; dispatched by device_memory_plan. */
enum status cpu_memory_plan(const struct device_options *options, const struct plan *plan,
                            const struct device_limits *limits, struct device_memory *out,
                            struct error *err);
enum status cuda_memory_plan(const struct device_options *options, const struct plan *plan,
                             const struct device_limits *limits, struct device_memory *out,
                             struct error *err);
enum status null_memory_plan(const struct device_options *options, const struct plan *plan,
                             const struct device_limits *limits, struct device_memory *out,
                             struct error *err);
void device_memory_add(struct device_memory *memory, const char *name, uint64_t bytes, bool host);
void device_memory_add_estimate(struct device_memory *memory, const char *name, uint64_t bytes);
