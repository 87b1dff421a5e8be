/* kv_pool.h - the fixed set of KV cache blocks of one KV group, shared by reference count.
 *
 * A block holds the state of block_tokens tokens for the layers of one KV group. The pool deals in block ids; the bytes
 * behind an id belong to the device (device/device.h). A block with refs > 1 is read-only: kv_seq.h copies before it writes.
 *     free --take/alloc--> refs 1 --ref--> refs n --unref--> ... refs 0 = free
 * A promise sets blocks aside by number, not by id: what is promised can always be taken later, so that a sequence that
 * was admitted never waits for a block in its middle, and holds none before it has tokens to put there.
 * Blocks that only an index holds (kv_prefix.h) are reclaimable: they count as available, and when no block is free the pool asks
 * the index to let one go.
 * Invariants (kv_pool_check): a block is on the free list exactly when its refs are 0; free + used = capacity;
 * promised <= free + reclaimable.
 * Thread: engine thread only. Memory: all taken by kv_pool_create.
 * Source: arXiv 2309.06180 (PagedAttention), sections 4.2 and 4.4. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { KV_POOL_BLOCKS_MAX = 1u << 28 }; /* 2^32 tokens of 16: ids fit 32 bits with room for marks */

struct kv_pool; /* opaque */

/* Makes a pool of `capacity` free blocks, 1..KV_POOL_BLOCKS_MAX. The caller owns *out and ends it with kv_pool_destroy.
 * Errors: STATUS_INVALID (capacity), STATUS_NOMEM. */
enum status kv_pool_create(uint32_t capacity, struct kv_pool **out);
void kv_pool_destroy(
    struct kv_pool *pool); /* takes NULL; aborts on a block or promise still held */

/* Takes `count` blocks that are not promised, or none. blocks: [count], written only on success, one reference each, owned
 * by the caller. Errors: STATUS_EXHAUSTED, an ordinary event: preempt or wait. O(count). */
enum status kv_pool_alloc(struct kv_pool *pool, uint32_t count, uint32_t blocks[]);
/* Sets `count` blocks aside. Errors: STATUS_EXHAUSTED. */
enum status kv_pool_promise(struct kv_pool *pool, uint32_t count);
void kv_pool_unpromise(struct kv_pool *pool, uint32_t count);
/* Turns one promised block into an id with one reference. Cannot fail: asserts the promise. */
uint32_t kv_pool_take(struct kv_pool *pool);

/* Who gives reclaimable blocks back: `reclaim` must free at least one. */
void kv_pool_set_reclaim(struct kv_pool *pool, void (*reclaim)(void *ctx), void *ctx);
void kv_pool_add_reclaimable(struct kv_pool *pool,
                             int change); /* by the index, as they come and go */

void kv_pool_ref(struct kv_pool *pool, uint32_t block);
void kv_pool_unref(struct kv_pool *pool, uint32_t block);

uint32_t kv_pool_refs(const struct kv_pool *pool, uint32_t block);
uint32_t kv_pool_capacity(const struct kv_pool *pool);
uint32_t kv_pool_free_count(const struct kv_pool *pool); /* refs 0, promised ones among them */
uint32_t kv_pool_promised_count(const struct kv_pool *pool);
uint32_t kv_pool_used_count(const struct kv_pool *pool); /* neither free nor reclaimable */
uint32_t
kv_pool_available_count(const struct kv_pool *pool); /* free or reclaimable, and not promised */
/* Sum of the references of all blocks. O(capacity): for checks. */
uint64_t kv_pool_refs_sum(const struct kv_pool *pool);

/* Walks everything and asserts the invariants. O(capacity): tests, debug builds, idle moments. */
void kv_pool_check(const struct kv_pool *pool);
