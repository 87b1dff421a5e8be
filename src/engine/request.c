#include "engine/request.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/output.h"

struct request *request_create(uint64_t memory_max)
{
    struct request *request = calloc(1, sizeof *request);

    if (!request) return NULL;
    arena_init(&request->arena, memory_max);
    atomic_init(&request->refs, 1);
    return request;
}

void request_ref(struct request *request)
{
    uint32_t before = atomic_fetch_add_explicit(&request->refs, 1, memory_order_relaxed);

    assert(before > 0);
    (void)before;
}

void request_unref(struct request *request)
{
    uint32_t before = atomic_fetch_sub_explicit(&request->refs, 1, memory_order_acq_rel);

    assert(before > 0);
    if (before > 1) return;
    output_ring_destroy(request->ring);
    free(request->engine);
    arena_fini(&request->arena);
    free(request);
}
