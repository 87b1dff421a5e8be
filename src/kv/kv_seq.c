#include "kv/kv_seq.h"

#include <assert.h>
#include <string.h>

enum status kv_space_init(struct kv_space *space, uint32_t group_count,
                          const uint32_t block_tokens[], const uint32_t capacity[],
                          bool share_prefixes)
{
    *space = (struct kv_space){0};
    if (group_count < 1 || group_count > KV_GROUPS_MAX) return STATUS_INVALID;
    space->group_count = group_count;
    for (uint32_t g = 0; g < group_count; g++) {
        space->block_tokens[g] = block_tokens[g];
        enum status st =
            block_tokens[g] ? kv_pool_create(capacity[g], &space->pools[g]) : STATUS_INVALID;
        if (st) {
            kv_space_fini(space);
            return st;
        }
    }
    if (share_prefixes && kv_prefix_create(space, &space->prefix)) {
        kv_space_fini(space);
        return STATUS_NOMEM;
    }
    return STATUS_OK;
}

void kv_space_fini(struct kv_space *space)
{
    kv_prefix_destroy(space->prefix);
    for (uint32_t g = 0; g < space->group_count; g++)
        kv_pool_destroy(space->pools[g]);
    *space = (struct kv_space){0};
}

void kv_space_check(const struct kv_space *space)
{
    for (uint32_t g = 0; g < space->group_count; g++)
        kv_pool_check(space->pools[g]);
    if (space->prefix) kv_prefix_check(space->prefix);
}

uint32_t kv_space_blocks(const struct kv_space *space, uint32_t group, uint32_t tokens)
{
    uint32_t per = space->block_tokens[group];

    return tokens / per + (tokens % per != 0);
}

int kv_space_fits(const struct kv_space *space, uint32_t tokens)
{
    for (uint32_t g = 0; g < space->group_count; g++)
        if (kv_space_blocks(space, g, tokens) > kv_pool_capacity(space->pools[g])) return 0;
    return 1;
}

enum status kv_seq_promise(struct kv_seq *seq, struct kv_space *space, uint32_t tokens)
{
    for (uint32_t g = 0; g < space->group_count; g++) {
        struct kv_table *table = &seq->tables[g];
        uint32_t blocks = kv_space_blocks(space, g, tokens);

        assert(table->count <= blocks && table->promised == 0 && blocks <= table->capacity);
        if (kv_pool_promise(space->pools[g], blocks - table->count)) {
            kv_seq_drop(seq, space);
            return STATUS_EXHAUSTED;
        }
        table->promised = blocks - table->count;
    }
    return STATUS_OK;
}

void kv_seq_grow(struct kv_seq *seq, struct kv_space *space, uint32_t tokens)
{
    for (uint32_t g = 0; g < space->group_count; g++) {
        struct kv_table *table = &seq->tables[g];
        uint32_t blocks = kv_space_blocks(space, g, tokens);

        while (table->count < blocks) {
            assert(table->promised > 0 && table->count < table->capacity);
            table->blocks[table->count++] = kv_pool_take(space->pools[g]);
            table->promised--;
        }
    }
}

enum status kv_seq_extend(struct kv_seq *seq, struct kv_space *space, uint32_t tokens)
{
    uint32_t more[KV_GROUPS_MAX];

    for (uint32_t g = 0; g < space->group_count; g++) {
        const struct kv_table *table = &seq->tables[g];
        uint32_t blocks = kv_space_blocks(space, g, tokens), has = table->count + table->promised;

        more[g] = blocks > has ? blocks - has : 0;
        if (more[g] > kv_pool_available_count(space->pools[g])) return STATUS_EXHAUSTED;
    }
    for (uint32_t g = 0; g < space->group_count; g++) {
        enum status st = kv_pool_promise(space->pools[g], more[g]);

        assert(st == STATUS_OK); /* available just now */
        (void)st;
        seq->tables[g].promised += more[g];
    }
    kv_seq_grow(seq, space, tokens);
    return STATUS_OK;
}

void kv_seq_drop(struct kv_seq *seq, struct kv_space *space)
{
    uint32_t first_count = seq->tables[0].count;

    /* Group 0, which names the entries, last: an entry is idle only when all its blocks are. */
    for (uint32_t g = space->group_count; g-- > 0;) {
        struct kv_table *table = &seq->tables[g];

        kv_pool_unpromise(space->pools[g], table->promised);
        table->promised = table->sent = 0;
        if (g == 0) break;
        while (table->count > 0)
            kv_pool_unref(space->pools[g], table->blocks[--table->count]);
    }
    /* The end first: the beginning of a chain is evicted, or taken again, last. */
    for (uint32_t i = first_count; i-- > 0;) {
        uint32_t block = seq->tables[0].blocks[i];

        kv_pool_unref(space->pools[0], block);
        if (space->prefix) kv_prefix_dropped(space->prefix, block);
    }
    seq->tables[0].count = 0;
}

uint32_t kv_seq_block_count(const struct kv_seq *seq, const struct kv_space *space)
{
    uint32_t count = 0;

    for (uint32_t g = 0; g < space->group_count; g++)
        count += seq->tables[g].count;
    return count;
}
