/* stop.h - stop strings in a stream of text.
 *
 * The match that ends first counts; of several that end at the same place the one that starts first
 * (the longest). Text that may be the start of a match is held until decided. Byte-wise
 * Aho-Corasick: O(bytes) whatever the strings are. A set is immutable and shared; a state belongs
 * to one choice. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"
#include "base/status.h"

struct stop_set; /* opaque */

enum { STOP_STRINGS_MAX = 128, STOP_STRING_BYTES_MAX = 1024 };

/* Compiles 1..128 strings of 1..1024 bytes. Errors: STATUS_INVALID, STATUS_NOMEM. */
enum status stop_set_create(const struct slice *strings, uint32_t count, struct stop_set **out);
void stop_set_destroy(struct stop_set *set); /* takes NULL */
struct slice stop_set_string(const struct stop_set *set,
                             uint32_t index); /* borrowed from the set */

struct stop_state {
    const struct stop_set *set; /* NULL: nothing ever matches and nothing is held */
    uint32_t node;              /* where the automaton stands */
    struct buf held;            /* text not yet released: what may be the start of a match */
};
void stop_state_init(struct stop_state *state, const struct stop_set *set);
void stop_state_fini(struct stop_state *state);

/* Feeds text; appends to `out` what is certain to lie before any match. Returns the index of the
 * string that matched, or -1. After a match `out` ends right before it (right after it with
 * `include`), the rest of the text is dropped and the state is finished. `armed` false: matches
 * that end in this text do not count (min_tokens); what may begin a later one is held all the
 * same. */
int stop_push(struct stop_state *state, struct slice text, bool armed, bool include,
              struct buf *out);
/* Generation ended otherwise: releases what is held. */
void stop_flush(struct stop_state *state, struct buf *out);
