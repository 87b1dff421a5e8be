/* name_table.h - names numbered in the order they were added, found by hash. Used for the tensors and the
 * metadata keys of a model; what belongs to a name stands in the user's own array, at its number.
 * Owns its arrays, not the names' bytes. Thread: one while names are added, any afterwards. */
#pragma once

#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"

enum { NAME_NONE = UINT32_MAX };

struct name_table {
    struct slice *names; /* [count] borrowed */
    uint32_t *slots;     /* [slot_count] number + 1, 0 for free; open addressing */
    uint32_t count, capacity, slot_count;
};

void name_table_fini(struct name_table *table); /* takes a zeroed one too */

/* Gives `name` the next number, written to *number. Errors: STATUS_INVALID, it is there already (*number
 * says where); STATUS_NOMEM. O(1) on average. */
enum status name_table_add(struct name_table *table, struct slice name, uint32_t *number);

/* The number of a name, or NAME_NONE. O(1) on average. */
uint32_t name_table_find(const struct name_table *table, struct slice name);
