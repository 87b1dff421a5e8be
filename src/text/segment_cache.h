/* segment_cache.h - token ids of pieces of text seen before: a system prompt, a conversation's earlier turns, a document
 * that several questions are asked about.
 *
 * The caller cuts a text at places where the words on either side do not depend on the other (pretok_next_cut), so a
 * piece has the same ids wherever it stands. A piece of at most SEGMENT_BYTES_MAX bytes and SEGMENT_IDS_MAX ids has a
 * slot of 1 KiB. A table has four places for each hash; a place gets its slot when it is first used, the next one in
 * memory, so that little text touches little memory; later a new piece takes the slot of an old one.
 * Thread: any number at once, without locks: a slot has a sequence number, odd while it is written. A reader that sees
 * it change has found nothing; a writer that finds it odd leaves the slot alone. Memory: fixed at creation (virtual;
 * pages are taken as slots are first used). The hash has a secret: nobody can aim at a slot from outside. */
#pragma once

#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"
#include "text/tokenizer.h"

enum { SEGMENT_BYTES_MAX = 384, SEGMENT_IDS_MAX = 156, SEGMENT_SLOTS = 32768 };

struct segment_cache; /* opaque */

struct segment_cache *segment_cache_create(void);        /* NULL: no memory */
void segment_cache_destroy(struct segment_cache *cache); /* takes NULL */

/* Hash of a piece for the two below. */
uint64_t segment_cache_hash(const struct segment_cache *cache, struct slice text);
/* Appends the ids of `text`, 1..SEGMENT_BYTES_MAX bytes. STATUS_OK; STATUS_NOT_FOUND, an ordinary event;
 * STATUS_NOMEM. */
enum status segment_cache_get(const struct segment_cache *cache, uint64_t hash, struct slice text,
                              struct token_list *out);
/* Keeps the ids of `text`; more than SEGMENT_IDS_MAX are not kept. */
void segment_cache_put(struct segment_cache *cache, uint64_t hash, struct slice text,
                       const int32_t *ids, size_t count);
