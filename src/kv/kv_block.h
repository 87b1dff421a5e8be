/* kv_block.h - what is known of one block: a cache line, shared by kv_pool.c and kv_prefix.c. Not for other folders.
 *
 * The first part is the pool's. The rest is the prefix index's, in the blocks of the group of names, which name its entries; the tokens of an entry
 * stand beside it (kv_prefix.c), and are looked at only where the hash of its key is right. In the blocks of a group with a window only the links,
 * `list`, `entry` and `serial` mean something: the entry whose block it is. A link is of the free list while refs is 0, else of the list that
 * `list` names; the two cannot be at once. */
#pragma once

#include <assert.h>
#include <stdint.h>

#include "kv/kv_seq.h"

enum kv_block_list {
    LIST_NONE,   /* in use by a sequence, or no entry's */
    LIST_IDLE,   /* an entry's that nobody uses: it may be evicted, and counts as available */
    LIST_PINNED, /* nobody does, but it is pinned: neither */
    LISTS,
};

struct kv_block {
    uint32_t refs;
    uint32_t next; /* UINT32_MAX at the end of a list */
    /* --- of an entry of the prefix index --- */
    uint32_t prev;
    uint32_t owner; /* who computes it, until it ends; 0: nobody */
    union {
        uint64_t name;  /* of the text up to its end (kv_prefix.c) */
        uint32_t entry; /* of a block in a group with a window: whose it is */
    };
    uint32_t others[KV_GROUPS_MAX - 1]; /* its blocks in the other groups; KV_BLOCK_NONE: gone */
    uint32_t pinned_s : 28;             /* end of its pin; 0: none */
    uint32_t list : 2;                  /* enum kv_block_list */
    uint32_t chain_start : 1;
    uint32_t keeps_window : 1; /* the pin is for its blocks in groups with a window too */
    uint64_t serial;           /* 0: no entry here */
    uint64_t chain_serial;     /* of the entry before it, or the salt */
    uint64_t seq_no;           /* step that completes it; 0: not planned yet */
};
static_assert(sizeof(struct kv_block) == 64, "one cache line");

struct kv_pool;
/* [capacity], of the pool for ever. */
struct kv_block *kv_pool_blocks(struct kv_pool *pool);
