#include "text/segment_cache.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "text/big_table.h"

enum {
    WAYS = 4,
    SETS = SEGMENT_SLOTS / WAYS,
    TEXT_WORDS = SEGMENT_BYTES_MAX / 8,
    ID_WORDS = SEGMENT_IDS_MAX / 2
};

/* Every word that a writer changes is stored with release and read with acquire (plain moves on x86): a reader's second
 * look at `sequence` cannot come before its reads, and no store of a writer before its odd number. */
struct slot {
    _Atomic uint32_t sequence; /* 0: never used; odd: being written */
    _Atomic uint32_t size;     /* bytes << 16 | ids */
    _Atomic uint64_t hash;
    _Atomic uint64_t text[TEXT_WORDS]; /* the last word padded with zeros */
    _Atomic uint64_t ids[ID_WORDS];    /* two in each */
};
static_assert(sizeof(struct slot) == 16 + SEGMENT_BYTES_MAX + 4 * SEGMENT_IDS_MAX, "no padding");
static_assert(sizeof(struct slot) <= 1024, "16 cache lines");

struct segment_cache {
    uint64_t seed;
    _Atomic uint64_t *
        places; /* owned, [SEGMENT_SLOTS]: slot + 1 << 32 | upper half of the hash of what it holds,
                                 a hint; 0: has no slot */
    struct slot *slots;     /* owned, [SEGMENT_SLOTS] */
    _Atomic uint32_t given; /* slots that places have; may run over SEGMENT_SLOTS */
    _Atomic uint32_t turn;  /* which way of a full set goes next */
};

struct segment_cache *segment_cache_create(void)
{
    struct segment_cache *cache = calloc(1, sizeof *cache);

    if (!cache) return NULL;
    cache->seed = hash_secret();
    cache->places = calloc(SEGMENT_SLOTS, sizeof *cache->places);
    cache->slots = big_table_alloc(SEGMENT_SLOTS * sizeof *cache->slots);
    if (cache->places && cache->slots) return cache;
    segment_cache_destroy(cache);
    return NULL;
}

void segment_cache_destroy(struct segment_cache *cache)
{
    if (!cache) return;
    free((void *)cache->places);
    big_table_free(cache->slots, SEGMENT_SLOTS * sizeof *cache->slots);
    free(cache);
}

/* Word i of a text, its missing bytes as zeros. */
static uint64_t text_word(struct slice text, size_t i)
{
    uint64_t word = 0;
    size_t left = text.len - 8 * i;

    memcpy(&word, text.ptr + 8 * i, left < 8 ? left : 8);
    return word;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t segment_cache_hash(const struct segment_cache *cache, struct slice text)
{
    uint64_t a = cache->seed ^ text.len, b = ~cache->seed;
    size_t i = 0;

    for (; 8 * i + 16 <= text.len; i += 2) { /* two chains: one waits for its product */
        a = fold(a ^ text_word(text, i), 0x9e3779b97f4a7c15u);
        b = fold(b ^ text_word(text, i + 1), 0xbf58476d1ce4e5b9u);
    }
    for (; 8 * i < text.len; i++)
        a = fold(a ^ text_word(text, i), 0x9e3779b97f4a7c15u);
    return fold(a ^ cache->seed, b ^ 0x94d049bb133111ebu);
}

static uint32_t tag_of(uint64_t hash)
{
    return (uint32_t)(hash >> 32) | 1;
}

static size_t first_of_set(uint64_t hash)
{
    return (size_t)(hash & (SETS - 1)) * WAYS;
}

/* --- reading --- */

static bool same_text(const struct slot *slot, struct slice text)
{
    for (size_t i = 0; 8 * i < text.len; i++)
        if (atomic_load_explicit(&slot->text[i], memory_order_acquire) != text_word(text, i))
            return false;
    return true;
}

/* Appends the slot's ids when it holds `text`. */
static enum status read_slot(const struct slot *slot, uint64_t hash, struct slice text,
                             struct token_list *out)
{
    uint32_t before = atomic_load_explicit(&slot->sequence, memory_order_acquire);
    if (before & 1) return STATUS_NOT_FOUND;
    uint32_t size = atomic_load_explicit(&slot->size, memory_order_acquire);
    if (size >> 16 != text.len || atomic_load_explicit(&slot->hash, memory_order_acquire) != hash ||
        !same_text(slot, text))
        return STATUS_NOT_FOUND;
    size_t count = size & 0xffff;
    int32_t *ids = token_list_reserve(out, count + 1);
    if (!ids) return STATUS_NOMEM;
    for (size_t i = 0; 2 * i < count; i++) {
        uint64_t pair = atomic_load_explicit(&slot->ids[i], memory_order_acquire);
        memcpy(ids + 2 * i, &pair, sizeof pair); /* the odd one out lies in the reserve */
    }
    if (atomic_load_explicit(&slot->sequence, memory_order_relaxed) != before)
        return STATUS_NOT_FOUND;
    out->count += count;
    return STATUS_OK;
}

enum status segment_cache_get(const struct segment_cache *cache, uint64_t hash, struct slice text,
                              struct token_list *out)
{
    const size_t first = first_of_set(hash);

    assert(text.len && text.len <= SEGMENT_BYTES_MAX);
    for (size_t way = first; way < first + WAYS; way++) {
        uint64_t place = atomic_load_explicit(&cache->places[way], memory_order_relaxed);
        if ((uint32_t)place != tag_of(hash)) continue;
        enum status st = read_slot(&cache->slots[(place >> 32) - 1], hash, text, out);
        if (st != STATUS_NOT_FOUND) return st;
    }
    return STATUS_NOT_FOUND;
}

/* --- writing --- */

static void write_slot(struct slot *slot, uint64_t hash, struct slice text, const int32_t *ids,
                       size_t count)
{
    atomic_store_explicit(&slot->size, (uint32_t)text.len << 16 | (uint32_t)count,
                          memory_order_release);
    atomic_store_explicit(&slot->hash, hash, memory_order_release);
    for (size_t i = 0; 8 * i < text.len; i++)
        atomic_store_explicit(&slot->text[i], text_word(text, i), memory_order_release);
    for (size_t i = 0; 2 * i < count; i++) {
        uint64_t pair = 0;
        memcpy(&pair, ids + 2 * i, count - 2 * i < 2 ? sizeof *ids : sizeof pair);
        atomic_store_explicit(&slot->ids[i], pair, memory_order_release);
    }
}

/* The place to write to: one with the same tag (so that a piece is there once), one without a slot, or the next in turn. */
static size_t choose_place(struct segment_cache *cache, uint64_t hash)
{
    const size_t first = first_of_set(hash);
    size_t chosen = SEGMENT_SLOTS;

    for (size_t way = first; way < first + WAYS; way++) {
        uint64_t place = atomic_load_explicit(&cache->places[way], memory_order_relaxed);
        if ((uint32_t)place == tag_of(hash)) return way;
        if (!place && chosen == SEGMENT_SLOTS) chosen = way;
    }
    if (chosen < SEGMENT_SLOTS) return chosen;
    return first + atomic_fetch_add_explicit(&cache->turn, 1, memory_order_relaxed) % WAYS;
}

/* The slot of a place + 1, a new one where it has none; 0 when there is none left (two threads that meet at a place take
 * two slots, and one of them is lost). */
static uint32_t slot_of(struct segment_cache *cache, size_t place)
{
    uint64_t now = atomic_load_explicit(&cache->places[place], memory_order_relaxed);

    if (now) return (uint32_t)(now >> 32);
    uint32_t slot = atomic_fetch_add_explicit(&cache->given, 1, memory_order_relaxed);
    if (slot >= SEGMENT_SLOTS) {
        atomic_store_explicit(&cache->given, SEGMENT_SLOTS, memory_order_relaxed);
        return 0;
    }
    if (atomic_compare_exchange_strong_explicit(&cache->places[place], &now,
                                                (uint64_t)(slot + 1) << 32, memory_order_relaxed,
                                                memory_order_relaxed))
        return slot + 1;
    return (uint32_t)(now >> 32);
}

void segment_cache_put(struct segment_cache *cache, uint64_t hash, struct slice text,
                       const int32_t *ids, size_t count)
{
    assert(text.len && text.len <= SEGMENT_BYTES_MAX);
    if (count > SEGMENT_IDS_MAX) return;
    size_t place = choose_place(cache, hash);
    uint32_t number = slot_of(cache, place);
    if (!number) return;
    struct slot *slot = &cache->slots[number - 1];
    uint32_t sequence = atomic_load_explicit(&slot->sequence, memory_order_relaxed);
    if ((sequence & 1) ||
        !atomic_compare_exchange_strong_explicit(&slot->sequence, &sequence, sequence + 1,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return;
    write_slot(slot, hash, text, ids, count);
    atomic_store_explicit(&slot->sequence, sequence + 2, memory_order_release);
    atomic_store_explicit(&cache->places[place], (uint64_t)number << 32 | tag_of(hash),
                          memory_order_relaxed);
}
