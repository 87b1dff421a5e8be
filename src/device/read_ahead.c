#include "device/read_ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE_BYTES = 4 << 20, THREADS_MAX = 32 };

struct range {
    const char *at;
    uint64_t bytes, before; /* before: bytes of the ranges in front */
};

struct read_ahead {
    struct range *ranges;
    uint32_t count, room;
    uint64_t total, ahead, page;
    pthread_t threads[THREADS_MAX];
    uint32_t thread_count;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint32_t range;         /* (lock) of the next piece */
    uint64_t next, reached; /* (lock) bytes of the list */
    bool stop;              /* (lock) */
    _Atomic uint64_t done;
};

enum status read_ahead_create(struct read_ahead **out, struct error *err)
{
    struct read_ahead *ra = calloc(1, sizeof *ra);

    if (!ra) return error_set(err, STATUS_NOMEM, "no memory to read ahead");
    ra->page = (uint64_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_init(&ra->lock, NULL);
    pthread_cond_init(&ra->moved, NULL);
    *out = ra;
    return STATUS_OK;
}

enum status read_ahead_add(struct read_ahead *ra, const void *at, uint64_t bytes, struct error *err)
{
    struct range *last = ra->count ? &ra->ranges[ra->count - 1] : NULL;

    if (!bytes) return STATUS_OK;
    if (last && last->at + last->bytes == at) {
        last->bytes += bytes;
        ra->total += bytes;
        return STATUS_OK;
    }
    if (ra->count == ra->room) {
        uint32_t room = ra->room ? 2 * ra->room : 64;
        struct range *more = realloc(ra->ranges, room * sizeof *more);
        if (!more) return error_set(err, STATUS_NOMEM, "no memory to read ahead");
        ra->ranges = more, ra->room = room;
    }
    ra->ranges[ra->count++] = (struct range){at, bytes, ra->total};
    ra->total += bytes;
    return STATUS_OK;
}

/* Whole pages around [at, at + bytes): a mapping ends at a page's end. */
static void bring_in(const struct read_ahead *ra, const char *at, uint64_t bytes)
{
    uint64_t begin = (uint64_t)(uintptr_t)at / ra->page * ra->page;
    uint64_t end = ((uint64_t)(uintptr_t)at + bytes + ra->page - 1) / ra->page * ra->page;
    char *from = (char *)(uintptr_t)begin;

    madvise(from, end - begin, MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
    if (madvise(from, end - begin, MADV_POPULATE_READ) == 0) return;
    if (errno != EINVAL) return; /* a page that cannot be read: the reader will meet it too */
#endif
    for (uint64_t i = 0; i < end - begin; i += ra->page) /* kernels before 5.14 */
        (void)*(const volatile char *)(from + i);
}

/* The next piece, or false at the end. Waits while it is too far ahead. */
static bool take_piece(struct read_ahead *ra, const char **at, uint64_t *bytes)
{
    bool more;

    pthread_mutex_lock(&ra->lock);
    while (!ra->stop && ra->next < ra->total && ra->next >= ra->reached + ra->ahead)
        pthread_cond_wait(&ra->moved, &ra->lock);
    more = !ra->stop && ra->next < ra->total;
    if (more) {
        const struct range *r = &ra->ranges[ra->range];
        uint64_t offset = ra->next - r->before;
        *at = r->at + offset;
        *bytes = r->bytes - offset < PIECE_BYTES ? r->bytes - offset : PIECE_BYTES;
        ra->next += *bytes;
        if (offset + *bytes == r->bytes) ra->range++;
    }
    pthread_mutex_unlock(&ra->lock);
    return more;
}

static void *ahead_main(void *arg)
{
    struct read_ahead *ra = arg;
    const char *at;
    uint64_t bytes;

    while (take_piece(ra, &at, &bytes)) {
        bring_in(ra, at, bytes);
        atomic_fetch_add(&ra->done, bytes);
    }
    return NULL;
}

void read_ahead_start(struct read_ahead *ra, uint32_t threads, uint64_t ahead)
{
    ra->ahead = ahead;
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    while (ra->thread_count < threads &&
           !pthread_create(&ra->threads[ra->thread_count], NULL, ahead_main, ra))
        ra->thread_count++;
}

void read_ahead_reached(struct read_ahead *ra, uint64_t bytes)
{
    pthread_mutex_lock(&ra->lock);
    if (bytes > ra->reached) ra->reached = bytes;
    pthread_cond_broadcast(&ra->moved);
    pthread_mutex_unlock(&ra->lock);
}

uint64_t read_ahead_done(const struct read_ahead *ra)
{
    return atomic_load(&ra->done);
}

void read_ahead_end(struct read_ahead *ra)
{
    if (!ra) return;
    pthread_mutex_lock(&ra->lock);
    ra->stop = true;
    pthread_cond_broadcast(&ra->moved);
    pthread_mutex_unlock(&ra->lock);
    for (uint32_t i = 0; i < ra->thread_count; i++)
        pthread_join(ra->threads[i], NULL);
    pthread_mutex_destroy(&ra->lock);
    pthread_cond_destroy(&ra->moved);
    free(ra->ranges);
    free(ra);
}
