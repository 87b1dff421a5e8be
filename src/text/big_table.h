/* big_table.h - memory for hash tables of some megabytes that are read at random: zeroed, and in huge pages where the
 * kernel gives them, since with small ones most look-ups also miss the TLB. Thread: any. */
#pragma once

#include <stddef.h>
#include <sys/mman.h>

/* Zeroed bytes (bytes > 0), or NULL. Pages are taken when they are first touched. Ends with big_table_free. */
static inline void *big_table_alloc(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED) return NULL;
    if (bytes >= 2u << 20) madvise(at, bytes, MADV_HUGEPAGE); /* a wish */
    return at;
}

static inline void big_table_free(void *at, size_t bytes)
{
    if (at) munmap(at, bytes);
}
