#include "engine/output.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/notify.h"
#include "engine/request.h"

/* An output without the tops it does not have, and packed: a ring of 64 outputs for a client that wants no logprobs is 2 KiB, which both
 * threads go through again and again, for every stream. */
struct entry {
    uint8_t kind, reason, status, top_count;
    uint32_t choice, index;
    int32_t token;
    float logprob;
    const char *error;
    struct top_logprob tops[];
};
static_assert(sizeof(struct entry) == 32, "two to a cache line");

struct output_ring {
    uint32_t mask, top_max;
    size_t entry_bytes;
    struct notify *wake;
    _Alignas(64) _Atomic uint32_t head; /* next to write: producer */
    uint32_t
        tail_seen; /* producer: the tail when it last looked, so that it need not take the consumer's line each time */
    _Alignas(64) _Atomic uint32_t tail; /* next to read: consumer */
    _Atomic uint32_t wanted;            /* producer waits for room */
    _Alignas(64) char entries[];
};

struct output_ring *output_ring_create(uint32_t capacity, uint32_t top_max)
{
    uint32_t size = 1;
    size_t bytes = sizeof(struct entry) + top_max * sizeof(struct top_logprob);

    if (capacity < 1 || capacity > 1u << 24 || top_max > 20) return NULL;
    while (size < capacity)
        size *= 2;
    bytes = (bytes + 7) / 8 * 8;
    size_t total = (sizeof(struct output_ring) + size * bytes + 63) / 64 * 64;
    struct output_ring *ring = aligned_alloc(64, total);
    if (!ring) return NULL;
    memset(ring, 0, sizeof *ring);
    ring->mask = size - 1;
    ring->top_max = top_max;
    ring->entry_bytes = bytes;
    return ring;
}

void output_ring_destroy(struct output_ring *ring)
{
    if (!ring) return;
    notify_unref(ring->wake);
    free(ring);
}

uint32_t output_ring_capacity(const struct output_ring *ring)
{
    return ring->mask + 1;
}

void output_ring_attach(struct output_ring *ring, struct notify *wake)
{
    assert(!ring->wake);
    notify_ref(wake);
    ring->wake = wake;
}

/* Ordered against the consumer's pop: it moves the tail, then reads `wanted`; the producer sets `wanted`, then looks at the tail
 * (output_ring_free). One of them sees the other. */
void output_ring_want(struct output_ring *ring)
{
    atomic_store(&ring->wanted, 1);
}

static struct entry *entry_at(struct output_ring *ring, uint32_t place)
{
    return (struct entry *)(ring->entries + (place & ring->mask) * ring->entry_bytes);
}

uint32_t output_ring_free(const struct output_ring *ring)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    return ring->mask + 1 - (head - atomic_load(&ring->tail));
}

enum status output_ring_push(struct output_ring *ring, const struct output *output)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    if (head - ring->tail_seen > ring->mask) {
        ring->tail_seen = atomic_load(&ring->tail);
        if (head - ring->tail_seen > ring->mask) return STATUS_FULL;
    }
    assert(output->top_count <= ring->top_max);
    struct entry *e = entry_at(ring, head);
    e->kind = (uint8_t)output->kind;
    e->reason = (uint8_t)output->reason;
    e->status = (uint8_t)output->status;
    e->choice = output->choice;
    e->index = output->index;
    e->token = output->token;
    e->logprob = output->logprob;
    e->error = output->error;
    e->top_count = (uint8_t)output->top_count;
    if (output->top_count) memcpy(e->tops, output->tops, output->top_count * sizeof *e->tops);
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return STATUS_OK;
}

void output_ring_fetch(const struct output_ring *ring)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    __builtin_prefetch((const void *)&ring->head);
    __builtin_prefetch(ring->entries + (tail & ring->mask) * ring->entry_bytes);
}

enum status output_ring_pop(struct output_ring *ring, struct output *out)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

    if (tail == head) return STATUS_EMPTY;
    const struct entry *e = entry_at(ring, tail);
    out->kind = (enum output_kind)e->kind;
    out->reason = (enum finish_reason)e->reason;
    out->status = (enum status)e->status;
    out->choice = e->choice;
    out->index = e->index;
    out->token = e->token;
    out->logprob = e->logprob;
    out->error = e->error;
    out->top_count = e->top_count;
    if (e->top_count) memcpy(out->tops, e->tops, e->top_count * sizeof *e->tops);
    atomic_store(&ring->tail, tail + 1);
    /* not at the first free place: a waiting producer should find a few */
    uint32_t used = head - (tail + 1);
    if (atomic_load(&ring->wanted) && used <= (ring->mask + 1) / 2 &&
        atomic_exchange(&ring->wanted, 0))
        notify_signal(ring->wake);
    return STATUS_OK;
}

enum status output_bell_init(struct output_bell *bell)
{
    *bell = (struct output_bell){.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    return bell->event_fd < 0 ? STATUS_IO : STATUS_OK;
}

static void drop_listed(struct output_bell *bell)
{
    struct request *next;

    for (struct request *r = output_bell_take(bell); r; r = next) {
        next = output_bell_next(r);
        request_unref(r);
    }
}

void output_bell_fini(struct output_bell *bell)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int64_t until = clock_mono_ns() + 10000000000;

    while (atomic_load(&bell->users) && clock_mono_ns() < until)
        nanosleep(&pause, NULL);
    drop_listed(bell);
    close(bell->event_fd);
    bell->event_fd = -1;
}

void output_bell_list(struct output_bell *bell, struct request *request)
{
    /* A request that is still listed will be read after its re-arming (output_bell_next), which sees all pushed before this. */
    if (atomic_exchange(&request->bell_queued, 1)) return;
    request_ref(request);
    struct request *head = atomic_load_explicit(&bell->ready, memory_order_relaxed);
    do
        atomic_store_explicit(&request->bell_next, head, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&bell->ready, &head, request,
                                                  memory_order_release, memory_order_relaxed));
    bell->rung = true;
}

void output_bell_ring(struct output_bell *bell)
{
    uint64_t one = 1;

    if (!bell->rung) return;
    bell->rung = false;
    /* EAGAIN: the counter is full of rings that nobody has heard yet, so one more tells nothing new */
    if (write(bell->event_fd, &one, sizeof one) < 0) assert(errno == EAGAIN || errno == EINTR);
}

struct request *output_bell_take(struct output_bell *bell)
{
    return atomic_exchange_explicit(&bell->ready, NULL, memory_order_acquire);
}

struct request *output_bell_look(const struct request *request)
{
    struct request *next = atomic_load_explicit(&request->bell_next, memory_order_relaxed);

    if (next) __builtin_prefetch((const void *)&next->bell_next);
    if (next) __builtin_prefetch(&next->ring);
    return next;
}

struct request *output_bell_next(struct request *request)
{
    struct request *next = atomic_load_explicit(&request->bell_next, memory_order_relaxed);

    atomic_exchange(&request->bell_queued, 0);
    return next;
}
