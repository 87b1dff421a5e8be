/* load.h - from options to a compiled device and a running engine: what serve, run and bench share.
 *
 * load_open does it in order and load_close ends it in reverse. Each part may be NULL while loading; a failure leaves
 * nothing behind. Thread: one. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "config/config.h"
#include "device/device.h"
#include "device/device_memory.h"
#include "engine/engine.h"
#include "formats/weights.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct loaded {
    char *path;
    char *name; /* what the API calls the model: the option's first name, or the path's last part */
    struct weights *weights;
    struct tokenizer *tokenizer;
    struct chat *chat;
    struct model *model;
    const struct plan *plan; /* the model's */
    struct device_options device_options;
    struct device_limits limits;
    struct device_memory memory;
    struct device *device;
    struct engine_pin *pins; /* [pin_count] */
    uint32_t pin_count;
    struct engine *engine;
    void (*progress)(void *ctx, const char *phase, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_ctx;
};

enum status load_open(const struct config *config, struct loaded *out, struct error *err);
void load_close(struct loaded *loaded); /* idempotent */

/* --device, --threads, --cpu-numerics ... as device options. Errors: STATUS_INVALID with what would be right. */
enum status load_device_options(const struct config *config, struct device_options *out,
                                struct error *err);
