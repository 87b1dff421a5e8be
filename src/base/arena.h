/* arena.h - many small objects that end together.
 *
 * Memory is taken in chunks and given back whole. A limit bounds the sum; an allocation over it
 * returns NULL, as does a lack of memory. Thread: whoever holds it. */
#pragma once

#include <stddef.h>

#include "base/slice.h"

struct arena_chunk;
struct arena {
    struct arena_chunk *chunks; /* newest first */
    size_t used;                /* bytes handed out, padding included */
    size_t limit;               /* 0: none */
};

void arena_init(struct arena *arena, size_t limit);
void arena_fini(struct arena *arena); /* idempotent */

/* `size` zeroed bytes, 16-byte aligned; NULL when out of memory or over the limit. */
void *arena_alloc(struct arena *arena, size_t size);
/* A copy of s with a NUL behind it; NULL as above. */
char *arena_strdup(struct arena *arena, struct slice s);
