/* kv_seq.h - the block tables of one sequence, one per KV group.
 *
 * Token t of a sequence lies in block t / block_tokens of each group's table. Life:
 *     empty --kv_seq_promise(tokens)--> --kv_seq_grow(tokens)*--> --kv_seq_drop--> empty
 * kv_seq_promise sets aside what the sequence may need in all; kv_seq_grow takes ids as tokens come, and cannot fail within
 * the promise. Its first blocks may be others' too: kv_prefix_adopt() puts them there, before the promise. They are full, and what is
 * full is never written again, so no copy is ever needed.
 * Invariant: blocks held + promised = blocks of the promised tokens, per group.
 * Thread: engine thread only. Memory: the tables are lent by the caller; nothing is allocated here. */
#pragma once

#include <stdint.h>

#include "kv/kv_pool.h"
#include "kv/kv_prefix.h"

enum { KV_GROUPS_MAX = 4 };

/* The pools of all groups. */
struct kv_space {
    uint32_t group_count;
    uint32_t block_tokens[KV_GROUPS_MAX];
    struct kv_pool *pools[KV_GROUPS_MAX];
    struct kv_prefix *prefix; /* NULL: nothing is shared */
};

/* Errors: STATUS_INVALID, STATUS_NOMEM; then nothing is held. */
enum status kv_space_init(struct kv_space *space, uint32_t group_count,
                          const uint32_t block_tokens[], const uint32_t capacity[],
                          bool share_prefixes);
void kv_space_fini(struct kv_space *space); /* aborts on a leak; takes a zeroed one too */
void kv_space_check(const struct kv_space *space);
uint32_t kv_space_blocks(const struct kv_space *space, uint32_t group, uint32_t tokens);
/* Whether a sequence of so many tokens could run if it were alone. */
int kv_space_fits(const struct kv_space *space, uint32_t tokens);

struct kv_table {
    uint32_t *blocks; /* [capacity], lent */
    uint32_t capacity;
    uint32_t count;    /* blocks held: blocks[0..count-1] */
    uint32_t sent;     /* of them, known to the device: a step carried them (sched/) */
    uint32_t promised; /* further blocks set aside in the pool */
};
struct kv_seq {
    struct kv_table tables[KV_GROUPS_MAX];
};

/* Sets blocks aside for `tokens` in all, those it has included, in every group. The sequence may have adopted blocks, no more.
 * Errors: STATUS_EXHAUSTED: everything was given back, what it had adopted too. */
enum status kv_seq_promise(struct kv_seq *seq, struct kv_space *space, uint32_t tokens);
/* Takes blocks until `tokens` have a place in every group. Within the promise it cannot fail. */
void kv_seq_grow(struct kv_seq *seq, struct kv_space *space, uint32_t tokens);
/* The same beyond the promise, where the pools have blocks that are not promised. Errors: STATUS_EXHAUSTED: nothing was taken. */
enum status kv_seq_extend(struct kv_seq *seq, struct kv_space *space, uint32_t tokens);
/* Gives everything back, promise included; idempotent. The steps that use the blocks must be done. */
void kv_seq_drop(struct kv_seq *seq, struct kv_space *space);
/* Blocks held in all groups. */
uint32_t kv_seq_block_count(const struct kv_seq *seq, const struct kv_space *space);
