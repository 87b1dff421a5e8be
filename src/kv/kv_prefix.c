#include "kv/kv_prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "kv/kv_block.h"
#include "kv/kv_seq.h"

enum { NONE = KV_PREFIX_NONE, PINNED_PART = 4, PIN_END_MAX = (1 << 29) - 1 };

struct kv_prefix {
    struct kv_space *space;
    uint32_t span, capacity;
    uint64_t secret, serials;
    uint32_t *buckets; /* [bucket_mask + 1] */
    uint32_t bucket_mask;
    struct kv_block *entries; /* [capacity], the pool's, by block of group 0 */
    int32_t *tokens;          /* [capacity][span] */
    struct {
        uint32_t first, last; /* least recently used first */
        uint32_t count;
    } lists[LISTS];
    uint32_t entry_count;
    uint32_t pin_count, pins_max; /* entries with a pin; bound of them */
    uint32_t now_s;
    uint64_t evicted;
};

struct kv_chain kv_chain_start(uint64_t salt)
{
    return (struct kv_chain){salt, true};
}

struct kv_chain kv_chain_after(uint64_t serial)
{
    return (struct kv_chain){serial, false};
}

static uint32_t hash_key(const struct kv_prefix *p, struct kv_chain chain, const int32_t *tokens)
{
    uint64_t h = hash_bytes(tokens, p->span * sizeof *tokens, p->secret);

    return (uint32_t)hash_mix64(h ^ hash_mix64(chain.serial + chain.start));
}

static bool is_key(const struct kv_prefix *p, uint32_t e, uint32_t hash, struct kv_chain chain,
                   const int32_t *tokens)
{
    const struct kv_block *entry = &p->entries[e];

    return entry->hash == hash && entry->chain_serial == chain.serial &&
           entry->chain_start == chain.start &&
           memcmp(p->tokens + (size_t)e * p->span, tokens, p->span * sizeof *tokens) == 0;
}

static uint32_t find(const struct kv_prefix *p, uint32_t hash, struct kv_chain *chain,
                     const int32_t *tokens)
{
    uint32_t e = p->buckets[hash & p->bucket_mask];

    while (e != NONE && !is_key(p, e, hash, *chain, tokens))
        e = p->entries[e].bucket_next;
    if (e != NONE) *chain = (struct kv_chain){p->entries[e].serial, false};
    return e;
}

uint32_t kv_prefix_find(const struct kv_prefix *p, struct kv_chain *chain, const int32_t *tokens)
{
    return find(p, hash_key(p, *chain, tokens), chain, tokens);
}

struct kv_chain kv_prefix_chain_of(const struct kv_prefix *p, const struct kv_seq *seq,
                                   uint32_t count, uint64_t salt, uint32_t *known)
{
    const uint32_t *blocks = seq->tables[0].blocks;

    while (count > 0 && !p->entries[blocks[count - 1]].serial)
        count--;
    *known = count;
    return count ? kv_chain_after(p->entries[blocks[count - 1]].serial) : kv_chain_start(salt);
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

static uint32_t block_in(const struct kv_prefix *p, uint32_t e, uint32_t group)
{
    return group == 0 ? e : p->entries[e].others[group - 1];
}

static void add_reclaimable(struct kv_prefix *p, int change)
{
    for (uint32_t g = 0; g < p->space->group_count; g++)
        kv_pool_add_reclaimable(p->space->pools[g], change);
}

/* To the end of a list. */
static void enlist(struct kv_prefix *p, uint32_t e, enum kv_block_list list)
{
    struct kv_block *entry = &p->entries[e];
    uint32_t last = p->lists[list].last;

    entry->list = list;
    entry->prev = last;
    entry->next = NONE;
    *(last == NONE ? &p->lists[list].first : &p->entries[last].next) = e;
    p->lists[list].last = e;
    p->lists[list].count++;
    if (list == LIST_IDLE) add_reclaimable(p, 1);
}

static void delist(struct kv_prefix *p, uint32_t e)
{
    struct kv_block *entry = &p->entries[e];
    enum kv_block_list list = (enum kv_block_list)entry->list;

    if (list == LIST_NONE) return;
    entry->list = LIST_NONE;
    *(entry->prev == NONE ? &p->lists[list].first : &p->entries[entry->prev].next) = entry->next;
    *(entry->next == NONE ? &p->lists[list].last : &p->entries[entry->next].prev) = entry->prev;
    p->lists[list].count--;
    if (list == LIST_IDLE) add_reclaimable(p, -1);
}

/* --- pins ------------------------------------------------------------------------------------------------------- */

static void unpin(struct kv_prefix *p, uint32_t e)
{
    if (p->entries[e].pinned_s == 0) return;
    p->entries[e].pinned_s = 0;
    p->pin_count--;
    if (p->entries[e].list != LIST_PINNED) return;
    delist(p, e);
    enlist(p, e, LIST_IDLE);
}

bool kv_prefix_pin(struct kv_prefix *p, uint32_t e, uint32_t seconds)
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
    if (until_s > entry->pinned_s) entry->pinned_s = until_s;
    return true;
}

void kv_prefix_set_time(struct kv_prefix *p, int64_t now_ns)
{
    uint32_t now_s = (uint32_t)(now_ns / 1000000000), next;

    if (now_s == p->now_s) return;
    p->now_s = now_s;
    for (uint32_t e = p->lists[LIST_PINNED].first; e != NONE; e = next) {
        next = p->entries[e].next;
        if (p->entries[e].pinned_s <= now_s) unpin(p, e);
    }
}

bool kv_prefix_unpin_idle(struct kv_prefix *p, uint32_t most)
{
    bool any = false;

    for (; most-- > 0 && p->lists[LIST_PINNED].first != NONE; any = true)
        unpin(p, p->lists[LIST_PINNED].first);
    return any;
}

/* --- the end of entries ----------------------------------------------------------------------------------------- */

/* The entry is none any more; its blocks lose the index's reference. */
static void forget(struct kv_prefix *p, uint32_t e)
{
    struct kv_block *entry = &p->entries[e];
    uint32_t *at = &p->buckets[entry->hash & p->bucket_mask];

    while (*at != e)
        at = &p->entries[*at].bucket_next;
    *at = entry->bucket_next;
    unpin(p, e);
    delist(p, e);
    entry->serial = 0;
    p->entry_count--;
    for (uint32_t g = 0; g < p->space->group_count; g++)
        kv_pool_unref(p->space->pools[g], block_in(p, e, g));
}

static void evict_oldest(void *ctx)
{
    struct kv_prefix *p = ctx;

    assert(p->lists[LIST_IDLE].first != NONE);
    p->evicted++;
    forget(p, p->lists[LIST_IDLE].first);
}

void kv_prefix_dropped(struct kv_prefix *p, uint32_t block)
{
    struct kv_block *entry = &p->entries[block];

    if (!entry->serial || entry->list != LIST_NONE || kv_pool_refs(p->space->pools[0], block) > 1)
        return;
    if (entry->pinned_s && entry->pinned_s <= p->now_s) unpin(p, block);
    enlist(p, block, entry->pinned_s ? LIST_PINNED : LIST_IDLE);
}

void kv_prefix_adopt(struct kv_prefix *p, uint32_t e, struct kv_seq *seq)
{
    delist(p, e);
    for (uint32_t g = 0; g < p->space->group_count; g++) {
        struct kv_table *table = &seq->tables[g];

        assert(table->count < table->capacity);
        kv_pool_ref(p->space->pools[g], block_in(p, e, g));
        table->blocks[table->count++] = block_in(p, e, g);
    }
}

/* --- making and unmaking entries -------------------------------------------------------------------------------- */

bool kv_prefix_put(struct kv_prefix *p, struct kv_chain *chain, const int32_t *tokens,
                   const struct kv_seq *seq, uint32_t index, uint32_t owner)
{
    struct kv_chain there = *chain;
    uint32_t e = seq->tables[0].blocks[index], hash = hash_key(p, *chain, tokens);
    uint32_t found = find(p, hash, &there, tokens), *bucket = &p->buckets[hash & p->bucket_mask];

    if (found != NONE) { /* ours already, or another's: then ours stays private */
        if (found == e) *chain = there;
        return found == e;
    }
    struct kv_block *entry = &p->entries[e];
    assert(entry->serial == 0);
    entry->serial = ++p->serials;
    entry->chain_serial = chain->serial;
    entry->chain_start = chain->start;
    entry->hash = hash;
    entry->owner = owner;
    entry->seq_no = entry->pinned_s = 0;
    entry->list = LIST_NONE;
    entry->bucket_next = *bucket;
    *bucket = e;
    memcpy(p->tokens + (size_t)e * p->span, tokens, p->span * sizeof *tokens);
    p->entry_count++;
    for (uint32_t g = 0; g < p->space->group_count; g++) {
        uint32_t block = seq->tables[g].blocks[index];

        if (g > 0) entry->others[g - 1] = block;
        kv_pool_ref(p->space->pools[g], block);
    }
    *chain = (struct kv_chain){entry->serial, false};
    return true;
}

void kv_prefix_computed(struct kv_prefix *p, uint32_t e, uint32_t owner, uint64_t seq_no)
{
    if (p->entries[e].serial && p->entries[e].owner == owner) p->entries[e].seq_no = seq_no;
}

void kv_prefix_retract(struct kv_prefix *p, const struct kv_seq *seq, uint32_t count,
                       uint32_t owner, uint64_t done_seq_no)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t e = seq->tables[0].blocks[i];
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
    for (uint32_t g = 1; g < space->group_count; g++)
        if (space->block_tokens[g] != space->block_tokens[0]) return 0;
    return space->block_tokens[0];
}

enum status kv_prefix_create(struct kv_space *space, struct kv_prefix **out)
{
    struct kv_prefix *p = calloc(1, sizeof *p);
    uint32_t buckets = 1;

    if (!p) return STATUS_NOMEM;
    p->space = space;
    p->span = common_span(space);
    p->capacity = kv_pool_capacity(space->pools[0]);
    p->secret = hash_secret();
    for (int i = 0; i < LISTS; i++)
        p->lists[i].first = p->lists[i].last = NONE;
    p->pins_max = p->capacity / PINNED_PART;
    while (buckets < 2 * p->capacity) /* most look-ups touch no other entry */
        buckets *= 2;
    p->bucket_mask = buckets - 1;
    p->buckets = malloc(buckets * sizeof *p->buckets);
    p->entries = kv_pool_blocks(space->pools[0]);
    p->tokens = calloc((size_t)p->capacity * (p->span ? p->span : 1), sizeof *p->tokens);
    if (!p->buckets || !p->tokens) {
        kv_prefix_destroy(p);
        return STATUS_NOMEM;
    }
    memset(p->buckets, 0xff, buckets * sizeof *p->buckets);
    for (uint32_t g = 0; g < space->group_count; g++)
        kv_pool_set_reclaim(space->pools[g], evict_oldest, p);
    *out = p;
    return STATUS_OK;
}

void kv_prefix_destroy(struct kv_prefix *p)
{
    if (!p) return;
    if (p->buckets) kv_prefix_unpin_idle(p, UINT32_MAX);
    while (p->buckets && p->lists[LIST_IDLE].first != NONE)
        forget(p, p->lists[LIST_IDLE].first);
    assert(p->entry_count == 0);
    free(p->buckets);
    free(p->tokens);
    free(p);
}

struct kv_prefix_counts kv_prefix_counts(const struct kv_prefix *p)
{
    return (struct kv_prefix_counts){p->entry_count, p->lists[LIST_IDLE].count,
                                     p->lists[LIST_PINNED].count, p->pin_count, p->evicted};
}

static void check_list(const struct kv_prefix *p, enum kv_block_list list, uint32_t count)
{
    uint32_t listed = 0;

    for (uint32_t e = p->lists[list].first; e != NONE; e = p->entries[e].next) {
        assert(p->entries[e].serial && p->entries[e].list == list);
        assert((list == LIST_PINNED) == (p->entries[e].pinned_s > 0));
        assert(++listed <= p->capacity);
    }
    assert(listed == count && listed == p->lists[list].count);
}

void kv_prefix_check(const struct kv_prefix *p)
{
    uint32_t entries = 0, counts[LISTS] = {0}, pins = 0;

    for (uint32_t e = 0; e < p->capacity; e++) {
        if (!p->entries[e].serial) continue;
        entries++;
        counts[p->entries[e].list]++;
        pins += p->entries[e].pinned_s > 0;
        for (uint32_t g = 0; g < p->space->group_count; g++) {
            uint32_t refs = kv_pool_refs(p->space->pools[g], block_in(p, e, g));

            assert(refs >= 1 && (refs == 1) == (p->entries[e].list != LIST_NONE));
        }
    }
    check_list(p, LIST_IDLE, counts[LIST_IDLE]);
    check_list(p, LIST_PINNED, counts[LIST_PINNED]);
    assert(entries == p->entry_count && pins == p->pin_count && pins <= p->pins_max);
}
