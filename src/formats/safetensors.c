/* safetensors.c - reads a safetensors header. */
#include "formats/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json_guard.h"
#include "base/log.h"

enum {
    HEADER_BYTES_MAX = 100 * 1000 * 1000, /* the reference's own limit */
    PREFIX_BYTES = 8,                     /* the header's length */
    DEPTH_MAX = 8,     /* 3 are in use; the rest is for fields that this reader does not know */
    MEMORY_FACTOR = 32 /* of the header's size; an entry of 100 bytes takes about 1,300 as a tree */
};

struct file {
    const char *path;
    struct slice bytes, header;
    uint64_t data_start, data_bytes;
    struct error *err;
};

static bool colon_follows(struct slice text, size_t at)
{
    while (at < text.len && (text.ptr[at] == ' ' || text.ptr[at] == '\n' || text.ptr[at] == '\t' ||
                             text.ptr[at] == '\r'))
        at++;
    return at < text.len && text.ptr[at] == ':';
}

/* Where, in the file, a name in quotes with a colon behind it begins. It looks at a few places only: a name
 * made to occur everywhere must not cost the square of the header. */
static uint64_t entry_offset(struct slice header, const char *name)
{
    size_t len = strlen(name), from = 1;

    for (int tries = 0; tries < 64 && from + len < header.len; tries++) {
        const char *found = memmem(header.ptr + from, header.len - from, name, len);
        size_t at;
        if (!found) break;
        at = (size_t)(found - header.ptr);
        if (found[-1] == '"' && at + len < header.len && found[len] == '"' &&
            colon_follows(header, at + len + 1))
            return PREFIX_BYTES + at - 1;
        from = at + 1;
    }
    return PREFIX_BYTES;
}

uint64_t safetensors_entry_offset(struct slice bytes, const char *name)
{
    uint64_t len;

    memcpy(&len, bytes.ptr, sizeof len); /* parsed before, so it is there and fits */
    return entry_offset(slice_of(bytes.ptr + PREFIX_BYTES, len), name);
}

/* A sentence about one tensor, with the place of its entry in front. Returns `status`. */
static enum status __attribute__((format(printf, 4, 5)))
tensor_fault(const struct file *f, const char *name, enum status status, const char *format, ...)
{
    char quoted[160], sentence[300];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return error_set(f->err, status, "%s: offset %llu: tensor %s: %s", f->path,
                     (unsigned long long)entry_offset(f->header, name),
                     log_quote(slice_str(name), quoted, sizeof quoted), sentence);
}

static enum status find_header(struct file *f)
{
    uint64_t len;

    if (f->bytes.len < PREFIX_BYTES)
        return error_set(
            f->err, STATUS_INCOMPLETE,
            "%s: offset 0: the header is truncated: the file has %zu bytes, fewer than the "
            "8 of the header length",
            f->path, f->bytes.len);
    memcpy(&len, f->bytes.ptr, sizeof len);
    if (len > HEADER_BYTES_MAX)
        return error_set(f->err, STATUS_LIMIT,
                         "%s: offset 0: header length is %llu; at most %d are right", f->path,
                         (unsigned long long)len, HEADER_BYTES_MAX);
    if (len > f->bytes.len - PREFIX_BYTES)
        return error_set(f->err, STATUS_INCOMPLETE,
                         "%s: offset 0: header length is %llu, but the file ends after %zu bytes",
                         f->path, (unsigned long long)len, f->bytes.len);
    f->header = slice_of(f->bytes.ptr + PREFIX_BYTES, len);
    f->data_start = PREFIX_BYTES + len;
    f->data_bytes = f->bytes.len - f->data_start;
    if (len && *f->header.ptr == '{') return STATUS_OK;
    return error_set(f->err, STATUS_CORRUPT, "%s: offset 8: the header must begin with '{'",
                     f->path);
}

/* --- one entry --- */

static enum status read_dtype(const struct file *f, const char *name, const json_t *entry,
                              struct weight_view *view)
{
    static const enum dtype taken[] = {DTYPE_F32, DTYPE_F16,     DTYPE_BF16,    DTYPE_I8,
                                       DTYPE_I16, DTYPE_I32,     DTYPE_I64,     DTYPE_U8,
                                       DTYPE_U16, DTYPE_U32,     DTYPE_U64,     DTYPE_BOOL,
                                       DTYPE_F64, DTYPE_F8_E8M0, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    const char *text = json_string_value(json_object_get(entry, "dtype"));
    char quoted[64];

    if (!text) return tensor_fault(f, name, STATUS_CORRUPT, "it has no \"dtype\" string");
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        if (strcmp(dtype_info(taken[i])->name, text) != 0) continue;
        view->dtype = taken[i];
        return STATUS_OK;
    }
    return tensor_fault(f, name, STATUS_UNSUPPORTED,
                        "its dtype %s is not one that this build reads",
                        log_quote(slice_str(text), quoted, sizeof quoted));
}

/* A size in JSON: an integer literal that is not negative. */
static bool to_size(const json_t *value, uint64_t *out)
{
    *out = (uint64_t)json_integer_value(value);
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static enum status read_shape(const struct file *f, const char *name, const json_t *entry,
                              struct weight_view *view)
{
    const json_t *shape = json_object_get(entry, "shape");
    const char *why;

    if (!json_is_array(shape))
        return tensor_fault(f, name, STATUS_CORRUPT, "it has no \"shape\" array");
    if (json_array_size(shape) > WEIGHTS_DIMS_MAX)
        return tensor_fault(f, name, STATUS_UNSUPPORTED,
                            "its shape has %zu dimensions; at most %d are read",
                            json_array_size(shape), WEIGHTS_DIMS_MAX);
    view->dim_count = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < view->dim_count; i++)
        if (!to_size(json_array_get(shape, i), &view->dims[i]))
            return tensor_fault(f, name, STATUS_CORRUPT, "shape must be integers from 0 on");
    if (view->dim_count == 0) view->dims[view->dim_count++] = 1; /* a scalar */
    if (tensor_size(view, &why)) return tensor_fault(f, name, STATUS_CORRUPT, "shape: %s", why);
    return STATUS_OK;
}

static enum status read_range(const struct file *f, const char *name, const json_t *entry,
                              struct weight_view *view)
{
    const json_t *range = json_object_get(entry, "data_offsets");
    uint64_t begin, end;

    if (!json_is_array(range) || json_array_size(range) != 2 ||
        !to_size(json_array_get(range, 0), &begin) || !to_size(json_array_get(range, 1), &end))
        return tensor_fault(f, name, STATUS_CORRUPT, "data_offsets must be two integers from 0 on");
    if (end < begin)
        return tensor_fault(f, name, STATUS_CORRUPT,
                            "data_offsets end (%llu) before they begin (%llu)",
                            (unsigned long long)end, (unsigned long long)begin);
    if (end - begin != view->bytes)
        return tensor_fault(f, name, STATUS_CORRUPT,
                            "shape and dtype make %llu bytes, data_offsets %llu",
                            (unsigned long long)view->bytes, (unsigned long long)(end - begin));
    if (end > f->data_bytes)
        return tensor_fault(
            f, name, STATUS_INCOMPLETE,
            "data_offsets end at %llu, but the data section has %llu bytes (is the file "
            "truncated?)",
            (unsigned long long)end, (unsigned long long)f->data_bytes);
    view->data = f->bytes.ptr + f->data_start + begin;
    return STATUS_OK;
}

static enum status read_entry(const struct file *f, const char *name, const json_t *entry,
                              struct tensor_list *tensors)
{
    struct weight_view view = {0};
    enum status st;

    if (!json_is_object(entry))
        return tensor_fault(f, name, STATUS_CORRUPT, "its entry is no object");
    st = read_dtype(f, name, entry, &view);
    if (!st) st = read_shape(f, name, entry, &view);
    if (!st) st = read_range(f, name, entry, &view);
    if (st) return st;
    return tensor_list_add(tensors, slice_str(name), &view,
                           (struct tensor_place){f->path, PREFIX_BYTES}, f->err);
}

/* --- the whole --- */

/* With no two tensors sharing bytes, the ranges cover the data exactly when their sizes add up to it. */
static enum status check_cover(const struct file *f, const struct tensor_list *tensors,
                               uint32_t first)
{
    const char *data = f->bytes.ptr + f->data_start, *next = data;
    uint32_t *order;
    enum status st = tensor_list_by_data(tensors, first, &order);

    if (st) return error_set(f->err, st, "no memory to check the tensors of %s", f->path);
    for (uint32_t i = 0; i < tensors->count - first; i++) {
        const struct weight_view *view = &tensors->views[order[i]];
        if ((const char *)view->data != next) break;
        next += view->bytes;
    }
    free(order);
    if ((uint64_t)(next - data) == f->data_bytes) return STATUS_OK;
    return error_set(f->err, STATUS_CORRUPT,
                     "%s: offset %llu: bytes that belong to no tensor; ranges must leave none out",
                     f->path, (unsigned long long)(f->data_start + (uint64_t)(next - data)));
}

/* The entries' places are looked up for the pair at fault alone: each costs a search of the header. */
static enum status check_overlap(const struct file *f, struct tensor_list *tensors, uint32_t first)
{
    uint32_t pair[2];
    enum status st = tensor_list_find_overlap(tensors, first, pair);

    if (st && st != STATUS_CORRUPT)
        return error_set(f->err, st, "no memory to check the tensors of %s", f->path);
    if (!st) return st;
    for (int i = 0; i < 2; i++)
        tensors->places[pair[i]].entry_offset =
            entry_offset(f->header, tensors->views[pair[i]].name);
    return tensor_list_fail_overlap(tensors, pair, f->err);
}

static enum status read_entries(const struct file *f, json_t *header, struct tensor_list *tensors)
{
    uint32_t first = tensors->count;
    const char *name;
    json_t *entry;
    enum status st = STATUS_OK;

    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        st = read_entry(f, name, entry, tensors);
        if (st) return st;
    }
    st = check_overlap(f, tensors, first);
    return st ? st : check_cover(f, tensors, first);
}

enum status safetensors_parse(struct slice bytes, const char *file, struct tensor_list *tensors,
                              struct error *err)
{
    struct file f = {.path = file, .bytes = bytes, .err = err};
    struct json_limits limits = {.depth_max = DEPTH_MAX, .unique_names = true};
    json_t *header;
    enum status st = find_header(&f);

    if (st) return st;
    limits.memory_max = (uint64_t)MEMORY_FACTOR * f.header.len + (64 << 10);
    st = json_guard_parse(f.header, &limits, &header, err);
    if (st == STATUS_INVALID || st == STATUS_INCOMPLETE)
        st = STATUS_CORRUPT; /* all of it is there */
    if (st) {
        if (err) err->status = st;
        error_prefix(err, "%s: header (from offset 8 on)", file);
        return st;
    }
    st = read_entries(&f, header, tensors);
    json_decref(header);
    return st;
}
