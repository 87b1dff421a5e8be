#include "frontend/text_pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    SHORT_QUEUE_MAX = 4096,
    LONG_QUEUE_MAX = 256,
    LONG_NICE = 10,
    LONG_BYTES = 128 << 10, /* beyond it a text may take a thread more than some 20 ms */
    HUGE_BYTES = 1 << 20,   /* and beyond it more than some 150 */
};

struct text_pool {
    pthread_mutex_t lock;
    pthread_cond_t some;
    void (*run)(void *job);
    void **jobs; /* [capacity] ring under lock */
    uint32_t capacity, first, count;
    bool ending;
    int nice;
    uint32_t thread_count;
    pthread_t threads[];
};

static void *work(void *arg)
{
    struct text_pool *pool = arg;

    pthread_setname_np(pthread_self(), "inferd-text");
    /* Linux has a priority per thread; without it (a seccomp filter) the lanes still share the processors */
    if (pool->nice)
        setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + pool->nice);
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

enum status text_pool_create(uint32_t threads, uint32_t capacity, int nice, void (*run)(void *job),
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
    pool->nice = nice;
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

enum text_lane text_lane_of(size_t bytes, bool asks)
{
    if (bytes <= LONG_BYTES) return LANE_SHORT;
    if (bytes <= HUGE_BYTES) return asks ? LANE_LONG_ASK : LANE_LONG;
    return asks ? LANE_HUGE_ASK : LANE_HUGE;
}

enum status text_lanes_create(uint32_t short_threads, void (*run)(void *job),
                              struct text_lanes *out, struct error *err)
{
    enum status st =
        text_pool_create(short_threads, SHORT_QUEUE_MAX, 0, run, &out->pools[LANE_SHORT], err);

    for (int lane = LANE_SHORT + 1; !st && lane < TEXT_LANES; lane++)
        st = text_pool_create(1, LONG_QUEUE_MAX, LONG_NICE, run, &out->pools[lane], err);
    return st;
}

enum status text_lanes_submit(struct text_lanes *lanes, enum text_lane lane, void *job)
{
    return text_pool_submit(lanes->pools[lane], job);
}

void text_lanes_destroy(struct text_lanes *lanes)
{
    for (int lane = 0; lane < TEXT_LANES; lane++) {
        text_pool_destroy(lanes->pools[lane]);
        lanes->pools[lane] = NULL;
    }
}
