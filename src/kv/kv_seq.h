/* kv_seq.h - the block tables of one sequence, one per KV group.
 *
 * Token t of a sequence lies in block t / block_tokens of each group's table. Life:
 *     empty --kv_seq_promise(tokens)--> --kv_seq_grow(tokens)*--> --kv_seq_drop--> empty
 * kv_seq_promise sets aside what the sequence may need in all; kv_seq_grow takes ids as tokens come, and cannot fail within
 * the promise. Its first blocks may be others' too: kv_prefix_adopt() puts them there, before the promise. They are full, and what is
 * full is never written again, so no copy is ever needed.
 * Of a group with a window a sequence holds what a later position can still see: kv_seq_pass() gives up the blocks in front of it,
 * and their places in the table, KV_BLOCK_NONE from then on, are read by nobody. What it gives up while it has more to come is promised to it
 * again at once, if the pool has it (always, where nobody else holds the block).
 * Invariant: blocks held + promised = blocks of the promised tokens, in a group without a window; at most that, and at most held_max,
 * in one with a window.
 * Thread: engine thread only. Memory: the tables are lent by the caller; nothing is allocated here. */
#pragma once

#include <stdint.h>

#include "kv/kv_pool.h"
#include "kv/kv_prefix.h"

enum { KV_GROUPS_MAX = 4 };
enum { KV_BLOCK_NONE = UINT32_MAX };

struct kv_group {
    uint32_t block_tokens;
    uint32_t capacity; /* blocks of its pool */
    uint32_t window;   /* tokens that a position sees, itself included; 0: all before it */
    uint32_t held_max; /* where there is a window: blocks that a sequence holds at once at most */
};

/* The pools of all groups. */
struct kv_space {
    uint32_t group_count; /* with bytes on the device: groups[0..group_count-1] */
    uint32_t table_count; /* tables of a sequence: one more, where no group keeps all tokens */
    uint32_t names;       /* the group that keeps all tokens: its blocks name prefixes */
    struct kv_group groups[KV_GROUPS_MAX];
    struct kv_pool *pools[KV_GROUPS_MAX];
    struct kv_prefix *prefix; /* NULL: nothing is shared */
};

/* share_names: 0: prefixes are not shared. Else the blocks of the group of names that is added where every group has a window; it has no
 * bytes, but a prefix whose beginning has left the window needs names all the same.
 * Errors: STATUS_INVALID, STATUS_NOMEM; then nothing is held. */
enum status kv_space_init(struct kv_space *space, uint32_t group_count,
                          const struct kv_group groups[], uint32_t share_names);
void kv_space_fini(struct kv_space *space); /* aborts on a leak; takes a zeroed one too */
void kv_space_check(const struct kv_space *space);
uint32_t kv_space_blocks(const struct kv_space *space, uint32_t group, uint32_t tokens);
/* The first block of a table that a position sees. */
uint32_t kv_space_first(const struct kv_space *space, uint32_t group, uint32_t position);
/* Whether some group has a window. */
bool kv_space_has_window(const struct kv_space *space);
/* Whether a sequence of so many tokens could run if it were alone. */
int kv_space_fits(const struct kv_space *space, uint32_t tokens);

struct kv_table {
    uint32_t *blocks; /* [capacity], lent */
    uint32_t capacity;
    uint32_t first;    /* blocks held: blocks[first..count-1]; KV_BLOCK_NONE before them */
    uint32_t count;    /* end of them */
    uint32_t sent;     /* of them, known to the device: a step carried them (sched/) */
    uint32_t promised; /* further blocks set aside in the pool */
    uint32_t target;   /* count that has been asked for */
};
struct kv_seq {
    struct kv_table tables[KV_GROUPS_MAX];
};

/* Sets blocks aside for `tokens` in all, those it has included, in every group. The sequence may have adopted blocks, no more.
 * Errors: STATUS_EXHAUSTED: everything was given back, what it had adopted too. */
enum status kv_seq_promise(struct kv_seq *seq, struct kv_space *space, uint32_t tokens);
/* Takes blocks until `tokens` have a place in every group. Within the promise it cannot fail. */
void kv_seq_grow(struct kv_seq *seq, struct kv_space *space, uint32_t tokens);
/* The same in one group. */
void kv_seq_grow_group(struct kv_seq *seq, struct kv_space *space, uint32_t group, uint32_t tokens);
/* kv_seq_grow beyond the promise, where the pools have blocks that are not promised. Errors: STATUS_EXHAUSTED: nothing was taken. */
enum status kv_seq_extend(struct kv_seq *seq, struct kv_space *space, uint32_t tokens);
/* No position before `position` will be computed any more: gives up the blocks that none of the rest sees. Steps in flight may still read
 * them: who gets them writes in a later step, and steps run in order. */
void kv_seq_pass(struct kv_seq *seq, struct kv_space *space, uint32_t position);
/* Gives everything back, promise included; idempotent. The steps that use the blocks must be done. */
void kv_seq_drop(struct kv_seq *seq, struct kv_space *space);
/* Blocks held, in all groups that have bytes. */
uint32_t kv_seq_block_count(const struct kv_seq *seq, const struct kv_space *space);
