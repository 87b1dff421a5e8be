/* kv_prefix.h - which blocks hold the state of which beginning of a text, so that it is computed once.
 *
 * A text is a chain of spans (one block of tokens each). An entry stands for a span behind a given chain: its key is (serial of the
 * entry before it, or the salt at the start; the span's tokens), compared in full on a hit, so no hash need be trusted. An entry is
 * named by its block id in the group of names (kv_seq.h) and has one block in every group; in a group with a window it may have lost it. It holds
 * a reference to each of them. What is known of it stands in the block's own 64 bytes (kv_block.h).
 * A sequence may begin behind an entry where every group still has the blocks that the next position sees: in a group with a window
 * those of the last window - 1 tokens (kv_prefix_landing).
 *     none --kv_prefix_put--> PENDING (its owner is to compute it) --kv_prefix_computed(n), step n done--> READY
 *     PENDING --kv_prefix_retract--> none         READY, used by nobody ("idle") --eviction--> none
 * Only READY entries are shared; a second text waits for PENDING ones (sched/admission.c). Idle entries are evicted when a pool has
 * no free block left, least recently used first, the end of a chain before its beginning; they count as available. Where it is the pool of a
 * group with a window, the entry loses its block there and no more: those that sequences have passed go so, while the entry is in use.
 * Off where groups have different block sizes: then nothing is ever found.
 * Invariants (kv_prefix_check): entries = blocks of names that the index holds; idle = those with one reference, in each group; whoever holds an
 * entry's block in some group holds its name.
 * Thread: engine thread only, but for kv_prefix_guess. Memory: all taken by kv_prefix_create. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct kv_space;
struct kv_seq;
struct kv_prefix; /* opaque */

enum { KV_PREFIX_NONE = UINT32_MAX };

enum status kv_prefix_create(struct kv_space *space, struct kv_prefix **out);
/* Evicts all. Nobody may use an entry any more. Takes NULL. */
void kv_prefix_destroy(struct kv_prefix *prefix);

/* Tokens of a span; 0: the index is off. */
uint32_t kv_prefix_span(const struct kv_prefix *prefix);

/* A place in a chain: where the next span is looked up. */
struct kv_chain {
    uint64_t serial; /* of the entry before; the salt at the start */
    uint64_t name;   /* of all the text before, by a secret hash; the salt at the start */
    bool start;
};
struct kv_chain kv_chain_start(uint64_t salt);
/* Behind an entry. */
struct kv_chain kv_prefix_behind(const struct kv_prefix *prefix, uint32_t entry);

/* The entry of the span with these tokens at `chain`, moving chain on; KV_PREFIX_NONE: there is none, chain is left. */
uint32_t kv_prefix_find(const struct kv_prefix *prefix, struct kv_chain *chain,
                        const int32_t *tokens);
/* Whether the entry is READY when the steps up to done_seq_no are done. */
bool kv_prefix_ready(const struct kv_prefix *prefix, uint32_t entry, uint64_t done_seq_no);
/* The owner given to put; 0 once it has let go of it. */
uint32_t kv_prefix_owner(const struct kv_prefix *prefix, uint32_t entry);
/* Tells one occupant of an entry from a later one. */
uint64_t kv_prefix_serial(const struct kv_prefix *prefix, uint32_t entry);

/* A walk along a chain that looks for places where a sequence may begin. */
struct kv_landing {
    uint32_t spans;   /* walked */
    uint32_t runs[4]; /* by group: the last so many of them have their block (a lower bound) */
};
/* `spans` entries in a row from the start, of which the last is a place to begin. */
struct kv_landing kv_landing_at(uint32_t spans);
/* The walk goes on over `entry`: whether a sequence may begin behind it. */
bool kv_prefix_landing(const struct kv_prefix *prefix, struct kv_landing *walk, uint32_t entry);
/* While it stays the same, places to begin stay so. */
uint64_t kv_prefix_losses(const struct kv_prefix *prefix);

/* Any thread: behind how many of the first `count` spans a text could begin, READY or PENDING. A guess: entries come and go
 * meanwhile, and hashes are all that is compared (one in 2^32 is wrong). */
uint32_t kv_prefix_guess(const struct kv_prefix *prefix, uint64_t salt, const int32_t *tokens,
                         uint32_t count);

/* Behind the first spans of seq that are entries, of its first `count`. *known: how many they are. */
struct kv_chain kv_prefix_chain_of(const struct kv_prefix *prefix, const struct kv_seq *seq,
                                   uint32_t count, uint64_t salt, uint32_t *known);

/* Makes seq's span at place `index` an entry behind `chain`, which moves on, with the blocks that seq holds there. PENDING where owner is not 0,
 * else READY. false: the key is there already (of another block). */
bool kv_prefix_put(struct kv_prefix *prefix, struct kv_chain *chain, const int32_t *tokens,
                   const struct kv_seq *seq, uint32_t index, uint32_t owner);
/* The entry gets the blocks that it lacks in groups with a window, of those that seq holds at `index` and no entry has. They must hold
 * what the entry stands for, or be PENDING with it. A sequence that does not hold the entry's name must be dropped next. */
void kv_prefix_complete(struct kv_prefix *prefix, uint32_t entry, const struct kv_seq *seq,
                        uint32_t index);
/* Step seq_no computes the rest of the entry. false: the owner is another, and nothing happens. */
bool kv_prefix_computed(struct kv_prefix *prefix, uint32_t entry, uint32_t owner, uint64_t seq_no);
/* The owner ends: what of its first `count` spans is not READY is an entry no longer; the rest has no owner. */
void kv_prefix_retract(struct kv_prefix *prefix, const struct kv_seq *seq, uint32_t count,
                       uint32_t owner, uint64_t done_seq_no);

/* A sequence that begins `left` spans behind it takes a READY entry as the next blocks of its tables, with a reference to each; in a group
 * with a window those that it will see. */
void kv_prefix_adopt(struct kv_prefix *prefix, uint32_t entry, struct kv_seq *seq, uint32_t left);
/* kv_seq.c: a sequence's reference to a block was dropped: it may be idle now. */
void kv_prefix_dropped(struct kv_prefix *prefix, uint32_t group, uint32_t block);

/* Pins: an entry that is in use, or pinned already, is kept for so many seconds from now, or as long as its pin says, whichever is longer. Pinned
 * ones are not evicted and do not count as available; at most a quarter of the blocks. false: not pinned.
 * Where `left` spans of the pinned text follow it, the next position does not see its blocks in some groups with a window: these may go. The others
 * are kept from the time on when nobody uses the entry, if they are there then, and while they are a quarter of their pool at most. */
bool kv_prefix_pin(struct kv_prefix *prefix, uint32_t entry, uint32_t seconds, uint32_t left);
/* Pins end by this clock. O(pinned) once a second. */
void kv_prefix_set_time(struct kv_prefix *prefix, int64_t now_ns);
/* Where nothing else can go on: up to `most` idle entries lose their pins, the longest unused first. Whether there was one. */
bool kv_prefix_unpin_idle(struct kv_prefix *prefix, uint32_t most);

struct kv_prefix_counts {
    uint32_t entries, idle;       /* idle: may be evicted */
    uint32_t pinned_idle, pinned; /* kept though nobody uses them; all with a pin */
    uint64_t evicted;
};
struct kv_prefix_counts kv_prefix_counts(const struct kv_prefix *prefix);
/* Blocks of a group that the index holds; of them, kept though nobody uses them. */
uint32_t kv_prefix_held(const struct kv_prefix *prefix, uint32_t group);
uint32_t kv_prefix_kept(const struct kv_prefix *prefix, uint32_t group);
void kv_prefix_check(const struct kv_prefix *prefix);
