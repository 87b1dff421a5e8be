/* weights.h - a model's files as mapped tensors and metadata.
 *
 * Opens a GGUF file (v2/v3), one of the files of a split GGUF, or a folder in Hugging Face layout
 * (config.json, tokenizer files, *.safetensors with or without an index). Everything is checked here: a
 * tensor that is handed out lies wholly inside its file, has a plausible shape (no product overflows, no
 * dimension is 0 except where the whole tensor is absent), is aligned as its format says (GGUF: 32 unless the
 * file says otherwise; safetensors: not at all), and no two tensors share a name or bytes. The bytes
 * themselves are not read.
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

/* Opens `path`: a .gguf file (any part of a split one opens all of it), a .safetensors file, or a folder.
 * With WEIGHTS_CONFIG_ONLY the weight files of a folder are left alone, so it need not have any (tokenizers
 * alone). In a folder model.safetensors comes before model.safetensors.index.json, as in transformers;
 * without either, the only *.safetensors file is taken.
 * Errors: STATUS_NOT_FOUND, STATUS_IO, STATUS_CORRUPT, STATUS_INCOMPLETE, STATUS_UNSUPPORTED, STATUS_LIMIT,
 * STATUS_NOMEM, STATUS_INVALID (a folder in which it is not clear which files are meant); the sentence names
 * the file, the offset in it where there is one, the field, and what would be right. */
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
/* The same of whole files, metadata included. What is read again comes from the file again. */
void weights_drop_files(const struct weights *w);

/* --- GGUF metadata; on a folder every getter gives STATUS_NOT_FOUND ---
 * Numbers convert between integer widths when the value fits; a wrong type is STATUS_INVALID. Strings are
 * checked UTF-8 (STATUS_CORRUPT) and borrowed until weights_close. O(1) each. */
enum status weights_meta_u64(const struct weights *w, const char *key, uint64_t *out);
enum status weights_meta_f64(const struct weights *w, const char *key, double *out);
enum status weights_meta_bool(const struct weights *w, const char *key, bool *out);
enum status weights_meta_str(const struct weights *w, const char *key, struct slice *out);
/* Number of elements of an array of any type. */
enum status weights_meta_array_len(const struct weights *w, const char *key, uint64_t *out);
/* Elements; an index past the end is STATUS_NOT_FOUND. f64 takes floats, and integers of 32 and 64 bits; it
 * refuses bytes and half words, because scores that claim to be such are a fault. i64 takes integers of every
 * width. */
enum status weights_meta_array_str(const struct weights *w, const char *key, uint64_t index,
                                   struct slice *out);
enum status weights_meta_array_f64(const struct weights *w, const char *key, uint64_t index,
                                   double *out);
enum status weights_meta_array_i64(const struct weights *w, const char *key, uint64_t index,
                                   int64_t *out);
/* Visits every key, for `inferd inspect` and for refusing keys that would change the numbers.
 * value_text: the value as short text (arrays as "[n] first, ..."), borrowed for the call. */
void weights_meta_each(const struct weights *w,
                       void (*fn)(void *ctx, const char *key, const char *value_text), void *ctx);

/* --- sentences about the content ---
 * For those who find a value or a tensor wrong: error_set with "FILE: offset N: key: " or "FILE: offset N:
 * tensor "name": " in front, so that the fault can be found. On a folder, weights_fault_meta names the folder
 * and the key (of config.json). A key or tensor that is not there has no offset. They return `status`. */
enum status weights_fault_meta(const struct weights *w, const char *key, struct error *err,
                               enum status status, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
enum status weights_fault_tensor(const struct weights *w, const char *name, struct error *err,
                                 enum status status, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* --- Hugging Face folder ---
 * A file of the folder as parsed JSON (nesting, number of values and size bounded), borrowed until
 * weights_close: "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
 * "special_tokens_map.json". Errors: STATUS_NOT_FOUND (also on GGUF), STATUS_CORRUPT, STATUS_LIMIT,
 * STATUS_IO, STATUS_NOMEM. Not thread-safe: for loading. The folder of a .safetensors file is the one it
 * lies in. */
enum status weights_json(struct weights *w, const char *file, const json_t **out,
                         struct error *err);
/* The bytes of a text file of the folder ("chat_template.jinja"), checked UTF-8, borrowed likewise with a NUL
 * behind them; at most 1 MiB. Errors: as above. */
enum status weights_text(struct weights *w, const char *file, struct slice *out, struct error *err);
