/* share.h - memory that all clients have in common, and how much of it one of them may hold. Private to frontend/.
 *
 * A holder is an API key, or without keys an address. It may hold as much as it leaves free: half of the limit while it is the only
 * one, a third each where two want much, and who comes last still finds something, whoever came before and gives nothing back.
 * Exact: a chained table under a lock; an entry lives while its holder holds something.
 * Invariant (share_held): the sum of the holders' bytes.   Thread: any.
 * Source: Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet switches (IEEE/ACM ToN 6(2), 1998), alpha 1. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct share_pool; /* opaque */

struct share_pool *share_create(void);       /* NULL: no memory */
void share_destroy(struct share_pool *pool); /* takes NULL */

/* Takes `bytes` of `limit` (the caller's: it may change) for the holder. STATUS_LIMIT: it would hold more than it leaves free;
 * STATUS_FULL: it holds nothing yet, and others have left too little; STATUS_NOMEM. All three are ordinary events: nothing is taken. */
enum status share_take(struct share_pool *pool, uint64_t holder, uint64_t bytes, uint64_t limit);
/* Gives back what was taken; 0 bytes: nothing happens. */
void share_give(struct share_pool *pool, uint64_t holder, uint64_t bytes);
/* What one holds is another's from here on, whatever that one may hold. False: no memory, nothing has changed. */
bool share_move(struct share_pool *pool, uint64_t from, uint64_t to, uint64_t bytes);
uint64_t share_held(struct share_pool *pool); /* by all */
