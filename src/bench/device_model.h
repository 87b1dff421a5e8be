/* device_model.h - how long a step takes on a device that is not here.
 *
 *     ns = (table(rows) + output_ns * outputs + kv_token_ns * kv_tokens + pair_ns * pairs) * (1 + rest_share * min(1, idle / rest_ns))
 *
 * rows of the step; outputs: rows with logits; kv_tokens: positions that attention reads, once for each sequence of the step; pairs: (query, key) pairs of attention (sched/cost_model.h). table is linear between its
 * points and beyond the last two: a flat beginning is a device that waits for its weights, the slope behind it one that computes.
 * idle: how long the device has stood still before the step: clocks and caches of one that has rested are cold. Where there is a spread, the
 * time is multiplied by one of its numbers, each as likely as the others, chosen by the step's number (the same each time): their mean is one.
 * Steps with rows of prompts (rows without logits) have one of their own: they are longer, and what happens by chance is less to them.
 * Beside it the host: time from the end of a step to the next one's submission, and what the front end adds to a request. The file:
 *   {"name": "H200, Llama-3-8B bf16", "kv_tokens": 800000, "block_tokens": 16, "max_model_len": 8192,
 *    "rows_ns": [[1, 4200000], [64, 4300000], [512, 12000000]], "output_ns": 500, "kv_token_ns": 33, "pair_ns": 1.3,
 *    "rest_ns": 1e8, "rest_share": 0.1, "spread": [0.9, 1.0, 1.1], "prompt_spread": [0.95, 1.05],
 *    "host_ns": 20000, "host_seq_ns": 300, "request_ns": 500000, "reply_ns": 50000, "kind": "cuda"}
 * name, kv_tokens and rows_ns are required. kind: cpu, or cuda: serve has a GPU's defaults there, and times it before the first request.
 * `inferd bench fit` measures one of a device that is here, or makes one of a daemon's own steps. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
    MODEL_POINTS_MAX = 32,
    MODEL_SPREAD_MAX = 64,
    MODEL_LEN_MAX = 16777216 /* of max_model_len */
};

enum { SPREAD_DECODES, SPREAD_PROMPTS, MODEL_SPREADS };

struct device_model {
    char name[96];
    uint32_t kv_tokens, block_tokens, max_model_len;
    uint32_t point_count;
    double rows[MODEL_POINTS_MAX], rows_ns[MODEL_POINTS_MAX]; /* rows rising */
    double output_ns, kv_token_ns, pair_ns;
    double rest_ns, rest_share; /* rest_share 0: none; rest_ns > 0 else */
    struct model_spread {
        double ratios[MODEL_SPREAD_MAX];
        uint32_t count; /* 0: none */
    } spreads[MODEL_SPREADS];
    bool gpu;                    /* kind is cuda */
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
    double idle_ns; /* of the device before it */
};
/* The mean of such steps. */
int64_t device_model_step_ns(const struct device_model *model, const struct device_work *work);
/* Which spread it has. */
static inline int device_work_kind(const struct device_work *work)
{
    return work->rows > work->outputs ? SPREAD_PROMPTS : SPREAD_DECODES;
}
/* What step `number` takes of the mean: by the spread of the kind. */
double device_model_luck(const struct device_model *model, int kind, uint64_t number);
