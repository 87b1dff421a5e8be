#include "base/malloc_count.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

static _Thread_local _Atomic uint64_t *watching;

void malloc_count_watch(_Atomic uint64_t *counter)
{
    watching = counter;
}

#if !defined(INFERD_SANITIZED) && defined(__GLIBC__)
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *ptr, size_t size);

static void note(void)
{
    if (watching) atomic_fetch_add_explicit(watching, 1, memory_order_relaxed);
}

void *malloc(size_t size)
{
    note();
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    note();
    return __libc_calloc(count, size);
}

void *realloc(void *ptr, size_t size)
{
    note();
    return __libc_realloc(ptr, size);
}
#endif
