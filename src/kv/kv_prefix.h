/* kv_prefix.h - which blocks hold the state of which beginning of a text, so that it is computed once.
 *
 * A text is a chain of spans (one block of tokens each). An entry stands for a span behind a given chain: its key is (serial of the
 * entry before it, or the salt at the start; the span's tokens), compared in full on a hit, so no hash need be trusted. An entry is
 * named by its block id in group 0 and has one block in every group. It holds a reference to each of them. What is known of it stands in the
 * block's own 64 bytes (kv_block.h).
 *     none --kv_prefix_put--> PENDING (its owner is to compute it) --kv_prefix_computed(n), step n done--> READY
 *     PENDING --kv_prefix_retract--> none         READY, used by nobody ("idle") --eviction--> none
 * Only READY entries are shared; a second text waits for PENDING ones (sched/admission.c). Idle entries are evicted when a pool has
 * no free block left, least recently used first, the end of a chain before its beginning; they count as available.
 * Off where groups have different block sizes: then nothing is ever found.
 * Invariants (kv_prefix_check): entries = blocks the index holds; idle entries = those whose blocks have one reference.
 * Thread: engine thread only. Memory: all taken by kv_prefix_create. */
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
    bool start;
};
struct kv_chain kv_chain_start(uint64_t salt);
/* Behind an entry of which the serial is known. */
struct kv_chain kv_chain_after(uint64_t serial);

/* The entry of the span with these tokens at `chain`, moving chain on; KV_PREFIX_NONE: there is none, chain is left. */
uint32_t kv_prefix_find(const struct kv_prefix *prefix, struct kv_chain *chain,
                        const int32_t *tokens);
/* Whether the entry is READY when the steps up to done_seq_no are done. */
bool kv_prefix_ready(const struct kv_prefix *prefix, uint32_t entry, uint64_t done_seq_no);
/* The owner given to put; 0 once it has let go of it. */
uint32_t kv_prefix_owner(const struct kv_prefix *prefix, uint32_t entry);
/* Tells one occupant of an entry from a later one. */
uint64_t kv_prefix_serial(const struct kv_prefix *prefix, uint32_t entry);

/* Behind the first spans of seq that are entries, of its first `count`. *known: how many they are. */
struct kv_chain kv_prefix_chain_of(const struct kv_prefix *prefix, const struct kv_seq *seq,
                                   uint32_t count, uint64_t salt, uint32_t *known);

/* Makes seq's span at place `index` an entry behind `chain`, which moves on. PENDING where owner is not 0, else READY. false: the key
 * is there already (of another block). */
bool kv_prefix_put(struct kv_prefix *prefix, struct kv_chain *chain, const int32_t *tokens,
                   const struct kv_seq *seq, uint32_t index, uint32_t owner);
/* Step seq_no computes the rest of the entry. Nothing happens if the owner is another. */
void kv_prefix_computed(struct kv_prefix *prefix, uint32_t entry, uint32_t owner, uint64_t seq_no);
/* The owner ends: what of its first `count` spans is not READY is an entry no longer; the rest has no owner. */
void kv_prefix_retract(struct kv_prefix *prefix, const struct kv_seq *seq, uint32_t count,
                       uint32_t owner, uint64_t done_seq_no);

/* A sequence takes a READY entry as the next blocks of its tables, with a reference to each. */
void kv_prefix_adopt(struct kv_prefix *prefix, uint32_t entry, struct kv_seq *seq);
/* kv_seq.c: a reference to a block of group 0 was dropped: the entry may be idle now. */
void kv_prefix_dropped(struct kv_prefix *prefix, uint32_t block);

/* Pins: an entry that is in use, or pinned already, is kept for so many seconds from now, or as long as its pin says, whichever is longer. Pinned
 * ones are not evicted and do not count as available; at most a quarter of the blocks. false: not pinned. */
bool kv_prefix_pin(struct kv_prefix *prefix, uint32_t entry, uint32_t seconds);
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
void kv_prefix_check(const struct kv_prefix *prefix);
