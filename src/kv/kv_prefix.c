#include "kv/kv_prefix.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "kv/kv_block.h"
#include "kv/kv_seq.h"

enum { NONE = KV_PREFIX_NONE, PINNED_PART = 4, PIN_END_MAX = (1 << 28) - 1 };
static_assert((uint32_t)NONE == (uint32_t)KV_BLOCK_NONE, "an entry is named by a block");

struct blocks { /* the index's side of one group */
    struct kv_prefix *prefix;
    uint32_t group;
    struct kv_block *lines; /* the pool's */
    uint32_t need;          /* spans whose blocks the next position sees; UINT32_MAX: all */
    struct {
        uint32_t first, last; /* least recently used first; of names, or in a group with a window */
        uint32_t count;
    } lists[LISTS];
    uint32_t held; /* in a group with a window */
};

/* A place of the table of keys: open addressing, from the low bits of the hash on. It carries the hash, so that other keys are passed over without a
 * look at their entries, and so that other threads may guess (kv_prefix_guess): hash << 32 | WHOLE | entry. */
#define FREE  UINT64_MAX
#define WHOLE (UINT64_C(1) << 31) /* the entry has its block in each group with a window */

struct kv_prefix {
    struct kv_space *space;
    uint32_t span, capacity;
    uint64_t secret, serials;
    _Atomic uint64_t *places; /* [place_mask + 1], at most half of them taken */
    uint32_t place_mask;
    struct kv_block *entries; /* [capacity], the pool's, by block of names */
    int32_t *tokens;          /* [capacity][span] */
    struct blocks groups[KV_GROUPS_MAX];
    uint32_t entry_count;
    uint32_t pin_count, pins_max; /* entries with a pin; bound of them */
    uint32_t now_s;
    uint64_t evicted;
    uint64_t losses;    /* blocks that entries lost in groups with a window */
    uint32_t need_most; /* of the groups with a window; 0: there is none */
};

struct kv_chain kv_chain_start(uint64_t salt)
{
    return (struct kv_chain){salt, salt, true};
}

struct kv_chain kv_prefix_behind(const struct kv_prefix *p, uint32_t e)
{
    return (struct kv_chain){p->entries[e].serial, p->entries[e].name, false};
}

/* The name of the text behind the span. Its low half is the hash of the key. */
static uint64_t name_behind(const struct kv_prefix *p, const struct kv_chain *chain,
                            const int32_t *tokens)
{
    uint64_t h = hash_bytes(tokens, p->span * sizeof *tokens, p->secret);

    return hash_mix64(h ^ hash_mix64(chain->name + chain->start));
}

static bool is_key(const struct kv_prefix *p, uint32_t e, struct kv_chain chain,
                   const int32_t *tokens)
{
    const struct kv_block *entry = &p->entries[e];

    return entry->chain_serial == chain.serial && entry->chain_start == chain.start &&
           memcmp(p->tokens + (size_t)e * p->span, tokens, p->span * sizeof *tokens) == 0;
}

static uint64_t place(const struct kv_prefix *p, uint32_t at)
{
    return atomic_load_explicit(&p->places[at], memory_order_relaxed);
}

static void set_place(struct kv_prefix *p, uint32_t at, uint64_t place)
{
    atomic_store_explicit(&p->places[at], place, memory_order_relaxed);
}

static uint32_t hash_in(uint64_t place)
{
    return (uint32_t)(place >> 32);
}

static uint32_t entry_in(uint64_t place)
{
    return (uint32_t)(place & (WHOLE - 1));
}

/* *free_at: where it would be put, if there is none. */
static uint32_t find(const struct kv_prefix *p, uint64_t name, struct kv_chain *chain,
                     const int32_t *tokens, uint32_t *free_at)
{
    uint32_t at = (uint32_t)name & p->place_mask;

    for (uint64_t there; (there = place(p, at)) != FREE; at = (at + 1) & p->place_mask) {
        uint32_t e = entry_in(there);

        if (hash_in(there) != (uint32_t)name || !is_key(p, e, *chain, tokens)) continue;
        *chain = kv_prefix_behind(p, e);
        return e;
    }
    *free_at = at;
    return NONE;
}

static uint32_t place_of(const struct kv_prefix *p, uint32_t e)
{
    uint32_t at = (uint32_t)p->entries[e].name & p->place_mask;

    while (entry_in(place(p, at)) != e)
        at = (at + 1) & p->place_mask;
    return at;
}

/* Its place is free again; those behind it that it had pushed on move up. */
static void vacate(struct kv_prefix *p, uint32_t e)
{
    uint32_t mask = p->place_mask, at = place_of(p, e);
    uint64_t there;

    for (uint32_t next = (at + 1) & mask; (there = place(p, next)) != FREE;
         next = (next + 1) & mask) {
        uint32_t home = hash_in(there) & mask;

        if (((next - home) & mask) < ((next - at) & mask)) continue; /* its home is behind `at` */
        set_place(p, at, there);
        at = next;
    }
    set_place(p, at, FREE);
}

uint32_t kv_prefix_find(const struct kv_prefix *p, struct kv_chain *chain, const int32_t *tokens)
{
    uint32_t at;

    return find(p, name_behind(p, chain, tokens), chain, tokens, &at);
}

struct kv_chain kv_prefix_chain_of(const struct kv_prefix *p, const struct kv_seq *seq,
                                   uint32_t count, uint64_t salt, uint32_t *known)
{
    const uint32_t *blocks = seq->tables[p->space->names].blocks;

    while (count > 0 && !p->entries[blocks[count - 1]].serial)
        count--;
    *known = count;
    return count ? kv_prefix_behind(p, blocks[count - 1]) : kv_chain_start(salt);
}

bool kv_prefix_ready(const struct kv_prefix *p, uint32_t e, uint64_t done_seq_no)
{
    const struct kv_block *entry = &p->entries[e];

    return entry->serial && (!entry->owner || (entry->seq_no && entry->seq_no <= done_seq_no));
}

uint32_t kv_prefix_owner(const struct kv_prefix *p, uint32_t e)
{
    return p->entries[e].owner;
}

uint64_t kv_prefix_serial(const struct kv_prefix *p, uint32_t e)
{
    return p->entries[e].serial;
}

uint32_t kv_prefix_span(const struct kv_prefix *p)
{
    return p->span;
}

/* --- idle entries, and how the pools get their blocks back ------------------------------------------------------ */

static bool has_window(const struct kv_prefix *p, uint32_t group)
{
    return p->space->groups[group].window > 0;
}

static uint32_t *other_in(const struct kv_prefix *p, uint32_t e, uint32_t group)
{
    assert(group != p->space->names);
    return &p->entries[e].others[group < p->space->names ? group : group - 1];
}

static uint32_t block_in(const struct kv_prefix *p, uint32_t e, uint32_t group)
{
    return group == p->space->names ? e : *other_in(p, e, group);
}

/* What is idle in the list of names frees a block in every group that has no window; the others have lists of their own. */
static void add_reclaimable(struct kv_prefix *p, uint32_t group, int change)
{
    if (has_window(p, group)) {
        kv_pool_add_reclaimable(p->space->pools[group], change);
        return;
    }
    for (uint32_t g = 0; g < p->space->table_count; g++)
        if (!has_window(p, g)) kv_pool_add_reclaimable(p->space->pools[g], change);
}

/* To the end of a list. */
static void enlist(struct kv_prefix *p, uint32_t group, uint32_t block, enum kv_block_list list)
{
    struct blocks *b = &p->groups[group];
    struct kv_block *line = &b->lines[block];
    uint32_t last = b->lists[list].last;

    line->list = list;
    line->prev = last;
    line->next = NONE;
    *(last == NONE ? &b->lists[list].first : &b->lines[last].next) = block;
    b->lists[list].last = block;
    b->lists[list].count++;
    if (list == LIST_IDLE) add_reclaimable(p, group, 1);
}

static void delist(struct kv_prefix *p, uint32_t group, uint32_t block)
{
    struct blocks *b = &p->groups[group];
    struct kv_block *line = &b->lines[block];
    enum kv_block_list list = (enum kv_block_list)line->list;

    if (list == LIST_NONE) return;
    line->list = LIST_NONE;
    *(line->prev == NONE ? &b->lists[list].first : &b->lines[line->prev].next) = line->next;
    *(line->next == NONE ? &b->lists[list].last : &b->lines[line->next].prev) = line->prev;
    b->lists[list].count--;
    if (list == LIST_IDLE) add_reclaimable(p, group, -1);
}

/* --- groups with a window --------------------------------------------------------------------------------------- */

struct kv_landing kv_landing_at(uint32_t spans)
{
    return (struct kv_landing){spans, {spans, spans, spans, spans}};
}
static_assert(KV_GROUPS_MAX == 4, "kv_landing");

bool kv_prefix_landing(const struct kv_prefix *p, struct kv_landing *walk, uint32_t e)
{
    bool lands = true;

    walk->spans++;
    for (uint32_t g = 0; g < p->space->group_count; g++) {
        uint32_t need = p->groups[g].need;

        if (!has_window(p, g)) continue;
        walk->runs[g] = block_in(p, e, g) == NONE ? 0 : walk->runs[g] + 1;
        lands &= walk->runs[g] >= (need < walk->spans ? need : walk->spans);
    }
    return lands;
}

/* What some entry with the hash says of itself; FREE: there is none. */
static uint64_t glance(const struct kv_prefix *p, uint32_t hash)
{
    uint32_t at = hash & p->place_mask;
    uint64_t there;

    while ((there = place(p, at)) != FREE && hash_in(there) != hash)
        at = (at + 1) & p->place_mask;
    return there;
}

/* Of the groups with a window the one that needs most decides. */
uint32_t kv_prefix_guess(const struct kv_prefix *p, uint64_t salt, const int32_t *tokens,
                         uint32_t count)
{
    struct kv_chain chain = kv_chain_start(salt);
    uint32_t whole = 0, lands = 0;

    for (uint32_t i = 0; p->span && i < count; i++) {
        chain.name = name_behind(p, &chain, tokens + (size_t)i * p->span);
        chain.start = false;
        uint64_t there = glance(p, (uint32_t)chain.name);
        if (there == FREE) break;
        whole = there & WHOLE ? whole + 1 : 0;
        if (whole >= (p->need_most < i + 1 ? p->need_most : i + 1)) lands = i + 1;
    }
    return lands;
}

uint64_t kv_prefix_losses(const struct kv_prefix *p)
{
    return p->losses;
}

/* For other threads' guesses. */
static void tell_whole(struct kv_prefix *p, uint32_t e)
{
    uint32_t at = place_of(p, e);
    uint64_t whole = WHOLE;

    for (uint32_t g = 0; g < p->space->group_count; g++)
        if (has_window(p, g) && block_in(p, e, g) == NONE) whole = 0;
    set_place(p, at, (place(p, at) & ~WHOLE) | whole);
}

/* The entry has lost its block there. */
static void lose(struct kv_prefix *p, uint32_t group, uint32_t block)
{
    struct kv_block *line = &p->groups[group].lines[block];

    delist(p, group, block);
    *other_in(p, line->entry, group) = NONE;
    line->serial = 0;
    p->groups[group].held--;
    kv_pool_unref(p->space->pools[group], block);
}

void kv_prefix_complete(struct kv_prefix *p, uint32_t e, const struct kv_seq *seq, uint32_t index)
{
    for (uint32_t g = 0; g < p->space->group_count; g++) {
        const struct kv_table *table = &seq->tables[g];

        if (!has_window(p, g) || block_in(p, e, g) != NONE) continue;
        if (index < table->first || index >= table->count) continue;
        uint32_t block = table->blocks[index];
        struct kv_block *line = &p->groups[g].lines[block];
        if (line->serial) continue;
        *other_in(p, e, g) = block;
        line->entry = e;
        line->serial = p->entries[e].serial;
        line->list = LIST_NONE;
        p->groups[g].held++;
        kv_pool_ref(p->space->pools[g], block);
    }
    if (p->need_most) tell_whole(p, e);
}

/* Of an entry that goes to a list or leaves it: blocks that nobody uses go with it to LIST_PINNED and back. */
static void keep_window(struct kv_prefix *p, uint32_t e, bool keep)
{
    enum kv_block_list to = keep ? LIST_PINNED : LIST_IDLE;

    for (uint32_t g = 0; g < p->space->group_count; g++) {
        struct kv_pool *pool = p->space->pools[g];
        uint32_t block = block_in(p, e, g);

        if (!has_window(p, g) || block == NONE) continue;
        if (p->groups[g].lines[block].list != (keep ? LIST_IDLE : LIST_PINNED)) continue;
        /* what is promised away cannot be kept */
        if (keep && (kv_pool_available_count(pool) == 0 ||
                     p->groups[g].lists[LIST_PINNED].count >= kv_pool_capacity(pool) / PINNED_PART))
            continue;
        delist(p, g, block);
        enlist(p, g, block, to);
    }
}

static void enlist_entry(struct kv_prefix *p, uint32_t e, enum kv_block_list list)
{
    enlist(p, p->space->names, e, list);
    if (list == LIST_PINNED && p->entries[e].keeps_window) keep_window(p, e, true);
}

static void delist_entry(struct kv_prefix *p, uint32_t e)
{
    if (p->entries[e].list == LIST_PINNED) keep_window(p, e, false);
    delist(p, p->space->names, e);
}

static struct blocks *names_of(struct kv_prefix *p)
{
    return &p->groups[p->space->names];
}

/* --- pins ------------------------------------------------------------------------------------------------------- */

static void unpin(struct kv_prefix *p, uint32_t e)
{
    if (p->entries[e].pinned_s == 0) return;
    p->entries[e].pinned_s = 0;
    p->entries[e].keeps_window = 0;
    p->pin_count--;
    if (p->entries[e].list != LIST_PINNED) return;
    delist_entry(p, e);
    enlist_entry(p, e, LIST_IDLE);
}

bool kv_prefix_pin(struct kv_prefix *p, uint32_t e, uint32_t seconds, uint32_t left)
{
    struct kv_block *entry = &p->entries[e];
    uint64_t end_s = (uint64_t)p->now_s + seconds;
    uint32_t until_s = end_s < PIN_END_MAX ? (uint32_t)end_s : PIN_END_MAX;

    assert(entry->serial);
    if (entry->pinned_s == 0) {
        /* An idle one counts as available, and might be promised. */
        if (entry->list == LIST_IDLE || p->pin_count == p->pins_max || seconds == 0) return false;
        p->pin_count++;
    }
    if (until_s > entry->pinned_s) entry->pinned_s = until_s & PIN_END_MAX;
    for (uint32_t g = 0; g < p->space->group_count; g++)
        if (has_window(p, g) && left < p->groups[g].need) entry->keeps_window = 1;
    return true;
}

void kv_prefix_set_time(struct kv_prefix *p, int64_t now_ns)
{
    uint32_t now_s = (uint32_t)(now_ns / 1000000000), next;

    if (now_s == p->now_s) return;
    p->now_s = now_s;
    for (uint32_t e = names_of(p)->lists[LIST_PINNED].first; e != NONE; e = next) {
        next = p->entries[e].next;
        if (p->entries[e].pinned_s <= now_s) unpin(p, e);
    }
}

bool kv_prefix_unpin_idle(struct kv_prefix *p, uint32_t most)
{
    bool any = false;
    const struct blocks *names = names_of(p);

    for (; most-- > 0 && names->lists[LIST_PINNED].first != NONE; any = true)
        unpin(p, names->lists[LIST_PINNED].first);
    return any;
}

/* --- the end of entries ----------------------------------------------------------------------------------------- */

/* The entry is none any more; its blocks lose the index's reference. */
static void forget(struct kv_prefix *p, uint32_t e)
{
    vacate(p, e);
    unpin(p, e);
    delist_entry(p, e);
    p->entries[e].serial = 0;
    p->entry_count--;
    for (uint32_t g = 0; g < p->space->table_count; g++) {
        uint32_t block = block_in(p, e, g);

        if (!has_window(p, g))
            kv_pool_unref(p->space->pools[g], block);
        else if (block != NONE)
            lose(p, g, block);
    }
}

/* What the next eviction will touch: it comes after some other work, as a rule. */
static void fetch_ahead(const struct kv_prefix *p, uint32_t e)
{
    if (e == NONE) return;
    __builtin_prefetch(&p->places[(uint32_t)p->entries[e].name & p->place_mask], 1);
    __builtin_prefetch(p->tokens + (size_t)e * p->span, 1);
    if (p->entries[e].next != NONE) __builtin_prefetch(&p->entries[p->entries[e].next], 1);
}

static void evict_oldest(void *ctx)
{
    struct blocks *b = ctx;
    struct kv_prefix *p = b->prefix;

    if (has_window(p, b->group)) {
        assert(b->lists[LIST_IDLE].first != NONE);
        uint32_t block = b->lists[LIST_IDLE].first, e = b->lines[block].entry;

        p->losses++;
        lose(p, b->group, block);
        tell_whole(p, e);
        return;
    }
    assert(names_of(p)->lists[LIST_IDLE].first != NONE);
    p->evicted++;
    forget(p, names_of(p)->lists[LIST_IDLE].first);
    fetch_ahead(p, names_of(p)->lists[LIST_IDLE].first);
}

void kv_prefix_dropped(struct kv_prefix *p, uint32_t group, uint32_t block)
{
    struct kv_block *line = &p->groups[group].lines[block];

    if (group != p->space->names && !has_window(p, group)) return;
    if (!line->serial || line->list != LIST_NONE || kv_pool_refs(p->space->pools[group], block) > 1)
        return;
    if (has_window(p, group)) {
        enlist(p, group, block, LIST_IDLE);
        /* of a pinned one that nobody uses: it got the block from another just now */
        if (p->entries[line->entry].list == LIST_PINNED && p->entries[line->entry].keeps_window)
            keep_window(p, line->entry, true);
        return;
    }
    if (line->pinned_s && line->pinned_s <= p->now_s) unpin(p, block);
    enlist_entry(p, block, line->pinned_s ? LIST_PINNED : LIST_IDLE);
}

/* The next block of a table; in a group with a window, one that is not seen leaves its place empty. */
static void adopt_in(struct kv_prefix *p, uint32_t group, uint32_t e, struct kv_table *table,
                     bool seen)
{
    uint32_t block = seen ? block_in(p, e, group) : NONE;

    assert(table->count < table->capacity && (!seen || block != NONE));
    table->blocks[table->count++] = block;
    if (seen)
        kv_pool_ref(p->space->pools[group], block);
    else
        table->first = table->count;
}

void kv_prefix_adopt(struct kv_prefix *p, uint32_t e, struct kv_seq *seq, uint32_t left)
{
    delist_entry(p, e);
    for (uint32_t g = 0; g < p->space->table_count; g++) {
        bool seen = left < p->groups[g].need;

        if (seen && has_window(p, g)) delist(p, g, block_in(p, e, g));
        adopt_in(p, g, e, &seq->tables[g], seen);
    }
}

/* --- making and unmaking entries -------------------------------------------------------------------------------- */

bool kv_prefix_put(struct kv_prefix *p, struct kv_chain *chain, const int32_t *tokens,
                   const struct kv_seq *seq, uint32_t index, uint32_t owner)
{
    struct kv_chain there = *chain;
    uint64_t name = name_behind(p, chain, tokens);
    uint32_t e = seq->tables[p->space->names].blocks[index], at;
    uint32_t found = find(p, name, &there, tokens, &at);

    if (found != NONE) { /* ours already, or another's: then ours stays private */
        if (found == e) *chain = there;
        return found == e;
    }
    struct kv_block *entry = &p->entries[e];
    assert(entry->serial == 0);
    entry->serial = ++p->serials;
    entry->chain_serial = chain->serial;
    entry->chain_start = chain->start;
    entry->name = name;
    entry->owner = owner;
    entry->seq_no = 0;
    entry->pinned_s = entry->keeps_window = 0;
    entry->list = LIST_NONE;
    set_place(p, at, name << 32 | WHOLE | e);
    memcpy(p->tokens + (size_t)e * p->span, tokens, p->span * sizeof *tokens);
    p->entry_count++;
    for (uint32_t g = 0; g < p->space->table_count; g++) {
        bool window = has_window(p, g);

        if (g != p->space->names) *other_in(p, e, g) = window ? NONE : seq->tables[g].blocks[index];
        if (!window) kv_pool_ref(p->space->pools[g], seq->tables[g].blocks[index]);
    }
    kv_prefix_complete(p, e, seq, index);
    *chain = kv_prefix_behind(p, e);
    return true;
}

bool kv_prefix_computed(struct kv_prefix *p, uint32_t e, uint32_t owner, uint64_t seq_no)
{
    if (!p->entries[e].serial || p->entries[e].owner != owner) return false;
    p->entries[e].seq_no = seq_no;
    return true;
}

void kv_prefix_retract(struct kv_prefix *p, const struct kv_seq *seq, uint32_t count,
                       uint32_t owner, uint64_t done_seq_no)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t e = seq->tables[p->space->names].blocks[i];
        struct kv_block *entry = &p->entries[e];

        if (!entry->serial || entry->owner != owner) continue;
        if (kv_prefix_ready(p, e, done_seq_no))
            entry->owner = 0;
        else
            forget(p, e);
    }
}

/* --- life ------------------------------------------------------------------------------------------------------- */

static uint32_t common_span(const struct kv_space *space)
{
    for (uint32_t g = 1; g < space->table_count; g++)
        if (space->groups[g].block_tokens != space->groups[0].block_tokens) return 0;
    return space->groups[0].block_tokens;
}

static void init_group(struct kv_prefix *p, uint32_t group)
{
    const struct kv_group *g = &p->space->groups[group];
    struct blocks *b = &p->groups[group];

    b->prefix = p;
    b->group = group;
    b->lines = kv_pool_blocks(p->space->pools[group]);
    b->need = g->window ? (g->window - 1 + g->block_tokens - 1) / g->block_tokens : UINT32_MAX;
    if (g->window && b->need > p->need_most) p->need_most = b->need;
    for (int i = 0; i < LISTS; i++)
        b->lists[i].first = b->lists[i].last = NONE;
    kv_pool_set_reclaim(p->space->pools[group], evict_oldest, b);
}

enum status kv_prefix_create(struct kv_space *space, struct kv_prefix **out)
{
    struct kv_prefix *p = calloc(1, sizeof *p);
    uint32_t places = 1;

    if (!p) return STATUS_NOMEM;
    p->space = space;
    p->span = common_span(space);
    p->capacity = kv_pool_capacity(space->pools[space->names]);
    p->secret = hash_secret();
    p->pins_max = p->capacity / PINNED_PART;
    while (places < 2 * p->capacity)
        places *= 2;
    p->place_mask = places - 1;
    size_t tokens_bytes = (size_t)p->capacity * (p->span ? p->span : 1) * sizeof *p->tokens;
    p->places = malloc(places * sizeof *p->places);
    p->entries = kv_pool_blocks(space->pools[space->names]);
    p->tokens = malloc(tokens_bytes);
    if (!p->places || !p->tokens) {
        kv_prefix_destroy(p);
        return STATUS_NOMEM;
    }
    for (uint32_t at = 0; at < places; at++)
        atomic_init(&p->places[at], FREE);
    memset(p->tokens, 0, tokens_bytes); /* takes the pages now, not while serving */
    for (uint32_t g = 0; g < space->table_count; g++)
        init_group(p, g);
    *out = p;
    return STATUS_OK;
}

void kv_prefix_destroy(struct kv_prefix *p)
{
    if (!p) return;
    bool whole = p->groups[0].prefix != NULL;

    if (whole) kv_prefix_unpin_idle(p, UINT32_MAX);
    while (whole && names_of(p)->lists[LIST_IDLE].first != NONE) {
        forget(p, names_of(p)->lists[LIST_IDLE].first);
        fetch_ahead(p, names_of(p)->lists[LIST_IDLE].first);
    }
    assert(p->entry_count == 0);
    free(p->places);
    free(p->tokens);
    free(p);
}

struct kv_prefix_counts kv_prefix_counts(const struct kv_prefix *p)
{
    const struct blocks *names = &p->groups[p->space->names];

    return (struct kv_prefix_counts){p->entry_count, names->lists[LIST_IDLE].count,
                                     names->lists[LIST_PINNED].count, p->pin_count, p->evicted};
}

uint32_t kv_prefix_held(const struct kv_prefix *p, uint32_t group)
{
    return has_window(p, group) ? p->groups[group].held : p->entry_count;
}

uint32_t kv_prefix_kept(const struct kv_prefix *p, uint32_t group)
{
    return p->groups[has_window(p, group) ? group : p->space->names].lists[LIST_PINNED].count;
}

static void check_list(const struct kv_prefix *p, uint32_t group, enum kv_block_list list,
                       uint32_t count)
{
    const struct blocks *b = &p->groups[group];
    uint32_t listed = 0;

    for (uint32_t i = b->lists[list].first; i != NONE; i = b->lines[i].next) {
        uint32_t e = has_window(p, group) ? b->lines[i].entry : i;

        assert(b->lines[i].serial && b->lines[i].list == list);
        if (list == LIST_PINNED || group == p->space->names)
            assert((list == LIST_PINNED) == (p->entries[e].pinned_s > 0));
        assert(++listed <= kv_pool_capacity(p->space->pools[group]));
    }
    assert(listed == count && listed == b->lists[list].count);
}

struct block_counts {
    uint32_t held, lists[LISTS];
};

/* The entry's block in a group with a window. */
static void check_window(const struct kv_prefix *p, uint32_t e, uint32_t group,
                         struct block_counts *counts)
{
    uint32_t block = block_in(p, e, group);
    const struct kv_block *line;

    if (block == NONE) return;
    line = &p->groups[group].lines[block];
    assert(line->entry == e && line->serial == p->entries[e].serial);
    assert((kv_pool_refs(p->space->pools[group], block) == 1) == (line->list != LIST_NONE));
    /* its name is in use where it is, and it is kept only where its name is */
    if (line->list == LIST_NONE) assert(p->entries[e].list == LIST_NONE);
    if (line->list == LIST_PINNED) assert(p->entries[e].list == LIST_PINNED);
    counts[group].held++;
    counts[group].lists[line->list]++;
}

/* Each entry is found: no free place stands between its home and it. */
static void check_places(const struct kv_prefix *p)
{
    uint32_t taken = 0;

    for (uint32_t at = 0; at <= p->place_mask; at++) {
        uint64_t there = place(p, at);
        uint32_t e = entry_in(there);

        if (there == FREE) continue;
        assert(p->entries[e].serial && (uint32_t)p->entries[e].name == hash_in(there));
        assert(place_of(p, e) == at);
        for (uint32_t i = hash_in(there) & p->place_mask; i != at; i = (i + 1) & p->place_mask)
            assert(place(p, i) != FREE);
        taken++;
    }
    assert(taken == p->entry_count);
}

void kv_prefix_check(const struct kv_prefix *p)
{
    struct block_counts counts[KV_GROUPS_MAX] = {0};
    uint32_t names = p->space->names, pins = 0;

    check_places(p);

    for (uint32_t e = 0; e < p->capacity; e++) {
        const struct kv_block *entry = &p->entries[e];

        if (!entry->serial) continue;
        pins += entry->pinned_s > 0;
        counts[names].held++;
        counts[names].lists[entry->list]++;
        for (uint32_t g = 0; g < p->space->table_count; g++) {
            if (has_window(p, g)) {
                check_window(p, e, g, counts);
            } else {
                uint32_t refs = kv_pool_refs(p->space->pools[g], block_in(p, e, g));
                assert(refs >= 1 && (refs == 1) == (entry->list != LIST_NONE));
            }
        }
    }
    for (uint32_t g = 0; g < p->space->table_count; g++) {
        if (g != names && !has_window(p, g)) continue;
        assert(counts[g].held == kv_prefix_held(p, g));
        check_list(p, g, LIST_IDLE, counts[g].lists[LIST_IDLE]);
        check_list(p, g, LIST_PINNED, counts[g].lists[LIST_PINNED]);
    }
    assert(pins == p->pin_count && pins <= p->pins_max);
}
