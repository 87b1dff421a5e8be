#include "text/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "text/big_table.h"
#include "text/unicode_class.h"

enum {
    SHORT_SYMBOLS = 64,      /* up to here scanning all pairs beats the heap */
    SHORT_RANKS = 1 << 25,   /* merges whose rank and place fit in 31 bits */
    CACHED_WORD_BYTES = 256, /* longer words are seldom seen twice */
    CACHE_SLOTS_MAX = 8192,
    CHUNK_BYTES =
        64
        << 10, /* longer words are merged in parts: merge_long takes 28 bytes of room for each byte */
    CHUNK_OVERLAP = 16 /* tokens before a cut that may come out otherwise without it */
};
static const uint32_t NO_RANK = UINT32_MAX;
enum whole { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

struct word_slot {
    uint32_t hash;
    int32_t id; /* BPE_NONE: free */
};

struct pair_slot {
    int32_t left, right; /* left BPE_NONE: free */
    uint32_t rank;
    int32_t merged;
};

struct byte_pair { /* of two bytes' tokens */
    uint32_t rank;
    int32_t merged;
};

struct cached_word {
    const char *ptr;
    uint32_t len, hash, epoch;
    uint32_t count; /* ids */
    size_t at;      /* of the first in the list of the call */
};

struct slice token_table_at(const struct token_table *table, int32_t id)
{
    if (id < 0 || (uint32_t)id >= table->count) return slice_of(NULL, 0);
    return slice_of(table->pool + table->offset[id], table->offset[id + 1] - table->offset[id]);
}

void token_table_fini(struct token_table *table)
{
    free(table->pool);
    free(table->offset);
    *table = (struct token_table){0};
}

/* --- look-ups --- */

static uint64_t load64(const void *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

static uint32_t load32(const void *p)
{
    uint32_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint32_t word_hash(const struct bpe *bpe, const char *p, size_t len)
{
    uint64_t a, b, h = bpe->seed ^ len;

    for (; len > 16; p += 8, len -= 8)
        h = fold(h ^ load64(p), 0x9e3779b97f4a7c15u);
    if (len >= 8) {
        a = load64(p);
        b = load64(p + len - 8);
    } else if (len >= 4) {
        a = load32(p);
        b = load32(p + len - 4);
    } else {
        a = len ? (uint64_t)(uint8_t)p[0] << 16 | (uint64_t)(uint8_t)p[len >> 1] << 8 |
                      (uint8_t)p[len - 1]
                : 0;
        b = 0;
    }
    return (uint32_t)fold(a ^ h, b ^ 0xbf58476d1ce4e5b9u);
}

static int32_t find_hashed(const struct bpe *bpe, struct slice word, uint32_t hash)
{
    const struct word_slot *slot;

    for (uint32_t i = hash;; i++) {
        slot = &bpe->words[i & bpe->word_mask];
        if (slot->id == BPE_NONE) return BPE_NONE;
        if (slot->hash != hash) continue;
        struct slice key = token_table_at(&bpe->keys, slot->id);
        if (key.len == word.len && memcmp(key.ptr, word.ptr, word.len) == 0) return slot->id;
    }
}

int32_t bpe_find(const struct bpe *bpe, struct slice word)
{
    return word.len ? find_hashed(bpe, word, word_hash(bpe, word.ptr, word.len)) : BPE_NONE;
}

static uint64_t table_slots(uint64_t count)
{
    uint64_t slots = 16;

    while (slots < 2 * count)
        slots *= 2;
    return slots;
}

enum status bpe_index_words(struct bpe *bpe, const bool *usable)
{
    const uint64_t slots = table_slots(bpe->keys.count);

    bpe->seed = hash_secret();
    bpe->words = big_table_alloc(slots * sizeof *bpe->words);
    bpe->word_mask = (uint32_t)(slots - 1);
    bpe->whole = calloc(bpe->keys.count + 1, sizeof *bpe->whole);
    if (!bpe->words || !bpe->whole) return STATUS_NOMEM;
    memset(bpe->words, 0xff, slots * sizeof *bpe->words);
    for (uint32_t id = 0; id < bpe->keys.count; id++) {
        struct slice key = token_table_at(&bpe->keys, (int32_t)id);
        if (!usable[id] || !key.len) continue;
        uint32_t hash = word_hash(bpe, key.ptr, key.len), i = hash;
        for (;; i++) {
            struct word_slot *slot = &bpe->words[i & bpe->word_mask];
            if (slot->id != BPE_NONE &&
                !(slot->hash == hash && slice_eq(key, token_table_at(&bpe->keys, slot->id))))
                continue;
            *slot = (struct word_slot){hash, (int32_t)id};
            break;
        }
    }
    return STATUS_OK;
}

static uint64_t pair_hash(const struct bpe *bpe, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    return fold(key ^ bpe->seed, 0x9e3779b97f4a7c15u);
}

/* The bit of a pair: four for each slot of the table, so at most an eighth are ones, and most pairs that
 * do not merge are known by a table that fits into the second-level cache. */
static uint64_t pair_bit(const struct bpe *bpe, uint64_t hash)
{
    return hash >> 32 & (4 * ((uint64_t)bpe->pair_mask + 1) - 1);
}

static struct pair_slot *pair_place(const struct bpe *bpe, int32_t left, int32_t right,
                                    uint64_t hash)
{
    struct pair_slot *slot;

    for (uint32_t i = (uint32_t)hash;; i++) {
        slot = &bpe->pairs[i & bpe->pair_mask];
        if (slot->left == BPE_NONE || (slot->left == left && slot->right == right)) return slot;
    }
}

/* A slot whose left is BPE_NONE when the two do not merge. */
static const struct pair_slot *pair_find(const struct bpe *bpe, int32_t left, int32_t right)
{
    static const struct pair_slot none = {.left = BPE_NONE};
    const uint64_t hash = pair_hash(bpe, left, right), bit = pair_bit(bpe, hash);

    return bpe->pair_bits[bit / 8] >> bit % 8 & 1 ? pair_place(bpe, left, right, hash) : &none;
}

enum status bpe_reserve_pairs(struct bpe *bpe, uint64_t count)
{
    const uint64_t slots = table_slots(count);

    assert(!bpe->pairs);
    if (slots > UINT32_MAX / 2) return STATUS_LIMIT;
    bpe->pairs = big_table_alloc(slots * sizeof *bpe->pairs);
    bpe->pair_mask = (uint32_t)(slots - 1);
    bpe->pair_bits = big_table_alloc(slots / 2);
    if (!bpe->pairs || !bpe->pair_bits) return STATUS_NOMEM;
    memset(bpe->pairs, 0xff, slots * sizeof *bpe->pairs);
    return STATUS_OK;
}

void bpe_add_pair(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, uint32_t rank)
{
    const uint64_t hash = pair_hash(bpe, left, right), bit = pair_bit(bpe, hash);
    struct pair_slot *slot = pair_place(bpe, left, right, hash);

    assert(bpe->pair_count < bpe->pair_mask);
    if (slot->left == BPE_NONE) bpe->pair_count++;
    *slot = (struct pair_slot){left, right, rank, merged};
    bpe->pair_bits[bit / 8] |= (uint8_t)(1u << bit % 8);
    if (rank >= bpe->pair_ranks) bpe->pair_ranks = rank + 1;
}

bool bpe_pair(const struct bpe *bpe, int32_t left, int32_t right, uint32_t *rank, int32_t *merged)
{
    const struct pair_slot *slot = pair_find(bpe, left, right);

    *rank = slot->rank;
    *merged = slot->merged;
    return slot->left != BPE_NONE;
}

void bpe_index_bytes(struct bpe *bpe)
{
    if (bpe->by_chars) return;
    for (unsigned byte = 0; byte < 256; byte++)
        if (bpe->byte_id[byte] == BPE_NONE) return;
    bpe->byte_pairs = malloc(65536 * sizeof *bpe->byte_pairs);
    for (unsigned pair = 0; bpe->byte_pairs && pair < 65536; pair++) {
        const struct pair_slot *slot =
            pair_find(bpe, bpe->byte_id[pair >> 8], bpe->byte_id[pair & 255]);
        bpe->byte_pairs[pair] = slot->left == BPE_NONE
                                    ? (struct byte_pair){NO_RANK, BPE_NONE}
                                    : (struct byte_pair){slot->rank, slot->merged};
    }
    bpe_chars_build(&bpe->chars, bpe);
}

void bpe_each_pair(const struct bpe *bpe, bpe_pair_fn *fn, void *ctx)
{
    for (uint64_t i = 0; i <= bpe->pair_mask; i++)
        if (bpe->pairs[i].left != BPE_NONE)
            fn(ctx, bpe->pairs[i].left, bpe->pairs[i].right, bpe->pairs[i].rank);
}

bool bpe_any_merge(const struct bpe *bpe, bool (*test)(const struct bpe *bpe, int32_t merged))
{
    for (uint64_t i = 0; i <= bpe->pair_mask; i++)
        if (bpe->pairs[i].left != BPE_NONE && test(bpe, bpe->pairs[i].merged)) return true;
    return false;
}

void bpe_fini(struct bpe *bpe)
{
    token_table_fini(&bpe->keys);
    big_table_free(bpe->words, ((size_t)bpe->word_mask + 1) * sizeof *bpe->words);
    big_table_free(bpe->pairs, ((size_t)bpe->pair_mask + 1) * sizeof *bpe->pairs);
    big_table_free(bpe->pair_bits, ((size_t)bpe->pair_mask + 1) / 2);
    free(bpe->byte_pairs);
    bpe_chars_fini(&bpe->chars);
    free((void *)bpe->whole);
    bpe->words = NULL;
    bpe->pairs = NULL;
    bpe->pair_bits = NULL;
    bpe->byte_pairs = NULL;
    bpe->whole = NULL;
}

/* --- the room of one call --- */

void bpe_work_init(struct bpe_work *work, size_t text_bytes)
{
    uint32_t slots = 64;

    *work = (struct bpe_work){.epoch = 1, .chunk_bytes = CHUNK_BYTES};
    if (text_bytes < 512) return;
    while (slots < CACHE_SLOTS_MAX && slots < text_bytes / 16)
        slots *= 2;
    work->cache_slots = slots;
}

static void make_cache(struct bpe_work *work)
{
    work->cache =
        calloc(work->cache_slots, sizeof *work->cache); /* without it, it is only slower */
    work->cache_mask = work->cache_slots - 1;
    work->cache_slots = 0;
}

void bpe_work_fini(struct bpe_work *work)
{
    free(work->ids);
    free(work->span);
    free(work->rank);
    free(work->heap);
    free(work->cache);
    *work = (struct bpe_work){0};
}

void *bpe_work_bytes(struct bpe_work *work, size_t bytes)
{
    const size_t words = (bytes + sizeof *work->heap - 1) / sizeof *work->heap;

    if (words <= work->heap_cap) return work->heap;
    size_t cap = work->heap_cap ? work->heap_cap : 256;
    while (cap < words)
        cap *= 2;
    free(work->heap);
    work->heap = malloc(cap * sizeof *work->heap);
    work->heap_cap = work->heap ? cap : 0;
    return work->heap;
}

void bpe_work_forget(struct bpe_work *work)
{
    work->epoch++;
}

static enum status grow_symbols(struct bpe_work *work, size_t count)
{
    size_t cap = work->cap ? work->cap : 256;

    if (count <= work->cap) return STATUS_OK;
    if (count > INT32_MAX) return STATUS_LIMIT;
    while (cap < count)
        cap *= 2;
    free(work->span);
    free(work->rank);
    int32_t *ids = realloc(work->ids, cap * sizeof *ids);
    if (ids) work->ids = ids;
    work->span = malloc(cap * sizeof *work->span);
    work->rank = malloc(cap * sizeof *work->rank);
    work->cap = ids && work->span && work->rank ? cap : 0;
    return work->cap ? STATUS_OK : STATUS_NOMEM;
}

/* --- symbols that a word starts as --- */

static size_t symbols_of_bytes(const struct bpe *bpe, struct slice word, int32_t *ids)
{
    size_t count = 0;
    unsigned len;

    for (size_t i = 0; i < word.len; i++) {
        if ((uint8_t)word.ptr[i] >= 0xc2 && bpe->chars.chars) {
            int32_t whole = bpe_chars_at(&bpe->chars, word, i, &len);
            if (whole != BPE_NONE) {
                ids[count++] = whole;
                i += len - 1;
                continue;
            }
        }
        int32_t id = bpe->byte_id[(uint8_t)word.ptr[i]];
        if (id == BPE_NONE) id = bpe->unk; /* without that one too the byte is dropped */
        if (id == BPE_NONE) continue;
        if (bpe->fuse_unk && id == bpe->unk && count && ids[count - 1] == id) continue;
        ids[count++] = id;
    }
    return count;
}

static bool fall_back(const struct bpe *bpe, const uint8_t *p, unsigned len, int32_t *ids)
{
    for (unsigned i = 0; i < len; i++) {
        ids[i] = bpe->fallback_id[p[i]];
        if (ids[i] == BPE_NONE) return false;
    }
    return bpe->byte_fallback;
}

/* ids: room for one per byte and one more. Unknown characters are written when a known one follows,
 * as the library does it. */
static size_t symbols_of_chars(const struct bpe *bpe, struct slice word, int32_t *ids)
{
    const uint8_t *p = (const uint8_t *)word.ptr, *end = p + word.len;
    size_t count = 0;
    bool unk_waits = false;
    unsigned len;

    for (; p < end; p += len) {
        utf8_read(p, &len);
        int32_t id = bpe_find(bpe, slice_of(p, len));
        if (id != BPE_NONE) {
            if (unk_waits) ids[count++] = bpe->unk;
            unk_waits = false;
            ids[count++] = id;
        } else if (fall_back(bpe, p, len, ids + count)) {
            count += len;
        } else if (bpe->unk != BPE_NONE) {
            if (unk_waits && !bpe->fuse_unk) ids[count++] = bpe->unk;
            unk_waits = true;
        }
    }
    if (unk_waits) ids[count++] = bpe->unk;
    return count;
}

/* --- merging --- */

/* Four keys at once; the compiler has the instructions for them on every machine of 64 bits. */
typedef int32_t four_keys __attribute__((vector_size(16)));
static const int32_t NO_KEY = INT32_MAX;

/* Symbols that stay where they are, with links to their neighbours. key[i]: rank << 6 | i of the pair that begins at i,
 * so that the lowest key is the leftmost pair of lowest rank; NO_KEY: none. */
struct few_symbols {
    _Alignas(16) int32_t key[SHORT_SYMBOLS];
    int32_t merged[SHORT_SYMBOLS];
    uint8_t next[SHORT_SYMBOLS + 1], before[SHORT_SYMBOLS + 1];
};

static int32_t lowest_key(const int32_t *key, size_t count)
{
    const four_keys *at = (const four_keys *)key;
    four_keys low = at[0];

    for (size_t i = 1; 4 * i < count; i++) {
        four_keys less = at[i] < low;
        low = (at[i] & less) | (low & ~less);
    }
    int32_t a = low[0] < low[1] ? low[0] : low[1], b = low[2] < low[3] ? low[2] : low[3];
    return a < b ? a : b;
}

static void set_key(const struct bpe *bpe, struct few_symbols *few, const int32_t *ids, size_t at,
                    size_t right)
{
    const struct pair_slot *slot = pair_find(bpe, ids[at], ids[right]);

    few->key[at] = slot->left == BPE_NONE ? NO_KEY : (int32_t)(slot->rank << 6 | at);
    few->merged[at] = slot->merged;
}

/* The keys of a word's symbols. The slots of all pairs are asked for first: the table lies in the third-level cache at
 * best, and so its answers come together. */
static void set_keys(const struct bpe *bpe, struct few_symbols *few, const int32_t *ids,
                     size_t count)
{
    uint64_t hash[SHORT_SYMBOLS], may_merge = 0; /* a bit for each pair */
    static_assert(SHORT_SYMBOLS <= 64, "a bit for each pair");

    for (size_t i = 0; i + 1 < count; i++) {
        hash[i] = pair_hash(bpe, ids[i], ids[i + 1]);
        few->key[i] = NO_KEY;
        const uint64_t bit = pair_bit(bpe, hash[i]);
        if (!(bpe->pair_bits[bit / 8] >> bit % 8 & 1)) continue;
        may_merge |= (uint64_t)1 << i;
        __builtin_prefetch(&bpe->pairs[(uint32_t)hash[i] & bpe->pair_mask]);
    }
    for (; may_merge; may_merge &= may_merge - 1) {
        const size_t i = (size_t)__builtin_ctzll(may_merge);
        const struct pair_slot *slot = pair_place(bpe, ids[i], ids[i + 1], hash[i]);
        if (slot->left == BPE_NONE) continue;
        few->key[i] = (int32_t)(slot->rank << 6 | i);
        few->merged[i] = slot->merged;
    }
}

/* The keys of a word's bytes, from the table of pairs of bytes. */
static void set_byte_keys(const struct bpe *bpe, struct few_symbols *few, const uint8_t *word,
                          size_t count)
{
    for (size_t i = 0; i + 1 < count; i++) {
        const struct byte_pair *pair = &bpe->byte_pairs[word[i] << 8 | word[i + 1]];
        few->key[i] = pair->rank == NO_RANK ? NO_KEY : (int32_t)(pair->rank << 6 | i);
        few->merged[i] = pair->merged;
    }
}

/* Few symbols: the pair of lowest rank is looked for by scanning. bytes: the word, when symbol i is that of byte i;
 * NULL otherwise. Returns how many are left. */
static size_t merge_short(const struct bpe *bpe, int32_t *ids, size_t count, const uint8_t *bytes)
{
    struct few_symbols few;
    int32_t key;
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        few.next[i] = (uint8_t)(i + 1);
        few.before[i + 1] = (uint8_t)i;
    }
    if (bytes)
        set_byte_keys(bpe, &few, bytes, count);
    else
        set_keys(bpe, &few, ids, count);
    for (size_t i = count ? count - 1 : 0; i < SHORT_SYMBOLS && (i < count || i & 3); i++)
        few.key[i] = NO_KEY;
    while (count > 1 && (key = lowest_key(few.key, count)) != NO_KEY) {
        size_t at = key & 63, gone = few.next[at], right = few.next[gone];
        ids[at] = few.merged[at];
        few.key[gone] = few.key[at] = NO_KEY;
        few.next[at] = (uint8_t)right;
        few.before[right] = (uint8_t)at;
        if (right < count) set_key(bpe, &few, ids, at, right);
        if (at) set_key(bpe, &few, ids, few.before[at], at);
    }
    for (size_t i = 0; i < count; i = few.next[i])
        ids[n++] = ids[i];
    return n;
}

static void sift_up(uint64_t *heap, size_t at)
{
    uint64_t entry = heap[at];

    for (; at && heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

static void sift_down(uint64_t *heap, size_t count, size_t at)
{
    uint64_t entry = heap[at];
    size_t child;

    for (; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= entry) break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

static enum status heap_push(struct bpe_work *work, uint64_t entry)
{
    if (work->heap_count == work->heap_cap) {
        size_t cap = work->heap_cap ? 2 * work->heap_cap : 256;
        uint64_t *heap = realloc(work->heap, cap * sizeof *heap);
        if (!heap) return STATUS_NOMEM;
        work->heap = heap;
        work->heap_cap = cap;
    }
    work->heap[work->heap_count] = entry;
    sift_up(work->heap, work->heap_count++);
    return STATUS_OK;
}

/* Ranks the pair whose left symbol stands at `at`, whose right one begins at `right`. */
static enum status rank_pair(const struct bpe *bpe, struct bpe_work *work, size_t at, size_t right)
{
    const struct pair_slot *slot = pair_find(bpe, work->ids[at], work->ids[right]);

    if (slot->left == BPE_NONE) {
        work->rank[at] = NO_RANK;
        return STATUS_OK;
    }
    if (work->rank[at] == slot->rank) return STATUS_OK; /* its entry is in the heap */
    work->rank[at] = slot->rank;
    return heap_push(work, (uint64_t)slot->rank << 32 | at);
}

/* Many symbols. A symbol stands at the place of its first original one; span at its first and at
 * its last place tells how many places it takes, so both neighbours are found without links.
 * rank[i]: of the pair that begins at i. Heap entries are rank << 32 | place, so equals come
 * leftmost first; one whose rank is not the place's any more is stale. */
static enum status merge_long(const struct bpe *bpe, struct bpe_work *work, size_t *count)
{
    const size_t places = *count;
    enum status st = STATUS_OK;

    work->heap_count = 0;
    for (size_t i = 0; i < places; i++) {
        work->span[i] = 1;
        work->rank[i] = NO_RANK;
    }
    for (size_t i = 0; !st && i + 1 < places; i++)
        st = rank_pair(bpe, work, i, i + 1);
    while (!st && work->heap_count) {
        uint64_t top = work->heap[0];
        work->heap[0] = work->heap[--work->heap_count];
        if (work->heap_count) sift_down(work->heap, work->heap_count, 0);
        size_t at = (uint32_t)top, right = at + work->span[at];
        if (work->rank[at] != top >> 32) continue;
        work->ids[at] = pair_find(bpe, work->ids[at], work->ids[right])->merged;
        work->rank[at] = work->rank[right] = NO_RANK;
        work->span[at] += work->span[right];
        work->span[at + work->span[at] - 1] = work->span[at];
        if (at + work->span[at] < places) st = rank_pair(bpe, work, at, at + work->span[at]);
        if (!st && at) st = rank_pair(bpe, work, at - work->span[at - 1], at);
    }
    size_t n = 0;
    for (size_t i = 0; i < places; i += work->span[i])
        work->ids[n++] = work->ids[i];
    *count = n;
    return st;
}

static enum status append_ids(struct token_list *out, const int32_t *ids, size_t count)
{
    int32_t *at = token_list_reserve(out, count);

    if (!at) return count ? STATUS_NOMEM : STATUS_OK;
    if (count) memcpy(at, ids, count * sizeof *ids);
    out->count += count;
    return STATUS_OK;
}

static enum status merge_piece(const struct bpe *bpe, struct bpe_work *work, struct slice word,
                               struct token_list *out)
{
    int32_t few[SHORT_SYMBOLS + 1], *ids = few;
    enum status st = STATUS_OK;

    if (word.len > SHORT_SYMBOLS || bpe->pair_ranks > SHORT_RANKS) {
        st = grow_symbols(work, word.len + 1);
        if (st) return st;
        ids = work->ids;
    }
    size_t count =
        bpe->by_chars ? symbols_of_chars(bpe, word, ids) : symbols_of_bytes(bpe, word, ids);
    if (count <= SHORT_SYMBOLS && bpe->pair_ranks <= SHORT_RANKS)
        count =
            merge_short(bpe, ids, count,
                        bpe->byte_pairs && count == word.len ? (const uint8_t *)word.ptr : NULL);
    else
        st = merge_long(bpe, work, &count);
    return st ? st : append_ids(out, ids, count);
}

/* --- words without an end --- */

/* Whether the token stands for the first byte of `text`, part of a character that has no token. */
static bool is_fallback(const struct bpe *bpe, int32_t id, struct slice text)
{
    return bpe->by_chars && bpe->fallback_id[(uint8_t)text.ptr[0]] == id;
}

/* Bytes of `text` (not empty) that the token at its start stands for; 0: it does not tell (unknown characters). */
static size_t span_of(const struct bpe *bpe, int32_t id, struct slice text)
{
    const struct slice key = token_table_at(&bpe->keys, id);
    const bool fallback = is_fallback(bpe, id, text);

    if (slice_starts(text, key)) return fallback ? 0 : key.len;
    return fallback ? 1 : 0;
}

static struct slice rest_of(struct slice word, size_t from)
{
    return slice_of(word.ptr + from, word.len - from);
}

/* Whether the tokens pair[0], of the bytes [begin, border) of a word, and pair[1], at `border`, stay apart: the bytes of
 * both alone come out as the two again. Then nothing is ever merged across the border, whatever stands around them: the
 * first merge across it would join two parts of theirs, and these would meet in the two alone as well. */
static bool stay_apart(const struct bpe *bpe, struct bpe_work *work, struct slice word,
                       size_t begin, size_t border, const int32_t pair[2], struct token_list *out)
{
    const size_t from = out->count, len = span_of(bpe, pair[1], rest_of(word, border));

    if (!len) return false;
    bool apart = !merge_piece(bpe, work, slice_of(word.ptr + begin, border + len - begin), out) &&
                 out->count == from + 2 && memcmp(out->ids + from, pair, 2 * sizeof *pair) == 0;
    out->count = from;
    return apart;
}

/* Takes the last tokens of a chunk away that begins at `begin` of the word and whose ids begin at `first` of the list, up
 * to a border between two whole characters or more. *last, *end: where the last token left begins and ends. False: none
 * is left, or some do not tell their length. */
static bool take_back(const struct bpe *bpe, struct slice word, size_t begin, size_t first,
                      struct token_list *out, size_t *last, size_t *end)
{
    const size_t count = out->count;
    size_t at = begin, kept = first;

    for (size_t i = first; i + CHUNK_OVERLAP < count; i++) {
        const bool part = is_fallback(bpe, out->ids[i], rest_of(word, at));
        size_t span = span_of(bpe, out->ids[i], rest_of(word, at));
        if (!span || at + span == word.len) return false;
        at += span;
        if (part || is_fallback(bpe, out->ids[i + 1], rest_of(word, at))) continue;
        kept = i + 1;
        *last = at - span;
        *end = at;
    }
    out->count = kept;
    return kept > first;
}

/* A long word chunk by chunk, so that the room does not grow with it. A chunk begins where a token of the one before ends,
 * some tokens before the cut, and counts when the tokens on both sides stay apart. STATUS_NOT_FOUND: no such place was
 * found, or tokens do not tell their length. */
static enum status merge_chunks(const struct bpe *bpe, struct bpe_work *work, struct slice word,
                                struct token_list *out)
{
    size_t begin = 0, last = 0; /* last: where the token in front of the chunk begins */

    for (;;) {
        size_t end = begin + work->chunk_bytes, from = out->count;
        if (end > word.len) end = word.len;
        while (end < word.len && end > begin && ((uint8_t)word.ptr[end] & 0xc0) == 0x80)
            end--;
        enum status st = merge_piece(bpe, work, slice_of(word.ptr + begin, end - begin), out);
        if (st) return st;
        if (begin && (out->count == from ||
                      !stay_apart(bpe, work, word, last, begin,
                                  (int32_t[]){out->ids[from - 1], out->ids[from]}, out)))
            return STATUS_NOT_FOUND;
        if (end == word.len) return STATUS_OK;
        if (!take_back(bpe, word, begin, from, out, &last, &begin)) return STATUS_NOT_FOUND;
    }
}

static enum status merge_word(const struct bpe *bpe, struct bpe_work *work, struct slice word,
                              struct token_list *out)
{
    const size_t from = out->count;
    enum status st = STATUS_NOT_FOUND;

    if (word.len > work->chunk_bytes) st = merge_chunks(bpe, work, word, out);
    if (st != STATUS_NOT_FOUND) return st;
    out->count = from;
    return merge_piece(bpe, work, word, out);
}

/* --- a word --- */

/* Merges the word of token `id` and keeps whether that token is all that comes out. */
static enum status merge_token(const struct bpe *bpe, struct bpe_work *work, struct slice word,
                               int32_t id, struct token_list *out)
{
    const size_t from = out->count;
    enum status st = merge_word(bpe, work, word, out);

    if (!st) {
        bool yes = out->count == from + 1 && out->ids[from] == id;
        atomic_store_explicit(&bpe->whole[id], yes ? WHOLE_YES : WHOLE_NO, memory_order_relaxed);
    }
    return st;
}

static enum status merge_cached(const struct bpe *bpe, struct bpe_work *work, struct slice word,
                                uint32_t hash, struct token_list *out)
{
    if (work->cache_slots) make_cache(work);
    struct cached_word *entry = work->cache ? &work->cache[hash & work->cache_mask] : NULL;
    const size_t from = out->count;

    if (!entry || word.len > CACHED_WORD_BYTES) return merge_word(bpe, work, word, out);
    if (entry->epoch == work->epoch && entry->hash == hash &&
        slice_eq(slice_of(entry->ptr, entry->len), word)) {
        int32_t ids[CACHED_WORD_BYTES + 1]; /* the list may move as it grows */
        memcpy(ids, out->ids + entry->at, entry->count * sizeof *ids);
        return append_ids(out, ids, entry->count);
    }
    enum status st = merge_word(bpe, work, word, out);
    if (!st)
        *entry = (struct cached_word){
            word.ptr, (uint32_t)word.len, hash, work->epoch, (uint32_t)(out->count - from), from};
    return st;
}

enum status bpe_encode(const struct bpe *bpe, struct bpe_work *work, struct slice word,
                       struct token_list *out)
{
    uint32_t hash = word_hash(bpe, word.ptr, word.len);
    int32_t id = find_hashed(bpe, word, hash);

    if (id == BPE_NONE) return merge_cached(bpe, work, word, hash, out);
    uint8_t whole = atomic_load_explicit(&bpe->whole[id], memory_order_relaxed);
    if (whole == WHOLE_YES || bpe->ignore_merges) return append_ids(out, &id, 1);
    return whole == WHOLE_NO ? merge_cached(bpe, work, word, hash, out)
                             : merge_token(bpe, work, word, id, out);
}
