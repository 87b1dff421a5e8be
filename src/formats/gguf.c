/* gguf.c - reads a GGUF directory. Every length is compared with what is left of the file before it is
 * used, and nothing is allocated in proportion to a number that the file only claims. */
#include "formats/gguf.h"

#include <assert.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/utf8.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they are");

enum {
    KEY_BYTES_MAX = 65535, /* of the specification */
    NAME_BYTES_MAX = 64,   /* likewise, for tensors */
    KEY_COUNT_MAX = 65536,
    KV_BYTES_MIN = 8 + 1 + 4 + 1, /* the shortest key and value */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 20
};

struct cursor {
    const unsigned char *start, *at, *end;
    const char *file;
    struct error *err;
};

/* A sentence with its place; its value is `status`, for the compiler to see that it is not STATUS_OK. */
#define FAIL(c, status, where, format, ...)                                            \
    (error_set((c)->err, status, "%s: offset %llu: " format, (c)->file,                \
               (unsigned long long)((where) - (c)->start) __VA_OPT__(, ) __VA_ARGS__), \
     (status))

static uint64_t left(const struct cursor *c)
{
    return (uint64_t)(c->end - c->at);
}

/* `what` ends too early. */
static enum status truncated(struct cursor *c, const unsigned char *where, const char *what)
{
    return FAIL(c, STATUS_INCOMPLETE, where, "%s is truncated: the file ends after %llu bytes",
                what, (unsigned long long)(c->end - c->start));
}

static enum status take_u32(struct cursor *c, const char *what, uint32_t *out)
{
    if (left(c) < sizeof *out) return truncated(c, c->at, what);
    memcpy(out, c->at, sizeof *out);
    c->at += sizeof *out;
    return STATUS_OK;
}

static enum status take_u64(struct cursor *c, const char *what, uint64_t *out)
{
    if (left(c) < sizeof *out) return truncated(c, c->at, what);
    memcpy(out, c->at, sizeof *out);
    c->at += sizeof *out;
    return STATUS_OK;
}

/* A string whose length is at most `limit`. */
static enum status take_string(struct cursor *c, const char *what, uint64_t limit,
                               struct slice *out)
{
    const unsigned char *where = c->at;
    uint64_t len;
    enum status st = take_u64(c, what, &len);

    if (st) return st;
    if (len > left(c))
        return FAIL(c, STATUS_INCOMPLETE, where, "%s of %llu bytes is longer than the file's rest",
                    what, (unsigned long long)len);
    if (len > limit)
        return FAIL(c, STATUS_LIMIT, where, "%s of %llu bytes; at most %llu are right", what,
                    (unsigned long long)len, (unsigned long long)limit);
    *out = slice_of(c->at, len);
    c->at += len;
    return STATUS_OK;
}

/* A name that people and C strings can hold: not empty, UTF-8, no NUL. */
static enum status check_name(struct cursor *c, const unsigned char *where, const char *what,
                              struct slice name)
{
    if (name.len && utf8_valid(name) && !memchr(name.ptr, '\0', name.len)) return STATUS_OK;
    return FAIL(c, STATUS_CORRUPT, where, "%s is empty or not UTF-8 text without NUL", what);
}

/* --- header --- */

struct counts {
    uint64_t tensors, keys;
};

static enum status check_version(struct cursor *c, uint32_t version)
{
    const unsigned char *where = c->start + 4;

    if (version == 2 || version == 3) return STATUS_OK;
    if (version && (version & 0xffff) == 0)
        return FAIL(c, STATUS_UNSUPPORTED, where,
                    "version: the file is big-endian; convert it to little-endian");
    if (version == 1)
        return FAIL(c, STATUS_UNSUPPORTED, where,
                    "version 1 is no longer read; convert the file to version 3");
    return FAIL(c, STATUS_UNSUPPORTED, where, "version is %u; 2 and 3 are known",
                (unsigned)version);
}

static enum status read_header(struct cursor *c, uint32_t *version, struct counts *counts)
{
    const unsigned char *where;
    enum status st;

    if (c->start == c->end) return FAIL(c, STATUS_INCOMPLETE, c->at, "magic: the file is empty");
    if (memcmp(c->start, "GGUF", left(c) < 4 ? left(c) : 4) != 0)
        return FAIL(c, STATUS_CORRUPT, c->at, "magic: the file does not begin with \"GGUF\"");
    if (left(c) < 4) return truncated(c, c->at, "magic");
    c->at += 4;
    st = take_u32(c, "header: version", version);
    if (!st) st = check_version(c, *version);
    where = c->at;
    if (!st) st = take_u64(c, "header: tensor_count", &counts->tensors);
    if (!st) st = take_u64(c, "header: kv_count", &counts->keys);
    if (st) return st;
    if (counts->tensors > left(c) / TENSOR_BYTES_MIN)
        return FAIL(c, STATUS_CORRUPT, where,
                    "tensor_count is %llu, more than the file can describe",
                    (unsigned long long)counts->tensors);
    if (counts->tensors > TENSOR_COUNT_MAX)
        return FAIL(c, STATUS_LIMIT, where, "tensor_count is %llu; at most %d are taken",
                    (unsigned long long)counts->tensors, TENSOR_COUNT_MAX);
    if (counts->keys > left(c) / KV_BYTES_MIN)
        return FAIL(c, STATUS_CORRUPT, where + 8,
                    "kv_count is %llu, more metadata than the file can hold",
                    (unsigned long long)counts->keys);
    if (counts->keys > KEY_COUNT_MAX)
        return FAIL(c, STATUS_LIMIT, where + 8, "kv_count is %llu; at most %d are taken",
                    (unsigned long long)counts->keys, KEY_COUNT_MAX);
    return STATUS_OK;
}

/* --- metadata --- */

unsigned gguf_type_bytes(enum gguf_type type)
{
    static const uint8_t bytes[GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

    return bytes[type];
}

/* Walks the strings of an array, whose count is already known to fit, and notes where each begins. */
static enum status index_strings(struct cursor *c, const char *what, struct gguf_value *value)
{
    enum status st = STATUS_OK;

    value->index = malloc((value->count + 1) * sizeof *value->index);
    if (!value->index) return FAIL(c, STATUS_NOMEM, c->at, "no memory for the index of %s", what);
    for (uint64_t i = 0; !st && i < value->count; i++) {
        uint64_t len, at = (uint64_t)(c->at - value->data);
        if (left(c) < 8) return truncated(c, c->at, what);
        memcpy(&len, c->at, 8);
        if (len > left(c) - 8)
            return FAIL(c, STATUS_INCOMPLETE, c->at,
                        "%s: string %llu has %llu bytes, more than the file's rest", what,
                        (unsigned long long)i, (unsigned long long)len);
        if (at > UINT32_MAX)
            return FAIL(c, STATUS_LIMIT, c->at, "%s: more than 4 GiB of strings", what);
        value->index[i] = (uint32_t)at;
        c->at += 8 + len;
    }
    return st;
}

static enum status take_elements(struct cursor *c, const char *what, struct gguf_value *value)
{
    unsigned width = gguf_type_bytes(value->type), least = width ? width : 8;
    const unsigned char *where = c->at;
    struct slice text;

    value->data = c->at;
    if (value->count > left(c) / least) {
        if (!value->is_array) return truncated(c, where, what);
        return FAIL(c, STATUS_INCOMPLETE, where - 8, /* where the count stands */
                    "%s: an array of %llu elements is longer than the file's rest", what,
                    (unsigned long long)value->count);
    }
    if (value->type == GGUF_STRING && !value->is_array)
        return take_string(c, what, UINT64_MAX, &text);
    if (value->type == GGUF_STRING) return index_strings(c, what, value);
    c->at += value->count * width;
    return STATUS_OK;
}

static enum status take_type(struct cursor *c, const char *what, uint32_t *type)
{
    const unsigned char *where = c->at;
    enum status st = take_u32(c, what, type);

    if (!st && *type >= GGUF_TYPE_COUNT)
        return FAIL(c, STATUS_CORRUPT, where, "%s: value type %u is not known (0 to %d are)", what,
                    (unsigned)*type, GGUF_TYPE_COUNT - 1);
    return st;
}

static enum status take_value(struct cursor *c, const char *what, struct gguf_value *value)
{
    const unsigned char *where = c->at;
    uint32_t type;
    enum status st = take_type(c, what, &type);

    value->count = 1;
    value->is_array = !st && type == GGUF_ARRAY;
    if (value->is_array) {
        st = take_type(c, what, &type);
        if (!st) st = take_u64(c, what, &value->count);
        if (!st && type == GGUF_ARRAY)
            return FAIL(c, STATUS_UNSUPPORTED, where, "%s: arrays of arrays are not read", what);
    }
    if (st) return st;
    value->type = (enum gguf_type)type;
    return take_elements(c, what, value);
}

static enum status room_for_value(struct gguf *gguf, struct cursor *c)
{
    uint32_t capacity = gguf->capacity ? gguf->capacity * 2 : 64;
    struct gguf_value *values;

    if (gguf->keys.count < gguf->capacity) return STATUS_OK;
    values = realloc(gguf->values, capacity * sizeof *values);
    if (!values) return FAIL(c, STATUS_NOMEM, c->at, "no memory for the metadata");
    gguf->values = values;
    gguf->capacity = capacity;
    return STATUS_OK;
}

static enum status read_pair(struct cursor *c, struct gguf *gguf)
{
    const unsigned char *where = c->at;
    struct gguf_value value = {.key_offset = (uint64_t)(where - c->start)};
    struct slice key;
    uint32_t number;
    char quoted[160], what[176];
    enum status st = take_string(c, "key", KEY_BYTES_MAX, &key);

    if (!st) st = check_name(c, where, "key", key);
    if (!st) st = room_for_value(gguf, c);
    if (st) return st;
    snprintf(what, sizeof what, "key %s", log_quote(key, quoted, sizeof quoted));
    st = name_table_add(&gguf->keys, key, &number);
    if (st == STATUS_INVALID)
        return FAIL(c, STATUS_CORRUPT, where, "%s is there a second time (first at offset %llu)",
                    what, (unsigned long long)gguf->values[number].key_offset);
    if (st) return FAIL(c, st, where, "no memory for the metadata");
    gguf->values[number] = value; /* known to gguf_fini from here on */
    return take_value(c, what, &gguf->values[number]);
}

static enum status read_alignment(struct cursor *c, struct gguf *gguf)
{
    const struct gguf_value *value = gguf_find(gguf, SLICE("general.alignment"));
    uint64_t alignment = ALIGNMENT_DEFAULT;

    if (value && (value->is_array || gguf_u64(value, 0, &alignment) || alignment == 0 ||
                  alignment > ALIGNMENT_MAX || (alignment & (alignment - 1))))
        return FAIL(c, STATUS_CORRUPT, c->start + value->key_offset,
                    "general.alignment must be a power of two from 1 to %d", ALIGNMENT_MAX);
    gguf->alignment = alignment;
    return STATUS_OK;
}

/* --- tensors --- */

struct tensor_info {
    struct slice name;
    const unsigned char *where; /* its entry */
    struct weight_view view;
    uint64_t offset; /* of the data, from the start of the data section */
};

static enum status take_dims(struct cursor *c, const char *what, struct weight_view *view)
{
    const unsigned char *where = c->at;
    enum status st = take_u32(c, what, &view->dim_count);

    if (!st && (view->dim_count < 1 || view->dim_count > WEIGHTS_DIMS_MAX))
        return FAIL(c, STATUS_CORRUPT, where, "%s has %u dimensions; 1 to %d are right", what,
                    (unsigned)view->dim_count, WEIGHTS_DIMS_MAX);
    for (uint32_t i = view->dim_count; !st && i > 0; i--) { /* innermost first in the file */
        st = take_u64(c, what, &view->dims[i - 1]);
        if (!st && view->dims[i - 1] == 0)
            return FAIL(c, STATUS_CORRUPT, where, "%s has a dimension of 0", what);
    }
    return st;
}

static enum status take_info(struct cursor *c, struct tensor_info *info)
{
    char quoted[160], what[176];
    const char *why;
    uint32_t type;
    enum status st;

    *info = (struct tensor_info){.where = c->at};
    st = take_string(c, "tensor name", NAME_BYTES_MAX, &info->name);
    if (!st) st = check_name(c, info->where, "tensor name", info->name);
    if (st) return st;
    snprintf(what, sizeof what, "tensor %s", log_quote(info->name, quoted, sizeof quoted));
    st = take_dims(c, what, &info->view);
    if (!st) st = take_u32(c, what, &type);
    if (!st) st = take_u64(c, what, &info->offset);
    if (st) return st;
    if (dtype_from_ggml(type, &info->view.dtype))
        return FAIL(c, STATUS_UNSUPPORTED, info->where,
                    "%s is of ggml type %u, which this build does not read", what, (unsigned)type);
    if (tensor_size(&info->view, &why))
        return FAIL(c, STATUS_CORRUPT, info->where, "%s: %s", what, why);
    return STATUS_OK;
}

static enum status add_tensor(struct cursor *c, uint64_t data_start, uint64_t alignment,
                              const struct tensor_info *info, struct tensor_list *tensors)
{
    uint64_t size = (uint64_t)(c->end - c->start), room = size > data_start ? size - data_start : 0;
    struct tensor_place place = {c->file, (uint64_t)(info->where - c->start)};
    struct weight_view view = info->view;
    char quoted[160];

    log_quote(info->name, quoted, sizeof quoted);
    if (info->offset % alignment)
        return FAIL(c, STATUS_CORRUPT, info->where, "tensor %s: offset %llu is no multiple of %llu",
                    quoted, (unsigned long long)info->offset, (unsigned long long)alignment);
    if (info->offset > room || view.bytes > room - info->offset)
        return FAIL(
            c, STATUS_INCOMPLETE, info->where,
            "tensor %s: its %llu bytes from %llu on are not all there; the data section has "
            "%llu (is the file truncated?)",
            quoted, (unsigned long long)view.bytes, (unsigned long long)info->offset,
            (unsigned long long)room);
    view.data = c->start + data_start + info->offset;
    return tensor_list_add(tensors, info->name, &view, place, c->err);
}

static enum status check_overlap(struct cursor *c, const struct tensor_list *tensors,
                                 uint32_t first)
{
    uint32_t pair[2];
    enum status st = tensor_list_find_overlap(tensors, first, pair);

    if (st == STATUS_CORRUPT) return tensor_list_fail_overlap(tensors, pair, c->err);
    return st ? FAIL(c, st, c->at, "no memory to check the tensors") : STATUS_OK;
}

/* Walks the entries twice: where the data starts is known only behind the last of them. */
static enum status read_tensors(struct cursor *c, uint64_t count, uint64_t alignment,
                                struct tensor_list *tensors)
{
    const unsigned char *entries = c->at;
    uint32_t first = tensors->count;
    struct tensor_info info;
    uint64_t data_start;
    enum status st = STATUS_OK;

    for (uint64_t i = 0; !st && i < count; i++)
        st = take_info(c, &info);
    data_start = ((uint64_t)(c->at - c->start) + alignment - 1) & ~(alignment - 1);
    c->at = entries;
    for (uint64_t i = 0; !st && i < count; i++) {
        st = take_info(c, &info);
        if (!st) st = add_tensor(c, data_start, alignment, &info, tensors);
    }
    return st ? st : check_overlap(c, tensors, first);
}

enum status gguf_parse(struct slice bytes, const char *file, struct gguf *out,
                       struct tensor_list *tensors, struct error *err)
{
    const unsigned char *start = (const unsigned char *)(bytes.ptr ? bytes.ptr : "");
    struct cursor c = {start, start, start + bytes.len, file, err};
    struct counts counts = {0};
    enum status st;

    *out = (struct gguf){.file = file};
    st = read_header(&c, &out->version, &counts);
    for (uint64_t i = 0; !st && i < counts.keys; i++)
        st = read_pair(&c, out);
    if (!st) st = read_alignment(&c, out);
    if (!st) st = read_tensors(&c, counts.tensors, out->alignment, tensors);
    return st;
}

void gguf_fini(struct gguf *gguf)
{
    for (uint32_t i = 0; i < gguf->keys.count; i++)
        free(gguf->values[i].index);
    free(gguf->values);
    name_table_fini(&gguf->keys);
    *gguf = (struct gguf){0};
}
