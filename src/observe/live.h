/* live.h - the requests that are being computed, and the last that ended: for /stats.
 *
 * A table of places under one lock, taken when a request comes, goes, or somebody looks; never per token. Requests beyond LIVE_MAX at
 * once are served like any other and merely not listed. Thread: any. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/stage_times.h"

enum { LIVE_MAX = 256, LIVE_ENDED_MAX = 32 };

struct request_record;

struct live_request {
    bool used;
    char id[64];
    const char *route; /* static */
    int64_t received_ns;
    uint32_t prompt_tokens;
    const struct stage_times *times; /* borrowed until live_leave; only scheduled_ns is read */
    _Atomic uint32_t tokens;         /* by who delivers them, all choices */
};

/* A summary of a request that has ended, small enough to keep many. */
struct live_ended {
    char id[64], outcome[16];
    unsigned status;
    int64_t ended_wall_ns;
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    struct stage_ledger ledger;
};

struct live {
    pthread_mutex_t lock;
    uint32_t first_free; /* no place before it is free */
    struct live_request requests[LIVE_MAX];
    struct live_ended ended[LIVE_ENDED_MAX]; /* entry i at i % LIVE_ENDED_MAX */
    uint64_t ended_count;
};

void live_init(struct live *live); /* of zeroed memory */
void live_fini(struct live *live);

/* NULL: the table is full. The place is the caller's until live_leave. */
struct live_request *live_enter(struct live *live, const char *id, const char *route,
                                int64_t received_ns, const struct stage_times *times);
void live_leave(struct live *live, struct live_request *place); /* takes NULL */
void live_note_ended(struct live *live, const struct request_record *record);

/* "queue", "prefill" or "decode", as it looks from outside. Under the lock. */
const char *live_stage(const struct live_request *place);
