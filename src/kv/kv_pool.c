#include "kv/kv_pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kv/kv_block.h"

enum { NONE = UINT32_MAX };

struct kv_pool {
    uint32_t capacity, free_count, promised, reclaimable;
    uint32_t free_head; /* last freed first: its lines are the likeliest in a cache */
    struct kv_block *blocks;
    void (*reclaim)(void *ctx);
    void *reclaim_ctx;
};

enum status kv_pool_create(uint32_t capacity, struct kv_pool **out)
{
    if (capacity < 1 || capacity > KV_POOL_BLOCKS_MAX) return STATUS_INVALID;
    struct kv_pool *pool = calloc(1, sizeof *pool);
    struct kv_block *blocks = aligned_alloc(64, (size_t)capacity * sizeof *blocks);
    if (!pool || !blocks) {
        free(pool);
        free(blocks);
        return STATUS_NOMEM;
    }
    memset(blocks, 0, (size_t)capacity * sizeof *blocks);
    for (uint32_t i = 0; i < capacity; i++)
        blocks[i].next = i + 1 < capacity ? i + 1 : NONE;
    *pool = (struct kv_pool){.capacity = capacity, .free_count = capacity, .blocks = blocks};
    *out = pool;
    return STATUS_OK;
}

struct kv_block *kv_pool_blocks(struct kv_pool *pool)
{
    return pool->blocks;
}

void kv_pool_destroy(struct kv_pool *pool)
{
    if (!pool) return;
    assert(pool->free_count == pool->capacity);
    assert(pool->promised == 0);
    free(pool->blocks);
    free(pool);
}

static uint32_t pop_free(struct kv_pool *pool)
{
    if (pool->free_count == 0 && pool->reclaimable > 0) pool->reclaim(pool->reclaim_ctx);
    uint32_t id = pool->free_head;

    assert(id < pool->capacity && pool->blocks[id].refs == 0);
    pool->free_head = pool->blocks[id].next;
    pool->free_count--;
    pool->blocks[id].refs = 1;
    return id;
}

enum status kv_pool_alloc(struct kv_pool *pool, uint32_t count, uint32_t blocks[])
{
    if (count > kv_pool_available_count(pool)) return STATUS_EXHAUSTED;
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = pop_free(pool);
    return STATUS_OK;
}

enum status kv_pool_promise(struct kv_pool *pool, uint32_t count)
{
    if ((uint64_t)pool->promised + count > (uint64_t)pool->free_count + pool->reclaimable)
        return STATUS_EXHAUSTED;
    pool->promised += count;
    return STATUS_OK;
}

void kv_pool_unpromise(struct kv_pool *pool, uint32_t count)
{
    assert(count <= pool->promised);
    pool->promised -= count;
}

uint32_t kv_pool_take(struct kv_pool *pool)
{
    assert(pool->promised > 0);
    pool->promised--;
    return pop_free(pool);
}

void kv_pool_ref(struct kv_pool *pool, uint32_t block)
{
    assert(block < pool->capacity && pool->blocks[block].refs > 0);
    assert(pool->blocks[block].refs < UINT32_MAX);
    pool->blocks[block].refs++;
}

void kv_pool_unref(struct kv_pool *pool, uint32_t block)
{
    assert(block < pool->capacity && pool->blocks[block].refs > 0);
    if (--pool->blocks[block].refs > 0) return;
    pool->blocks[block].next = pool->free_head;
    pool->free_head = block;
    pool->free_count++;
}

uint32_t kv_pool_refs(const struct kv_pool *pool, uint32_t block)
{
    assert(block < pool->capacity);
    return pool->blocks[block].refs;
}

uint32_t kv_pool_capacity(const struct kv_pool *pool)
{
    return pool->capacity;
}

uint32_t kv_pool_free_count(const struct kv_pool *pool)
{
    return pool->free_count;
}

uint32_t kv_pool_promised_count(const struct kv_pool *pool)
{
    return pool->promised;
}

uint32_t kv_pool_available_count(const struct kv_pool *pool)
{
    uint32_t unpromised = pool->free_count + pool->reclaimable;

    /* less than promised only for the moment in which a sequence adopts reclaimable blocks before it is found not to fit */
    return unpromised > pool->promised ? unpromised - pool->promised : 0;
}

uint32_t kv_pool_used_count(const struct kv_pool *pool)
{
    return pool->capacity - pool->free_count - pool->reclaimable;
}

uint64_t kv_pool_refs_sum(const struct kv_pool *pool)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < pool->capacity; i++)
        sum += pool->blocks[i].refs;
    return sum;
}

void kv_pool_set_reclaim(struct kv_pool *pool, void (*reclaim)(void *ctx), void *ctx)
{
    pool->reclaim = reclaim;
    pool->reclaim_ctx = ctx;
}

void kv_pool_add_reclaimable(struct kv_pool *pool, int change)
{
    assert(change >= 0 || pool->reclaimable >= (uint32_t)-change);
    pool->reclaimable += (uint32_t)change;
}

void kv_pool_check(const struct kv_pool *pool)
{
    uint32_t unused = 0, listed = 0;

    for (uint32_t i = 0; i < pool->capacity; i++)
        unused += pool->blocks[i].refs == 0;
    for (uint32_t i = pool->free_head; i != NONE; i = pool->blocks[i].next) {
        assert(i < pool->capacity && pool->blocks[i].refs == 0);
        assert(++listed <= pool->capacity); /* a cycle would not end */
    }
    assert(unused == pool->free_count && listed == pool->free_count);
    assert(pool->promised <= pool->free_count + pool->reclaimable);
}
