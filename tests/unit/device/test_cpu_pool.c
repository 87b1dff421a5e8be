/* test_cpu_pool.c - every item of a job runs once, its writes are seen, and a pool that waits costs nothing.
 * Method: random jobs against a plain count; run under TSan for the ordering. */
#include "test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "device/cpu/cpu_pool.h"

struct job {
    uint32_t *hits; /* plain memory: TSan sees a missing order */
    uint32_t threads;
    _Atomic uint32_t calls, wrong;
};

static void hit(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct job *j = ctx;

    if (begin >= end || thread >= j->threads) atomic_store(&j->wrong, 1);
    atomic_fetch_add(&j->calls, 1);
    for (uint32_t i = begin; i < end; i++)
        j->hits[i]++;
}

/* Slow enough that every thread which works at all takes a part. */
static void hit_slowly(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    nanosleep(&(struct timespec){0, 100000}, NULL);
    hit(ctx, begin, end, thread);
}

TEST(every_item_runs_exactly_once)
{
    static uint32_t hits[5000];
    struct error err;

    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct cpu_pool *pool;
        EXPECT_OK_ERR(cpu_pool_create(threads, NULL, &pool, &err), &err);
        EXPECT_EQ(cpu_pool_threads(pool), threads);
        for (uint32_t round = 0; round < (test_long() ? 20000u : 1500u); round++) {
            uint32_t items = test_rand_below(round % 7 ? 64 : 5000), grain = test_rand_below(20);
            struct job j = {.hits = hits, .threads = threads};
            memset(hits, 0, items * sizeof *hits);
            cpu_pool_run(pool, hit, &j, items, grain);
            for (uint32_t i = 0; i < items; i++)
                EXPECT_EQ(hits[i], 1);
            EXPECT_EQ(atomic_load(&j.wrong), 0);
            if (round % 500 == 0) /* let them fall asleep */
                nanosleep(&(struct timespec){0, 2000000}, NULL);
        }
        cpu_pool_destroy(pool);
    }
}

/* A thread that was at work when the number fell comes to rest, on a busy machine after a few jobs more: from then on it takes
 * no part. */
static void expect_rest(struct cpu_pool *pool, uint32_t used)
{
    uint32_t hits[16], tries = 0;
    struct job j = {.hits = hits, .threads = used};

    do {
        memset(hits, 0, sizeof hits);
        atomic_store(&j.wrong, 0);
        cpu_pool_run(pool, hit_slowly, &j, 16, 1);
    } while (atomic_load(&j.wrong) && ++tries < 200);
    EXPECT_EQ(atomic_load(&j.wrong), 0);
}

/* Any number of them, changed between jobs: no item is lost, and the threads that rest take none. */
TEST(a_part_of_the_threads_may_be_used)
{
    static uint32_t hits[256];
    struct cpu_pool *pool;
    struct error err;

    EXPECT_OK_ERR(cpu_pool_create(4, NULL, &pool, &err), &err);
    for (uint32_t round = 0; round < (test_long() ? 20000u : 2000u); round++) {
        uint32_t used = 1 + test_rand_below(4), items = test_rand_below(256);
        struct job j = {.hits = hits, .threads = 4};
        cpu_pool_use(pool, used);
        EXPECT_EQ(cpu_pool_used(pool), used);
        if (round % 100 == 0) expect_rest(pool, used);
        memset(hits, 0, sizeof hits);
        cpu_pool_run(pool, hit, &j, items, 1 + test_rand_below(8));
        for (uint32_t i = 0; i < 256; i++)
            EXPECT_EQ(hits[i], i < items);
        EXPECT_EQ(atomic_load(&j.wrong), 0);
    }
    cpu_pool_use(pool, 1);
    cpu_pool_destroy(pool); /* with three at rest */
}

static int64_t process_cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

TEST(a_pool_without_work_sleeps)
{
    struct cpu_pool *pool;
    struct error err;
    uint32_t hits[64] = {0};
    struct job j = {.hits = hits, .threads = 4};

    EXPECT_OK_ERR(cpu_pool_create(4, NULL, &pool, &err), &err);
    cpu_pool_run(pool, hit, &j, 64, 1);
    cpu_pool_use(pool, 3); /* two kinds of sleep */
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    int64_t took_ns, tries = 0;
    do { /* on a busy machine they fall asleep late */
        int64_t before = process_cpu_ns();
        nanosleep(&(struct timespec){0, 300000000}, NULL);
        took_ns = process_cpu_ns() - before;
    } while (took_ns >= 3000000 && ++tries < 10);
    EXPECT_TRUE(took_ns < 3000000); /* under 1 % */
    cpu_pool_destroy(pool);
}

TEST(thread_counts_out_of_range_are_refused)
{
    struct cpu_pool *pool;
    struct error err;

    EXPECT_EQ(cpu_pool_create(0, NULL, &pool, &err), STATUS_INVALID);
    EXPECT_EQ(cpu_pool_create(257, NULL, &pool, &err), STATUS_INVALID);
    cpu_pool_destroy(NULL);
}
