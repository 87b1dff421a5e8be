/* weights.h - a model's files as mapped tensors and metadata.
 *
 * Opens a GGUF file (v2/v3), one of the files of a split GGUF, or a folder in Hugging Face layout
 * (config.json, tokenizer files, *.safetensors with or without an index). Everything is checked here: a
 * tensor that is handed out lies wholly inside its file, has a plausible shape (no product overflows, no
 * dimension is 0 except where the whole tensor is absent), is aligned as its format says, and no two
 * tensors share a name or bytes. The bytes themselves are not read.
 * Owns: the mappings. Thread: any after weights_open (read-only). Ends: weights_close. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"
#include "formats/quant_blocks.h"

enum weights_kind {
    WEIGHTS_GGUF,
    WEIGHTS_SAFETENSORS,
    WEIGHTS_NONE /* a folder with config and tokenizer only */
};

struct weights; /* opaque */

enum { WEIGHTS_DIMS_MAX = 4 };

struct weight_view {
    const char *name;   /* as in the file; borrowed until weights_close */
    enum dtype dtype;   /* as stored */
    uint32_t dim_count; /* 1..4 */
    uint64_t dims
        [WEIGHTS_DIMS_MAX]; /* outermost first, as in numpy and safetensors (GGUF's are turned round) */
    const void *data;       /* mapped; borrowed until weights_close */
    uint64_t bytes;
};

/* Opens `path`. With WEIGHTS_CONFIG_ONLY a folder needs no weight files (tokenizers alone).
 * Errors: STATUS_NOT_FOUND, STATUS_IO, STATUS_CORRUPT, STATUS_INCOMPLETE, STATUS_UNSUPPORTED, STATUS_LIMIT,
 * STATUS_NOMEM; the sentence names the file and what would be right. */
enum { WEIGHTS_CONFIG_ONLY = 1 };
enum status weights_open(const char *path, unsigned flags, struct weights **out, struct error *err);
void weights_close(struct weights *w); /* takes NULL */

enum weights_kind weights_kind(const struct weights *w);
const char *weights_path(const struct weights *w);

/* Tensors, in the order of their files. find gives NULL for an unknown name. O(1). */
uint32_t weights_count(const struct weights *w);
const struct weight_view *weights_at(const struct weights *w, uint32_t index);
const struct weight_view *weights_find(const struct weights *w, const char *name);
uint64_t weights_bytes(const struct weights *w); /* sum over all tensors */

/* Tells the kernel that these bytes are not needed any more (after packing). */
void weights_drop_pages(const struct weights *w, const struct weight_view *view);

/* --- GGUF metadata; on a folder every getter gives STATUS_NOT_FOUND ---
 * Numbers convert between integer widths when the value fits; a wrong type is STATUS_INVALID. Strings are
 * checked UTF-8 and borrowed until weights_close. */
enum status weights_meta_u64(const struct weights *w, const char *key, uint64_t *out);
enum status weights_meta_f64(const struct weights *w, const char *key, double *out);
enum status weights_meta_bool(const struct weights *w, const char *key, bool *out);
enum status weights_meta_str(const struct weights *w, const char *key, struct slice *out);
/* Number of elements of an array of any type. */
enum status weights_meta_array_len(const struct weights *w, const char *key, uint64_t *out);
enum status weights_meta_array_str(const struct weights *w, const char *key, uint64_t index,
                                   struct slice *out);
enum status weights_meta_array_f64(const struct weights *w, const char *key, uint64_t index,
                                   double *out);
/* Visits every key, for `inferd inspect` and for refusing keys that would change the numbers.
 * value_text: the value as short text (arrays as "[n] first, ..."), borrowed for the call. */
void weights_meta_each(const struct weights *w,
                       void (*fn)(void *ctx, const char *key, const char *value_text), void *ctx);

/* --- Hugging Face folder ---
 * A file of the folder as parsed JSON (nesting, number of values and size bounded), borrowed until
 * weights_close: "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
 * "special_tokens_map.json". Errors: STATUS_NOT_FOUND (also on GGUF), STATUS_CORRUPT, STATUS_LIMIT. Not
 * thread-safe: for loading. */
enum status weights_json(struct weights *w, const char *file, const json_t **out,
                         struct error *err);
/* The bytes of a text file of the folder ("chat_template.jinja"), borrowed likewise; at most 1 MiB. */
enum status weights_text(struct weights *w, const char *file, struct slice *out, struct error *err);
