#include "kv/kv_seq.h"

#include <assert.h>
#include <string.h>

static enum status add_group(struct kv_space *space, struct kv_group group)
{
    uint32_t g = space->table_count;
    enum status st =
        group.block_tokens ? kv_pool_create(group.capacity, &space->pools[g]) : STATUS_INVALID;

    if (st) return st;
    space->groups[g] = group;
    space->table_count++;
    return STATUS_OK;
}

/* Where prefixes are shared, some group keeps all tokens: one without a window, or one of names alone. */
static enum status find_names(struct kv_space *space, uint32_t share_names)
{
    for (uint32_t g = space->group_count; g-- > 0;)
        if (!space->groups[g].window) space->names = g;
    if (!share_names || !space->groups[space->names].window) return STATUS_OK;
    if (space->group_count == KV_GROUPS_MAX) return STATUS_INVALID;
    space->names = space->group_count;
    return add_group(space, (struct kv_group){.block_tokens = space->groups[0].block_tokens,
                                              .capacity = share_names});
}

enum status kv_space_init(struct kv_space *space, uint32_t group_count,
                          const struct kv_group groups[], uint32_t share_names)
{
    enum status st = STATUS_OK;

    *space = (struct kv_space){0};
    if (group_count < 1 || group_count > KV_GROUPS_MAX) return STATUS_INVALID;
    for (uint32_t g = 0; g < group_count && !st; g++)
        st = add_group(space, groups[g]);
    space->group_count = space->table_count;
    if (!st) st = find_names(space, share_names);
    if (!st && share_names) st = kv_prefix_create(space, &space->prefix);
    if (st) kv_space_fini(space);
    return st;
}

void kv_space_fini(struct kv_space *space)
{
    kv_prefix_destroy(space->prefix);
    for (uint32_t g = 0; g < space->table_count; g++)
        kv_pool_destroy(space->pools[g]);
    *space = (struct kv_space){0};
}

void kv_space_check(const struct kv_space *space)
{
    for (uint32_t g = 0; g < space->table_count; g++)
        kv_pool_check(space->pools[g]);
    if (space->prefix) kv_prefix_check(space->prefix);
}

uint32_t kv_space_blocks(const struct kv_space *space, uint32_t group, uint32_t tokens)
{
    uint32_t per = space->groups[group].block_tokens;

    return tokens / per + (tokens % per != 0);
}

uint32_t kv_space_first(const struct kv_space *space, uint32_t group, uint32_t position)
{
    uint32_t window = space->groups[group].window;

    return window && position >= window
               ? (position - window + 1) / space->groups[group].block_tokens
               : 0;
}

bool kv_space_has_window(const struct kv_space *space)
{
    for (uint32_t g = 0; g < space->group_count; g++)
        if (space->groups[g].window) return true;
    return false;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Blocks that a sequence holds at once, of those that are asked for. */
static uint32_t at_once(const struct kv_space *space, uint32_t group, uint32_t blocks)
{
    const struct kv_group *g = &space->groups[group];

    return g->window ? min_u32(blocks, g->held_max) : blocks;
}

int kv_space_fits(const struct kv_space *space, uint32_t tokens)
{
    for (uint32_t g = 0; g < space->table_count; g++)
        if (at_once(space, g, kv_space_blocks(space, g, tokens)) >
            kv_pool_capacity(space->pools[g]))
            return 0;
    return 1;
}

enum status kv_seq_promise(struct kv_seq *seq, struct kv_space *space, uint32_t tokens)
{
    for (uint32_t g = 0; g < space->table_count; g++) {
        struct kv_table *table = &seq->tables[g];
        uint32_t blocks = kv_space_blocks(space, g, tokens), held = table->count - table->first;

        assert(table->count <= blocks && table->promised == 0 && blocks <= table->capacity);
        uint32_t more = min_u32(blocks - table->count, at_once(space, g, blocks) - held);
        if (kv_pool_promise(space->pools[g], more)) {
            kv_seq_drop(seq, space);
            return STATUS_EXHAUSTED;
        }
        table->promised = more;
        table->target = blocks;
    }
    return STATUS_OK;
}

void kv_seq_grow_group(struct kv_seq *seq, struct kv_space *space, uint32_t group, uint32_t tokens)
{
    struct kv_table *table = &seq->tables[group];
    uint32_t blocks = kv_space_blocks(space, group, tokens);

    while (table->count < blocks) {
        assert(table->promised > 0 && table->count < table->capacity);
        table->blocks[table->count++] = kv_pool_take(space->pools[group]);
        table->promised--;
    }
}

void kv_seq_grow(struct kv_seq *seq, struct kv_space *space, uint32_t tokens)
{
    for (uint32_t g = 0; g < space->table_count; g++)
        kv_seq_grow_group(seq, space, g, tokens);
}

/* Nearly always, for the next token. */
static bool has_places(const struct kv_seq *seq, const struct kv_space *space, uint32_t tokens)
{
    for (uint32_t g = 0; g < space->table_count; g++)
        if ((uint64_t)seq->tables[g].count * space->groups[g].block_tokens < tokens) return false;
    return true;
}

enum status kv_seq_extend(struct kv_seq *seq, struct kv_space *space, uint32_t tokens)
{
    uint32_t more[KV_GROUPS_MAX];

    if (has_places(seq, space, tokens)) return STATUS_OK;
    for (uint32_t g = 0; g < space->table_count; g++) {
        const struct kv_table *table = &seq->tables[g];
        uint32_t blocks = kv_space_blocks(space, g, tokens), has = table->count + table->promised;

        more[g] = blocks > has ? blocks - has : 0;
        if (more[g] > kv_pool_available_count(space->pools[g])) return STATUS_EXHAUSTED;
    }
    for (uint32_t g = 0; g < space->table_count; g++) {
        struct kv_table *table = &seq->tables[g];
        enum status st = kv_pool_promise(space->pools[g], more[g]);

        assert(st == STATUS_OK); /* available just now */
        (void)st;
        table->promised += more[g];
        if (table->count + table->promised > table->target)
            table->target = table->count + table->promised;
    }
    kv_seq_grow(seq, space, tokens);
    return STATUS_OK;
}

static void give_up(struct kv_space *space, uint32_t group, uint32_t block)
{
    kv_pool_unref(space->pools[group], block);
    if (space->prefix) kv_prefix_dropped(space->prefix, group, block);
}

void kv_seq_pass(struct kv_seq *seq, struct kv_space *space, uint32_t position)
{
    for (uint32_t g = 0; g < space->group_count; g++) {
        struct kv_table *table = &seq->tables[g];
        uint32_t first = min_u32(kv_space_first(space, g, position), table->count);

        for (; table->first < first; table->first++) {
            give_up(space, g, table->blocks[table->first]);
            table->blocks[table->first] = KV_BLOCK_NONE;
            if (table->count + table->promised < table->target)
                table->promised += kv_pool_promise(space->pools[g], 1) == STATUS_OK;
        }
    }
}

/* The end first: the beginning of a chain is evicted, or taken again, last. */
static void drop_table(struct kv_seq *seq, struct kv_space *space, uint32_t group)
{
    struct kv_table *table = &seq->tables[group];

    kv_pool_unpromise(space->pools[group], table->promised);
    while (table->count > table->first)
        give_up(space, group, table->blocks[--table->count]);
    table->first = table->count = table->sent = table->promised = table->target = 0;
}

void kv_seq_drop(struct kv_seq *seq, struct kv_space *space)
{
    /* The names last: an entry is idle only when all its blocks are. */
    for (uint32_t g = 0; g < space->table_count; g++)
        if (g != space->names) drop_table(seq, space, g);
    drop_table(seq, space, space->names);
}

uint32_t kv_seq_block_count(const struct kv_seq *seq, const struct kv_space *space)
{
    uint32_t count = 0;

    for (uint32_t g = 0; g < space->group_count; g++)
        count += seq->tables[g].count - seq->tables[g].first;
    return count;
}
