/* zmq_client.c - the clients that have something open, and their way out: one message a turn, without a copy from 1 KiB. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "frontend/zmq.h"

static const int64_t probe_ns = 250000000, second_ns = 1000000000, lazy_ns = ZMQ_LAZY_MS * 1000000;

struct zmq_client *zmq_client_find(struct zmq_front *z, struct slice id)
{
    uint64_t hash = hash_bytes(id.ptr, id.len, z->secret);
    struct zmq_client *c = z->client_table[hash % ZMQ_CLIENT_BUCKETS];

    while (c && (c->hash != hash || !slice_eq(slice_of(c->id, c->id_len), id)))
        c = c->hash_next;
    return c;
}

struct zmq_client *zmq_client_open(struct zmq_front *z, struct slice id)
{
    struct zmq_client *c = zmq_client_find(z, id);

    if (c || id.len > ZMQ_ID_MAX) return c;
    c = calloc(1, sizeof *c);
    if (!c) return NULL;
    memcpy(c->id, id.ptr, id.len);
    c->id_len = (uint8_t)id.len;
    c->hash = hash_bytes(id.ptr, id.len, z->secret);
    c->sent_ns = clock_mono_ns();
    buf_init(&c->out, 0);
    struct zmq_client **bucket = &z->client_table[c->hash % ZMQ_CLIENT_BUCKETS];

    c->hash_next = *bucket;
    *bucket = c;
    c->next = z->clients;
    if (z->clients) z->clients->prev = c;
    z->clients = c;
    atomic_store_explicit(&z->stats->clients, ++z->client_count, memory_order_relaxed);
    return c;
}

static void set_stuck(struct zmq_front *z, struct zmq_client *c, bool stuck)
{
    if (c->stuck == stuck) return;
    c->stuck = stuck;
    c->stuck_ns = clock_mono_ns();
    if (stuck)
        z->stuck_count++;
    else
        z->stuck_count--;
}

static void forget_dirty(struct zmq_front *z, struct zmq_client *c)
{
    if (!c->dirty) return;
    for (struct zmq_client **at = &z->dirty; *at; at = &(*at)->dirty_next)
        if (*at == c) {
            *at = c->dirty_next;
            break;
        }
    c->dirty = false;
}

static void drop_out(struct zmq_front *z, struct zmq_client *c)
{
    buf_fini(&c->out);
    buf_init(&c->out, 0);
    share_give(z->frontend->answers, c->holder, c->out_large);
    c->out_large = 0;
}

static void destroy(struct zmq_front *z, struct zmq_client *c)
{
    struct zmq_client **at = &z->client_table[c->hash % ZMQ_CLIENT_BUCKETS];

    set_stuck(z, c, false);
    forget_dirty(z, c);
    while (*at != c)
        at = &(*at)->hash_next;
    *at = c->hash_next;
    if (c->prev)
        c->prev->next = c->next;
    else
        z->clients = c->next;
    if (c->next) c->next->prev = c->prev;
    if (c->has_pending) zmq_msg_close(&c->pending);
    drop_out(z, c);
    free(c);
    atomic_store_explicit(&z->stats->clients, --z->client_count, memory_order_relaxed);
}

/* Nothing of it is open or unsent. One of ipc is looked after until it has read what it was sent. */
static void leave(struct zmq_front *z, struct zmq_client *c)
{
    if (!c->inode || z->draining) {
        destroy(z, c);
        return;
    }
    set_stuck(z, c, false);
    if (c->has_pending) zmq_msg_close(&c->pending);
    c->has_pending = false;
    drop_out(z, c);
    c->waits = true;
}

static void list_dirty(struct zmq_front *z, struct zmq_client *c)
{
    c->dirty = true;
    c->dirty_next = z->dirty;
    z->dirty = c;
}

void zmq_client_touch(struct zmq_front *z, struct zmq_client *c)
{
    c->lazy = c->waits = false;
    if (!c->dirty) list_dirty(z, c);
}

void zmq_client_touch_lazily(struct zmq_front *z, struct zmq_client *c)
{
    if (c->dirty) return;
    c->waits = false;
    c->lazy = true;
    c->lazy_ns = clock_mono_ns();
    list_dirty(z, c);
}

uint32_t zmq_client_released(const struct zmq_front *z, const struct zmq_client *c)
{
    return atomic_load_explicit(&z->released[c->hash % ZMQ_RELEASED], memory_order_relaxed);
}

bool zmq_client_has_room(const struct zmq_client *c)
{
    return c->out.len < ZMQ_OUT_SOFT;
}

/* --- sending --- */

/* A message's last reference ends on libzmq's thread: its block is kept for the next one. Fresh memory for each would cost
 * more than copying small ones does (bench/frontend/zmq_copy.c). */
static void give_back(void *block, void *blocks)
{
    struct zmq_blocks *b = blocks;

    if (malloc_usable_size(block) <= ZMQ_BLOCK_MAX) {
        pthread_mutex_lock(&b->lock);
        if (b->count < ZMQ_BLOCKS_MAX) {
            b->list[b->count++] = block;
            block = NULL;
        }
        pthread_mutex_unlock(&b->lock);
    }
    free(block);
}

static void take_block(struct zmq_blocks *b, struct buf *out)
{
    buf_init(out, 0);
    pthread_mutex_lock(&b->lock);
    if (b->count) out->ptr = b->list[--b->count];
    pthread_mutex_unlock(&b->lock);
    out->cap = out->ptr ? malloc_usable_size(out->ptr) : 0;
}

void zmq_blocks_fini(struct zmq_blocks *b)
{
    while (b->count)
        free(b->list[--b->count]);
    pthread_mutex_destroy(&b->lock);
}

/* A message with large whole answers in it: they count against the limit of all until libzmq has sent it or given it up. */
struct large {
    struct share_pool *answers;
    uint64_t holder, bytes;
    _Atomic uint32_t *released; /* the front's, which outlives libzmq's context */
};

static void give_up_large(void *block, void *hint)
{
    struct large *large = hint;

    share_give(large->answers, large->holder, large->bytes);
    atomic_fetch_add_explicit(large->released, 1, memory_order_relaxed);
    free(block);
    free(large);
}

static bool build_large(struct zmq_front *z, struct zmq_client *c)
{
    struct large *large = malloc(sizeof *large);

    if (!large) return false;
    *large = (struct large){z->frontend->answers, c->holder, c->out_large,
                            &z->released[c->hash % ZMQ_RELEASED]};
    if (zmq_msg_init_data(&c->pending, c->out.ptr, c->out.len, give_up_large, large)) {
        free(large);
        return false;
    }
    c->out_large = 0;
    take_block(&z->blocks, &c->out);
    return c->has_pending = true;
}

/* Makes the next message of `out`. A large one takes the buffer itself along. */
static bool build(struct zmq_front *z, struct zmq_client *c)
{
    if (c->out_large) return build_large(z, c);
    if (c->out.len < ZMQ_COPY_BELOW) {
        if (zmq_msg_init_size(&c->pending, c->out.len)) return false;
        if (c->out.len) memcpy(zmq_msg_data(&c->pending), c->out.ptr, c->out.len);
        buf_clear(&c->out);
    } else {
        if (zmq_msg_init_data(&c->pending, c->out.ptr, c->out.len, give_back, &z->blocks))
            return false;
        take_block(&z->blocks, &c->out);
    }
    return c->has_pending = true;
}

enum sent { SENT, SENT_LATER, SENT_NOBODY };

static enum sent send_pending(struct zmq_front *z, struct zmq_client *c)
{
    size_t bytes = zmq_msg_size(&c->pending);
    int got;

    do
        got = zmq_send(z->router, c->id, c->id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0) return errno == EAGAIN ? SENT_LATER : SENT_NOBODY;
    do
        got = zmq_msg_send(&c->pending, z->router, ZMQ_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0) return SENT_NOBODY; /* the second part is always taken: something is badly wrong */
    c->has_pending = false;
    c->sent_count++;
    atomic_fetch_add_explicit(&z->stats->messages_out, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&z->stats->bytes_out, bytes, memory_order_relaxed);
    return SENT;
}

static void vanish(struct zmq_front *z, struct zmq_client *c)
{
    if (c->call_count) {
        atomic_fetch_add_explicit(&z->stats->clients_vanished, 1, memory_order_relaxed);
        log_info("zmq client gone", "requests=%u", c->call_count);
    }
    zmq_call_vanish_all(z, c);
    destroy(z, c);
}

/* False: the client is no more, or has nothing open. */
static bool flush(struct zmq_front *z, struct zmq_client *c)
{
    if (buf_status(&c->out)) {
        log_error("zmq client cut", "why=\"no memory for its answers\" requests=%u", c->call_count);
        vanish(z, c);
        return false;
    }
    while (c->has_pending || c->out.len) {
        if (!c->has_pending && !build(z, c)) return true; /* no memory: tried again by the sweep */
        enum sent sent = send_pending(z, c);

        if (sent == SENT_NOBODY) {
            vanish(z, c);
            return false;
        }
        if (sent == SENT_LATER) {
            set_stuck(z, c, true);
            return true;
        }
        c->sent_ns = clock_mono_ns();
    }
    set_stuck(z, c, false);
    if (c->call_count) return true;
    leave(z, c);
    return false;
}

void zmq_client_flush_all(struct zmq_front *z)
{
    struct zmq_client *c, *waiting = NULL;
    int64_t now = z->dirty ? clock_mono_ns() : 0;

    while ((c = z->dirty)) {
        z->dirty = c->dirty_next;
        if (c->lazy && now - c->lazy_ns < lazy_ns) {
            c->dirty_next = waiting;
            waiting = c;
            continue;
        }
        c->dirty = c->lazy = false;
        flush(z, c);
    }
    z->dirty = waiting;
    z->lazy_left = waiting != NULL;
}

/* What waited for room goes on. */
static void pump_calls(struct zmq_front *z, struct zmq_client *c)
{
    for (struct zmq_call *call = c->calls; call; call = call->next)
        zmq_call_again(z, call);
}

void zmq_client_retry(struct zmq_front *z)
{
    struct zmq_client *next;

    for (struct zmq_client *c = z->clients; c; c = next) {
        next = c->next;
        if (c->stuck && flush(z, c) && !c->stuck) pump_calls(z, c);
    }
}

/* It reads nothing: what it has not got is dropped, its requests end, and it hears of that if it ever reads again. */
static void cut_slow(struct zmq_front *z, struct zmq_client *c)
{
    struct api_fault fault;

    atomic_fetch_add_explicit(&z->stats->clients_slow, 1, memory_order_relaxed);
    log_info("zmq client stalled", "requests=%u unsent_bytes=%zu", c->call_count, c->out.len);
    api_refuse(&fault, 503, "client_too_slow", NULL,
               "The client did not read its answers for %u s.", z->settings->o.client_stall_s);
    drop_out(z, c);
    zmq_call_fail_all(z, c, &fault);
    c->stuck_ns = clock_mono_ns();
}

void zmq_client_sweep(struct zmq_front *z, int64_t now)
{
    int64_t limit_ns = z->settings->o.client_stall_s * second_ns;
    struct zmq_client *next;

    if (now - z->swept_ns < probe_ns) return;
    z->swept_ns = now;
    for (struct zmq_client *c = z->clients; c; c = next) {
        next = c->next;
        enum unread unread = zmq_peer_look(z, c, now, 2 * limit_ns);

        if (unread == UNREAD_TOO_LONG) {
            log_info("zmq client stalled", "requests=%u unread_bytes=%d", c->call_count, c->unread);
            vanish(z, c);
            continue;
        }
        if (c->stuck && now - c->stuck_ns > limit_ns) {
            if (c->call_count)
                cut_slow(z, c);
            else
                leave(z, c); /* it never read what it was to hear */
            continue;
        }
        if (c->waits) {
            if (unread == UNREAD_NONE || z->draining) destroy(z, c);
            continue;
        }
        /* nothing to say: an empty Batch finds out whether it is still there */
        if (!c->stuck && !c->has_pending && !c->out.len && now - c->sent_ns >= probe_ns)
            if (!build(z, c)) continue;
        flush(z, c);
    }
}

void zmq_client_drop_all(struct zmq_front *z)
{
    while (z->clients)
        destroy(z, z->clients);
}
