/* device_model.h - how long a step takes on a device that is not here.
 *
 *     ns = table(rows) + output_ns * outputs + kv_token_ns * kv_tokens + pair_ns * pairs
 *
 * rows of the step; outputs: rows with logits; kv_tokens: positions that attention reads, once for each sequence of the step; pairs: (query, key) pairs of attention (sched/cost_model.h). table is linear between its
 * points and beyond the last two: a flat beginning is a device that waits for its weights, the slope behind it one that computes.
 * Beside it the host: time from the end of a step to the next one's submission, and what the front end adds to a request. The file:
 *   {"name": "H200, Llama-3-8B bf16", "kv_tokens": 800000, "block_tokens": 16, "max_model_len": 8192,
 *    "rows_ns": [[1, 4200000], [64, 4300000], [512, 12000000]], "output_ns": 500, "kv_token_ns": 33, "pair_ns": 1.3,
 *    "host_ns": 20000, "host_seq_ns": 300, "request_ns": 500000, "reply_ns": 50000}
 * name, kv_tokens and rows_ns are required. `inferd bench fit` measures one of a device that is here. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

enum { MODEL_POINTS_MAX = 32 };

struct device_model {
    char name[96];
    uint32_t kv_tokens, block_tokens, max_model_len;
    uint32_t point_count;
    double rows[MODEL_POINTS_MAX], rows_ns[MODEL_POINTS_MAX]; /* rows rising */
    double output_ns, kv_token_ns, pair_ns;
    double host_ns, host_seq_ns; /* of a step; of a sequence in it */
    double request_ns,
        reply_ns; /* before a request is submitted; after a step until its tokens are seen */
};

/* Errors: as file_read, STATUS_CORRUPT with file, key and what would be right. */
enum status device_model_read(const char *path, struct device_model *out, struct error *err);
/* The caller's reference; NULL without memory. */
json_t *device_model_json(const struct device_model *model);

struct device_work { /* of a step */
    uint32_t rows, outputs;
    uint64_t kv_tokens, pairs;
};
int64_t device_model_step_ns(const struct device_model *model, const struct device_work *work);
