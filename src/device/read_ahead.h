/* read_ahead.h - brings the pages of mapped weights in before whoever packs them comes to them.
 *
 * Loading reads a mapping in a known order. Left to page faults, a disk sees one small request at a time and memory is filled
 * 64 KiB a fault; here threads of our own go through the same ranges in pieces of some MiB, each asked for whole
 * (MADV_WILLNEED) and then waited for (MADV_POPULATE_READ), several at once, at most `ahead` bytes before the reader.
 *     list the ranges in order -> start -> read_ahead_reached(bytes read) now and then -> end
 * Thread: one; `threads` of its own. Memory: the list. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct read_ahead; /* opaque */

/* Errors: STATUS_NOMEM. */
enum status read_ahead_create(struct read_ahead **out, struct error *err);
/* Appends a range that lies in a readable mapping; neighbours are joined. Errors: STATUS_NOMEM. */
enum status read_ahead_add(struct read_ahead *ra, const void *at, uint64_t bytes,
                           struct error *err);
/* No thread that cannot be started is missed: loading works without any. */
void read_ahead_start(struct read_ahead *ra, uint32_t threads, uint64_t ahead);
/* So many bytes of the list, from its start, have been read. */
void read_ahead_reached(struct read_ahead *ra, uint64_t bytes);
/* Of the list, brought in so far. */
uint64_t read_ahead_done(const struct read_ahead *ra);
void read_ahead_end(struct read_ahead *ra); /* stops the threads, frees; takes NULL */
