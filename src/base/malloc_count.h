/* malloc_count.h - allocations of a thread that has asked to be watched: proof that the step path takes no memory.
 *
 * The C library's malloc, calloc and realloc are passed on unchanged; the only cost elsewhere is reading a thread-local
 * pointer. Not in sanitizer builds, which have a malloc of their own: nothing is counted there. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* From here on each allocation of the calling thread adds one to *counter, which outlives the watching; NULL ends it. */
void malloc_count_watch(_Atomic uint64_t *counter);
