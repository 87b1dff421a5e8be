/* gguf.h - one GGUF file: its metadata, and its tensors put on a tensor_list.
 *
 *     "GGUF", version u32, tensor_count u64, kv_count u64
 *     kv_count     x { key, type u32, value }                    string: length u64, bytes
 *     tensor_count x { name, n_dims u32, dims u64 [n_dims], type u32, offset u64 }
 *     padding to general.alignment (32), then the data; offsets count from here
 *
 * Everything is little-endian. Values stay in the file: an array of strings gets an index of where each
 * one begins, so that opening costs one walk over the lengths, and reading one is O(1).
 * Thread: one while parsing, any afterwards. Memory: linear in the file's directory.
 * Source: ggml/docs/gguf.md; stricter than llama.cpp where that reads on after nonsense. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "formats/tensor_list.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

struct gguf_value {
    enum gguf_type type; /* of the elements, for an array */
    bool is_array;       /* never of arrays: those are refused */
    uint64_t count;      /* elements; 1 for a scalar */
    const unsigned char
        *data;           /* the first element; borrowed, unaligned; a string's length comes first */
    uint32_t *index;     /* arrays of strings: where each begins, counted from data; owned */
    uint64_t key_offset; /* of the key, in the file */
};

struct gguf {
    const char *file; /* for sentences; borrowed */
    uint32_t version; /* 2 or 3 */
    uint64_t alignment;
    struct name_table keys;
    struct gguf_value *values; /* [keys.count] */
    uint32_t capacity;
};

/* Parses a file's bytes, which are borrowed until gguf_fini, and adds its tensors to `tensors`, which keeps
 * those it got even when this fails. Errors: STATUS_CORRUPT, STATUS_INCOMPLETE, STATUS_UNSUPPORTED,
 * STATUS_LIMIT, STATUS_NOMEM; the sentence names file, offset and field. out is to be ended with gguf_fini
 * whatever happens. */
enum status gguf_parse(struct slice bytes, const char *file, struct gguf *out,
                       struct tensor_list *tensors, struct error *err);
void gguf_fini(struct gguf *gguf); /* takes a zeroed one too */

const struct gguf_value *gguf_find(const struct gguf *gguf, struct slice key); /* or NULL */

/* Element `index` (< count), of whatever scalar type it is. STATUS_INVALID: not of a type that the name
 * says, or the value does not fit; gguf_f64 takes integers and floats. STATUS_CORRUPT: a string that is
 * not UTF-8, a bool other than 0 and 1. */
enum status gguf_u64(const struct gguf_value *value, uint64_t index, uint64_t *out);
enum status gguf_i64(const struct gguf_value *value, uint64_t index, int64_t *out);
enum status gguf_f64(const struct gguf_value *value, uint64_t index, double *out);
enum status gguf_bool(const struct gguf_value *value, uint64_t index, bool *out);
enum status gguf_str(const struct gguf_value *value, uint64_t index, struct slice *out);

/* Bytes of one element, 0 for a string. */
unsigned gguf_type_bytes(enum gguf_type type);

/* Appends the value as short text: 42, "text", [3] 1, 2, 3. */
void gguf_value_text(const struct gguf_value *value, struct buf *out);
