#include "frontend/text_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct text_pool {
    pthread_mutex_t lock;
    pthread_cond_t some;
    void (*run)(void *job);
    void **jobs; /* [capacity] ring under lock */
    uint32_t capacity, first, count;
    bool ending;
    uint32_t thread_count;
    pthread_t threads[];
};

static void *work(void *arg)
{
    struct text_pool *pool = arg;

    pthread_setname_np(pthread_self(), "inferd-text");
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        while (!pool->count && !pool->ending)
            pthread_cond_wait(&pool->some, &pool->lock);
        if (!pool->count) break;
        void *job = pool->jobs[pool->first];

        pool->first = (pool->first + 1) % pool->capacity;
        pool->count--;
        pthread_mutex_unlock(&pool->lock);
        pool->run(job);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum status text_pool_create(uint32_t threads, uint32_t capacity, void (*run)(void *job),
                             struct text_pool **out, struct error *err)
{
    struct text_pool *pool = calloc(1, sizeof *pool + threads * sizeof pool->threads[0]);

    if (!pool || !(pool->jobs = calloc(capacity, sizeof *pool->jobs))) {
        free(pool);
        return error_set(err, STATUS_NOMEM, "no memory for the text threads");
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->some, NULL);
    pool->run = run;
    pool->capacity = capacity;
    while (pool->thread_count < threads) {
        if (pthread_create(&pool->threads[pool->thread_count], NULL, work, pool)) {
            text_pool_destroy(pool);
            return error_set(err, STATUS_NOMEM, "no room for %u text threads", threads);
        }
        pool->thread_count++;
    }
    *out = pool;
    return STATUS_OK;
}

enum status text_pool_submit(struct text_pool *pool, void *job)
{
    enum status st = STATUS_OK;

    pthread_mutex_lock(&pool->lock);
    if (pool->count == pool->capacity) {
        st = STATUS_FULL;
    } else {
        pool->jobs[(pool->first + pool->count++) % pool->capacity] = job;
        pthread_cond_signal(&pool->some);
    }
    pthread_mutex_unlock(&pool->lock);
    return st;
}

void text_pool_destroy(struct text_pool *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->ending = true;
    pthread_cond_broadcast(&pool->some);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->some);
    pthread_mutex_destroy(&pool->lock);
    free(pool->jobs);
    free(pool);
}
