/* tensor_list.h - the tensors of a model while its files are read, and afterwards its directory.
 *
 * Invariant: names are unique; each view lies inside the bytes that its file's parser was given (the parser
 * checks). Owns the arrays and copies of the names; borrows the data. */
#pragma once

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "formats/name_table.h"
#include "formats/weights.h"

enum { TENSOR_COUNT_MAX = 1 << 20 }; /* the largest published mixture has about 100,000 */

/* Where a tensor is described, for sentences. */
struct tensor_place {
    const char *file;      /* path, borrowed from struct weights */
    uint64_t entry_offset; /* in that file */
};

struct tensor_list {
    struct weight_view *views;   /* [count] */
    struct tensor_place *places; /* [count] */
    uint32_t count, capacity;
    struct name_table names; /* same numbers */
    struct arena name_bytes;
    uint64_t bytes; /* sum over all views */
};

void tensor_list_fini(struct tensor_list *list); /* takes a zeroed one too */

/* Appends `view` under a copy of `name` (view->name is ignored). Errors: STATUS_CORRUPT when the name is
 * taken, with the sentence; STATUS_LIMIT, STATUS_NOMEM. */
enum status tensor_list_add(struct tensor_list *list, struct slice name,
                            const struct weight_view *view, struct tensor_place place,
                            struct error *err);

/* Sorts the numbers first..count-1 by where their data begins (then ends) into *order, malloc'ed, the
 * caller frees it; count - first of them. STATUS_NOMEM. */
enum status tensor_list_by_data(const struct tensor_list *list, uint32_t first, uint32_t **order);

/* Two of the tensors first..count-1 that share bytes: STATUS_CORRUPT and both numbers, the later one in the
 * file second. STATUS_NOMEM. O(n log n). */
enum status tensor_list_find_overlap(const struct tensor_list *list, uint32_t first,
                                     uint32_t pair[2]);
/* The sentence for them; returns STATUS_CORRUPT. */
enum status tensor_list_fail_overlap(const struct tensor_list *list, const uint32_t pair[2],
                                     struct error *err);

/* Sets view->bytes from its dims and dtype. STATUS_CORRUPT, and why, when a product leaves 64 bits or a row
 * is no whole number of blocks. */
enum status tensor_size(struct weight_view *view, const char **why);
