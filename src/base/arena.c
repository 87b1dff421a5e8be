#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 64 << 10 }; /* large enough that malloc is rare, small enough to waste */

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap;
    _Alignas(16) char bytes[];
};

void arena_init(struct arena *arena, size_t limit)
{
    *arena = (struct arena){.limit = limit};
}

void arena_fini(struct arena *arena)
{
    struct arena_chunk *chunk = arena->chunks, *next;

    for (; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    arena_init(arena, arena->limit);
}

void *arena_alloc(struct arena *arena, size_t size)
{
    struct arena_chunk *chunk = arena->chunks;
    size_t need;

    if (size > SIZE_MAX / 4) return NULL;
    need = (size + 15) & ~(size_t)15;
    if (arena->limit && need > arena->limit - arena->used) return NULL;
    if (!chunk || chunk->cap - chunk->used < need) {
        size_t cap = need > CHUNK_BYTES ? need : CHUNK_BYTES;
        chunk = malloc(sizeof *chunk + cap);
        if (!chunk) return NULL;
        *chunk = (struct arena_chunk){.next = arena->chunks, .cap = cap};
        arena->chunks = chunk;
    }
    arena->used += need;
    chunk->used += need;
    return memset(chunk->bytes + chunk->used - need, 0, need);
}

char *arena_strdup(struct arena *arena, struct slice s)
{
    char *copy = arena_alloc(arena, s.len + 1);

    if (copy && s.len) memcpy(copy, s.ptr, s.len);
    return copy;
}
