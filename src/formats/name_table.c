#include "formats/name_table.h"

#include <stdlib.h>

#include "base/hash.h"

void name_table_fini(struct name_table *table)
{
    free(table->names);
    free(table->slots);
    *table = (struct name_table){0};
}

/* Names come from files that strangers made: the seed keeps them from choosing collisions. */
static uint32_t first_slot(const struct name_table *table, struct slice name)
{
    return (uint32_t)hash_bytes(name.ptr, name.len, hash_secret()) & (table->slot_count - 1);
}

static void put(struct name_table *table, uint32_t number)
{
    uint32_t slot = first_slot(table, table->names[number]);

    while (table->slots[slot])
        slot = (slot + 1) & (table->slot_count - 1);
    table->slots[slot] = number + 1;
}

/* Doubles both arrays: twice as many slots as names can come. */
static enum status grow(struct name_table *table)
{
    uint32_t capacity = table->capacity ? table->capacity * 2 : 64;
    struct slice *names = realloc(table->names, capacity * sizeof *names);
    uint32_t *slots;

    if (!names) return STATUS_NOMEM;
    table->names = names;
    slots = calloc(2 * (size_t)capacity, sizeof *slots);
    if (!slots) return STATUS_NOMEM;
    free(table->slots);
    table->slots = slots;
    table->slot_count = 2 * capacity;
    table->capacity = capacity;
    for (uint32_t i = 0; i < table->count; i++)
        put(table, i);
    return STATUS_OK;
}

enum status name_table_add(struct name_table *table, struct slice name, uint32_t *number)
{
    enum status st = STATUS_OK;

    *number = name_table_find(table, name);
    if (*number != NAME_NONE) return STATUS_INVALID;
    if (table->count >= UINT32_MAX / 4) return STATUS_NOMEM;
    if (table->count == table->capacity) st = grow(table);
    if (st) return st;
    table->names[table->count] = name;
    put(table, table->count);
    *number = table->count++;
    return STATUS_OK;
}

uint32_t name_table_find(const struct name_table *table, struct slice name)
{
    uint32_t slot;

    if (table->count == 0) return NAME_NONE;
    for (slot = first_slot(table, name); table->slots[slot];
         slot = (slot + 1) & (table->slot_count - 1)) {
        uint32_t number = table->slots[slot] - 1;
        if (slice_eq(table->names[number], name)) return number;
    }
    return NAME_NONE;
}
