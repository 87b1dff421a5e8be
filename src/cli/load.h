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
#include "planner/planner.h"
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
    char *cache_folder; /* borrowed by device_options */
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
/* Tokens that the pool of the KV group holds which keeps most. */
uint64_t load_kv_tokens(const struct loaded *loaded);

/* --device, --threads, --cpu-numerics ... as device options. Errors: STATUS_INVALID with what would be right. */
enum status load_device_options(const struct config *config, struct device_options *out,
                                struct error *err);

/* Whether --served-model-name can be told in answers and log lines. Errors: STATUS_INVALID. Has been asked before load_open. */
enum status load_check_names(const struct config *config, struct error *err);

/* --- shared with `inferd plan` and `inspect`, so that they and serve cannot disagree --- */
/* The file of --chat-template, once it has been seen to compile; ptr NULL: none is given. The caller frees out->ptr. Errors: those of
 * file_read, STATUS_INVALID. */
enum status load_chat_template(const struct config *config, struct slice *out, struct error *err);
/* The model's tokenizer; *built_in: with --load-format dummy a folder that has none gets the one of bytes. Errors: those of
 * tokenizer_open. */
enum status load_tokenizer(const struct config *config, struct weights *weights,
                           struct tokenizer **out, bool *built_in, struct error *err);
/* Opens the device that --device names; options->kind tells which. auto: the GPU where this build and machine have one, else the
 * CPU; with --gpu-memory only a GPU will do. */
enum status load_open_device(const struct config *config, struct device_options *options,
                             struct device **out, struct error *err);
/* Whether the kind of device that was found computes in --dtype. Errors: STATUS_UNSUPPORTED. */
enum status load_check_dtype(const struct config *config, const struct device_options *options,
                             struct error *err);
/* The model's options, but for vocab_tokens. */
struct model_options load_model_options(const struct config *config,
                                        const struct device_options *device);
/* device_bytes: memory of the device where it has its own and it is known, else 0; --gpu-memory comes before it. */
void load_planner_options(const struct config *config, const struct device_options *device,
                          uint64_t device_bytes, struct planner_options *out);
