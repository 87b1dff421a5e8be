#include "parallel/shard.h"

#include <assert.h>

enum status shard_split(struct shard shard, uint32_t total, const char *what,
                        struct shard_span *out, struct error *err)
{
    assert(shard.ranks && shard.rank < shard.ranks);
    if (total % shard.ranks)
        return error_set(err, STATUS_INVALID, "%u %s cannot be split over %u ranks evenly", total,
                         what, shard.ranks);
    out->count = total / shard.ranks;
    out->first = shard.rank * out->count;
    return STATUS_OK;
}

enum status shard_kv_heads(struct shard shard, uint32_t kv_heads, struct shard_span *out,
                           struct error *err)
{
    assert(shard.ranks && shard.rank < shard.ranks && kv_heads);
    if (kv_heads >= shard.ranks) return shard_split(shard, kv_heads, "KV heads", out, err);
    if (shard.ranks % kv_heads)
        return error_set(err, STATUS_INVALID, "%u ranks cannot share %u KV heads evenly",
                         shard.ranks, kv_heads);
    out->first = shard.rank / (shard.ranks / kv_heads);
    out->count = 1;
    return STATUS_OK;
}
