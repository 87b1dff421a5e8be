#include "observe/live.h"

#include <stdio.h>

#include "observe/request_record.h"

void live_init(struct live *live)
{
    pthread_mutex_init(&live->lock, NULL);
}

void live_fini(struct live *live)
{
    pthread_mutex_destroy(&live->lock);
}

struct live_request *live_enter(struct live *live, const char *id, const char *route,
                                int64_t received_ns, const struct stage_times *times)
{
    struct live_request *place = NULL;

    pthread_mutex_lock(&live->lock);
    for (uint32_t i = live->first_free; i < LIVE_MAX && !place; i++) {
        live->first_free = i + 1;
        if (!live->requests[i].used) place = &live->requests[i];
    }
    if (place) {
        snprintf(place->id, sizeof place->id, "%s", id);
        place->used = true;
        place->route = route;
        place->received_ns = received_ns;
        place->prompt_tokens = times->prompt_tokens;
        place->times = times;
        atomic_store_explicit(&place->tokens, 0, memory_order_relaxed);
    }
    pthread_mutex_unlock(&live->lock);
    return place;
}

void live_leave(struct live *live, struct live_request *place)
{
    if (!place) return;
    uint32_t number = (uint32_t)(place - live->requests);

    pthread_mutex_lock(&live->lock);
    place->used = false;
    place->times = NULL;
    if (number < live->first_free) live->first_free = number;
    pthread_mutex_unlock(&live->lock);
}

void live_note_ended(struct live *live, const struct request_record *r)
{
    pthread_mutex_lock(&live->lock);
    struct live_ended *e = &live->ended[live->ended_count++ % LIVE_ENDED_MAX];

    *e = (struct live_ended){.status = r->status,
                             .ended_wall_ns = r->wall_ns + r->ledger.total_ns,
                             .prompt_tokens = r->times.prompt_tokens,
                             .cached_tokens = r->times.cached_tokens,
                             .completion_tokens = r->completion_tokens,
                             .ledger = r->ledger};
    snprintf(e->id, sizeof e->id, "%s", r->id);
    snprintf(e->outcome, sizeof e->outcome, "%s", r->outcome);
    pthread_mutex_unlock(&live->lock);
}

const char *live_stage(const struct live_request *place)
{
    struct live_request *p = (struct live_request *)(uintptr_t)place; /* C17: no const */

    if (atomic_load_explicit(&p->tokens, memory_order_relaxed)) return stage_name(STAGE_DECODE);
    return stage_name(__atomic_load_n(&place->times->scheduled_ns, __ATOMIC_RELAXED) ? STAGE_PREFILL
                                                                                     : STAGE_QUEUE);
}
