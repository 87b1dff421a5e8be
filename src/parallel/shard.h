/* shard.h - which part of a model a rank holds: plain arithmetic, no communication.
 *
 * Ranks of a tensor-parallel group split attention by heads and the feed-forward by its width; each holds a run of equal
 * length. KV heads fewer than ranks are repeated: ranks / kv_heads neighbours share one. Thread: any. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct shard {
    uint32_t rank, ranks; /* rank < ranks; one rank: {0, 1} */
};
struct shard_span {
    uint32_t first, count;
};

/* This rank's run of `total` things. Errors: STATUS_INVALID where ranks does not divide it; `what` names them. */
enum status shard_split(struct shard shard, uint32_t total, const char *what,
                        struct shard_span *out, struct error *err);
/* This rank's KV heads: a run, or the one that it shares. Errors: STATUS_INVALID likewise. */
enum status shard_kv_heads(struct shard shard, uint32_t kv_heads, struct shard_span *out,
                           struct error *err);
