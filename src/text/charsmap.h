/* charsmap.h - the table by which SentencePiece normalises text before it looks for pieces ("precompiled_charsmap",
 * the normalizer Precompiled of a tokenizer.json): sequences of characters, each with what stands in its place.
 *
 * The bytes are those of the model: a length, a double-array trie (Darts-clone units), the replacements with a NUL byte
 * behind each. All of it is checked when it is opened: whatever a look-up can reach lies inside.
 * Two programs read the same table in two ways, and both are kept: SentencePiece takes at every place the longest
 * sequence; Hugging Face tokenizers goes by grapheme clusters and takes the shortest, in the place of the whole cluster
 * if that has fewer than 6 bytes, else of one character. Clusters are those of utf8proc's Unicode.
 * Thread: immutable. Source: SentencePiece's normalizer.cc; the crate spm_precompiled. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"

struct charsmap; /* opaque */

/* Copies the table. Errors: STATUS_CORRUPT, STATUS_NOMEM. */
enum status charsmap_open(struct slice bytes, struct charsmap **out, struct error *err);
/* The same from base64. */
enum status charsmap_open_base64(struct slice text, struct charsmap **out, struct error *err);
void charsmap_close(struct charsmap *map); /* takes NULL */

/* A text on its way through the table. cluster_end: NULL at its start. */
struct charsmap_reading {
    const struct charsmap *map;
    const uint8_t *end;         /* of the text, well-formed UTF-8 */
    const uint8_t *cluster_end; /* of the cluster that is being read */
    bool by_clusters;           /* as Hugging Face tokenizers reads it */
};
/* Of what begins at p (the start of the text, or where the last call ended), *len bytes become *with, which lives as
 * long as the table, or with false stay as they are. */
bool charsmap_next(struct charsmap_reading *reading, const uint8_t *p, size_t *len,
                   struct slice *with);
