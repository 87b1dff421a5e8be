/* weight_table.h - a model's tensors by what they are for: found by name, checked for shape, cut for this rank.
 *
 * Each tensor is taken once; weight_table_finish() refuses a file with tensors that nobody took, because a tensor that is
 * not understood would change the numbers. With dummies there are no files: every weight is there, with data NULL.
 * Owned by model.c while it builds a plan; the views point into the weights' mappings. */
#pragma once

#include "base/arena.h"
#include "formats/weights.h"
#include "model/model_config.h"
#include "parallel/shard.h"

struct weight_table {
    const struct weights *weights;
    const struct model_config *config;
    struct arena *arena; /* names */
    bool dummy;
    uint64_t dummy_seed;
    enum dtype dummy_dtype;
    uint8_t *taken; /* [weights_count] */
};

/* Borrows all; table->taken comes from the arena. Errors: STATUS_NOMEM. */
enum status weight_table_init(struct weight_table *table, const struct weights *weights,
                              const struct model_config *config, struct arena *arena,
                              struct error *err);

/* Which part of a tensor [rows, cols] this rank holds; a vector is a row, [1, cols]. */
struct weight_cut {
    uint32_t rows, cols;         /* of the whole tensor */
    struct shard_span rows_part; /* count 0: all */
    struct shard_span cols_part; /* count 0: all */
};
/* Errors: STATUS_NOT_FOUND (missing, named), STATUS_CORRUPT (shape, named with the right one), STATUS_UNSUPPORTED (dtype, or a
 * cut within a block). */
enum status weight_table_take(struct weight_table *table, enum tensor_id id, uint32_t layer,
                              const struct weight_cut *cut, struct plan_weight *out,
                              struct error *err);
/* Whether the file has it (dummies: never). */
bool weight_table_has(const struct weight_table *table, enum tensor_id id, uint32_t layer);
/* Ignores a tensor that may be there and does not count (a head beside tied embeddings). */
void weight_table_skip(struct weight_table *table, enum tensor_id id, uint32_t layer);
/* Rows of a matrix in the file (also beside dummies), 0 where it is not there. */
uint64_t weight_table_rows(const struct weight_table *table, enum tensor_id id);
/* Errors: STATUS_UNSUPPORTED, naming the first tensor that nobody took and how many there are. */
enum status weight_table_finish(const struct weight_table *table, struct error *err);
