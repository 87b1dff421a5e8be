#include "frontend/share.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/hash.h"

enum { BUCKETS = 4096 };

struct holder {
    struct holder *next;
    uint64_t key, bytes;
};

struct share_pool {
    pthread_mutex_t lock;
    uint64_t held; /* by all */
    struct holder *buckets[BUCKETS];
};

struct share_pool *share_create(void)
{
    struct share_pool *pool = calloc(1, sizeof *pool);

    if (pool) pthread_mutex_init(&pool->lock, NULL);
    return pool;
}

void share_destroy(struct share_pool *pool)
{
    if (!pool) return;
    for (uint32_t i = 0; i < BUCKETS; i++)
        for (struct holder *next, *h = pool->buckets[i]; h; h = next) {
            next = h->next;
            free(h);
        }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* Where the key's entry hangs, or would. */
static struct holder **find(struct share_pool *pool, uint64_t key)
{
    struct holder **at = &pool->buckets[hash_bytes(&key, sizeof key, hash_secret()) % BUCKETS];

    while (*at && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

static enum status add(struct share_pool *pool, struct holder **at, uint64_t key, uint64_t bytes)
{
    if (!*at) {
        *at = calloc(1, sizeof **at);
        if (!*at) return STATUS_NOMEM;
        (*at)->key = key;
    }
    (*at)->bytes += bytes;
    pool->held += bytes;
    return STATUS_OK;
}

static void subtract(struct share_pool *pool, struct holder **at, uint64_t bytes)
{
    struct holder *h = *at;

    assert(h && h->bytes >= bytes);
    h->bytes -= bytes;
    pool->held -= bytes;
    if (h->bytes) return;
    *at = h->next;
    free(h);
}

enum status share_take(struct share_pool *pool, uint64_t key, uint64_t bytes, uint64_t limit)
{
    enum status st = STATUS_OK;

    if (!bytes) return STATUS_OK;
    pthread_mutex_lock(&pool->lock);
    struct holder **at = find(pool, key);
    uint64_t own = *at ? (*at)->bytes : 0, free_bytes = limit > pool->held ? limit - pool->held : 0;

    if (bytes > free_bytes || own + bytes > free_bytes - bytes)
        st = own || bytes > limit / 2 ? STATUS_LIMIT : STATUS_FULL;
    else
        st = add(pool, at, key, bytes);
    pthread_mutex_unlock(&pool->lock);
    return st;
}

void share_give(struct share_pool *pool, uint64_t key, uint64_t bytes)
{
    if (!bytes) return;
    pthread_mutex_lock(&pool->lock);
    subtract(pool, find(pool, key), bytes);
    pthread_mutex_unlock(&pool->lock);
}

bool share_move(struct share_pool *pool, uint64_t from, uint64_t to, uint64_t bytes)
{
    enum status st = STATUS_OK;

    if (!bytes || from == to) return true;
    pthread_mutex_lock(&pool->lock);
    st = add(pool, find(pool, to), to, bytes);
    if (!st) subtract(pool, find(pool, from), bytes);
    pthread_mutex_unlock(&pool->lock);
    return !st;
}

uint64_t share_held(struct share_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t held = pool->held;

    pthread_mutex_unlock(&pool->lock);
    return held;
}
