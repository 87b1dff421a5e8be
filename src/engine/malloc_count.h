/* malloc_count.h - allocations of a thread that has asked to be watched: proof that the step path takes no memory.
 *
 * The C library's malloc, calloc and realloc are passed on unchanged; the only cost elsewhere is reading a thread-local flag. Not in
 * sanitizer builds, which have a malloc of their own: the count stays 0 there. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

void malloc_count_watch(bool on); /* the calling thread */
uint64_t malloc_count(void);      /* allocations of watched threads so far; any thread */
