#include "device/cpu/cpu_pool.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

enum { THREADS_MAX = 256, SPINS = 2000 }; /* some 20 to 60 us: longer than a stage's serial part */

struct cpu_pool {
    uint32_t threads;
    uint32_t started;     /* workers running: threads 1..started */
    struct cpu_list list; /* count 0: no thread is bound */
    pthread_t *workers;

    /* the job; written before `claim` is published, stable while a chunk of it is out */
    cpu_pool_fn fn;
    void *ctx;
    uint32_t items, grain, chunks;

    _Alignas(64) _Atomic uint64_t claim; /* job number << 32 | chunks nobody has taken */
    _Alignas(64) _Atomic uint32_t done;  /* chunks finished of this job */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic uint32_t posted; /* changes with each job: workers sleep on it */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t used; /* threads that work now; those from it on sleep on it */
    _Atomic bool stop;
};
struct worker {
    struct cpu_pool *pool;
    uint32_t thread;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Takes and runs chunks until none is left. */
static bool work(struct cpu_pool *pool, uint32_t thread)
{
    uint64_t claim = atomic_load_explicit(&pool->claim, memory_order_acquire);
    bool any = false;

    while ((uint32_t)claim) {
        if (!atomic_compare_exchange_weak_explicit(&pool->claim, &claim, claim - 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        uint32_t chunk = pool->chunks - (uint32_t)claim, begin = chunk * pool->grain;
        uint32_t end = pool->items - begin < pool->grain ? pool->items : begin + pool->grain;
        uint32_t chunks = pool->chunks;
        pool->fn(pool->ctx, begin, end, thread);
        any = true;
        if (atomic_fetch_add(&pool->done, 1) + 1 == chunks && atomic_load(&pool->caller_sleeps))
            futex_wake(&pool->done, 1);
        claim = atomic_load_explicit(&pool->claim, memory_order_acquire);
    }
    return any;
}

static void *worker_main(void *arg)
{
    struct worker me = *(struct worker *)arg;
    struct cpu_pool *pool = me.pool;
    uint32_t spins = 0;
    struct error err;

    free(arg);
    if (pool->list.count && cpu_list_bind(&pool->list, me.thread, &err))
        log_warn("thread not bound", "reason=\"%s\"", err.message);
    while (!atomic_load(&pool->stop)) {
        uint32_t posted = atomic_load(&pool->posted), used = atomic_load(&pool->used);
        if (me.thread >= used) {
            futex_wait(&pool->used, used);
        } else if (work(pool, me.thread)) {
            spins = 0;
        } else if (spins++ < SPINS) {
            spin_pause();
        } else {
            atomic_fetch_add(&pool->sleepers, 1);
            if (!atomic_load(&pool->stop)) futex_wait(&pool->posted, posted);
            atomic_fetch_sub(&pool->sleepers, 1);
            spins = 0;
        }
    }
    return NULL;
}

static enum status start_worker(struct cpu_pool *pool, struct error *err)
{
    struct worker *w = malloc(sizeof *w);
    int code;

    if (!w) return error_set(err, STATUS_NOMEM, "no memory for a worker thread");
    *w = (struct worker){pool, pool->started + 1};
    code = pthread_create(&pool->workers[pool->started], NULL, worker_main, w);
    if (code) {
        free(w);
        return error_set(err, STATUS_IO, "cannot start worker thread %u: %s", pool->started + 1,
                         strerror(code));
    }
    pthread_setname_np(pool->workers[pool->started], "inferd-cpu");
    pool->started++;
    return STATUS_OK;
}

enum status cpu_pool_create(uint32_t threads, const struct cpu_list *list, struct cpu_pool **out,
                            struct error *err)
{
    struct cpu_pool *pool;
    enum status st = STATUS_OK;

    if (threads < 1 || threads > THREADS_MAX)
        return error_set(err, STATUS_INVALID, "%u CPU threads; 1 to %d are right", threads,
                         THREADS_MAX);
    pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (!pool) return error_set(err, STATUS_NOMEM, "no memory for the CPU thread pool");
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    if (list) pool->list = *list;
    atomic_store(&pool->used, threads);
    pool->workers = calloc(threads, sizeof *pool->workers);
    if (!pool->workers) st = error_set(err, STATUS_NOMEM, "no memory for the CPU thread pool");
    while (!st && pool->started + 1 < threads)
        st = start_worker(pool, err);
    if (st) {
        cpu_pool_destroy(pool);
        return st;
    }
    *out = pool;
    return STATUS_OK;
}

void cpu_pool_destroy(struct cpu_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->posted, 1);
    futex_wake(&pool->posted, THREADS_MAX);
    atomic_store(&pool->used, UINT32_MAX); /* a new value: nobody falls asleep on the old one */
    futex_wake(&pool->used, THREADS_MAX);
    for (uint32_t i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i], NULL);
    free(pool->workers);
    free(pool);
}

uint32_t cpu_pool_threads(const struct cpu_pool *pool)
{
    return pool->threads;
}

void cpu_pool_use(struct cpu_pool *pool, uint32_t threads)
{
    assert(threads >= 1 && threads <= pool->threads);
    if (threads == atomic_load(&pool->used)) return;
    atomic_store(&pool->used, threads);
    futex_wake(&pool->used, THREADS_MAX);
}

uint32_t cpu_pool_used(const struct cpu_pool *pool)
{
    return atomic_load(&pool->used);
}

static void wait_done(struct cpu_pool *pool, uint32_t chunks)
{
    uint32_t done;

    for (uint32_t spins = 0; atomic_load(&pool->done) != chunks; spins++) {
        if (spins < SPINS) {
            spin_pause();
            continue;
        }
        atomic_store(&pool->caller_sleeps, 1);
        while ((done = atomic_load(&pool->done)) != chunks)
            futex_wait(&pool->done, done);
        atomic_store(&pool->caller_sleeps, 0);
    }
}

void cpu_pool_run(struct cpu_pool *pool, cpu_pool_fn fn, void *ctx, uint32_t items, uint32_t grain)
{
    uint32_t chunks, job;

    if (!items) return;
    if (!grain) grain = 1;
    chunks = (items - 1) / grain + 1;
    if (chunks == 1 || cpu_pool_used(pool) == 1) {
        fn(ctx, 0, items, 0);
        return;
    }
    pool->fn = fn, pool->ctx = ctx;
    pool->items = items, pool->grain = grain, pool->chunks = chunks;
    atomic_store(&pool->done, 0);
    job = (uint32_t)(atomic_load(&pool->claim) >> 32) + 1;
    atomic_store(&pool->claim, (uint64_t)job << 32 | chunks);
    atomic_fetch_add(&pool->posted, 1);
    if (atomic_load(&pool->sleepers)) futex_wake(&pool->posted, THREADS_MAX);
    work(pool, 0);
    wait_done(pool, chunks);
}
