/* model.h - open weights to a plan of the forward pass.
 *
 *   weights_open -> model_open (config, tensors checked and cut for a rank) -> model_plan -> device_compile
 * The model owns its plan and all that hangs on it (stages, names, frequencies); the weights' mappings are borrowed and
 * must outlive it, as it must outlive the device. Nothing of the weights' bytes is read, save small rope tables.
 * Thread: any after opening (read-only). */
#pragma once

#include "device/plan.h"
#include "formats/weights.h"
#include "model/model_config.h"
#include "parallel/shard.h"

struct model_options {
    struct shard shard;       /* {0, 0} is {0, 1}: all of it */
    uint32_t context_tokens;  /* 0: what the config says; more than that is refused */
    uint32_t block_tokens;    /* of the KV groups; 0: 16 */
    uint32_t vocab_tokens;    /* of the tokenizer; 0: what the file says, else all rows */
    enum kv_format kv_format; /* KV_F32 where the device decides for itself (CPU) */
    bool dummy;               /* made-up weights: only the config is needed */
    uint64_t dummy_seed;
    enum dtype dummy_dtype; /* DTYPE_F32: what the config names */
};

struct model;

/* options NULL: all defaults. Errors: as model_config_read, and STATUS_NOT_FOUND, STATUS_CORRUPT, STATUS_UNSUPPORTED for tensors; STATUS_INVALID for
 * options and for a split that does not come out even. */
enum status model_open(struct weights *weights, const struct model_options *options,
                       struct model **out, struct error *err);
void model_close(struct model *model); /* takes NULL */

/* Opens `path` (a folder with config.json; weights need not be there) with made-up weights of options->dummy_dtype.
 * *weights is the caller's to close after the model. */
enum status model_open_dummy(const char *path, const struct model_options *options,
                             struct weights **weights, struct model **out, struct error *err);

const struct plan *model_plan(const struct model *model);
const struct model_config *model_config(const struct model *model);
/* Parameters of the whole model (all ranks), as stored: for messages and planning. */
uint64_t model_parameters(const struct model *model);
/* One line for logs: "llama, 30 layers, hidden 576, 9/3 heads of 64, vocabulary 49152". Borrowed. */
const char *model_description(const struct model *model);
