/* gguf_split.c - a model in several GGUF files, as llama.cpp's gguf-split writes them.
 *
 * NAME-00001-of-00003.gguf has the metadata; each part has split.no (from 0), split.count and
 * split.tensors.count, and tensors of its own. Any part's path opens the whole. */
#include <stdio.h>
#include <stdlib.h>

#include "formats/weights_impl.h"

enum { SUFFIX_BYTES = sizeof "-00001-of-00003.gguf" - 1, SPLIT_MAX = 9999 };

struct split {
    uint64_t no, count; /* count 1: not split */
};

static enum status meta_u64(const struct gguf *gguf, struct slice key, uint64_t *out)
{
    const struct gguf_value *value = gguf_find(gguf, key);

    if (!value) return STATUS_NOT_FOUND;
    return value->is_array ? STATUS_INVALID : gguf_u64(value, 0, out);
}

static enum status read_split(const struct gguf *gguf, struct split *out, struct error *err)
{
    enum status no, count;

    *out = (struct split){0, 1};
    count = meta_u64(gguf, SLICE("split.count"), &out->count);
    no = meta_u64(gguf, SLICE("split.no"), &out->no);
    if (count == STATUS_NOT_FOUND) return STATUS_OK;
    if (out->count == 0) out->count = 1; /* gguf-split --merge leaves 0 */
    if (count || (no && no != STATUS_NOT_FOUND) || out->count > SPLIT_MAX || out->no >= out->count)
        return error_set(err, STATUS_CORRUPT,
                         "%s: split.count must be 1 to %d and split.no a smaller number",
                         gguf->file, SPLIT_MAX);
    return STATUS_OK;
}

static enum status open_part(struct weights *w, const char *path, struct gguf *out,
                             struct error *err)
{
    struct weights_file *file;
    enum status st = weights_add_file(w, path, &file, err);

    if (st) return st;
    return gguf_parse(slice_of(file->map.ptr, file->map.len), file->path, out, &w->tensors, err);
}

static void write_suffix(char out[SUFFIX_BYTES + 1], uint64_t no, uint64_t count)
{
    snprintf(out, SUFFIX_BYTES + 1, "-%05u-of-%05u.gguf", (unsigned)no + 1, (unsigned)count);
}

/* Opens part `no` of the set whose files begin with the first prefix_len bytes of w->path, and compares its
 * numbers. */
static enum status open_sibling(struct weights *w, size_t prefix_len, struct split want,
                                struct gguf *out, struct error *err)
{
    char suffix[SUFFIX_BYTES + 1], *path;
    struct split got;
    enum status st;

    write_suffix(suffix, want.no, want.count);
    if (asprintf(&path, "%.*s%s", (int)prefix_len, w->path, suffix) < 0)
        return error_set(err, STATUS_NOMEM, "no memory for %s", w->path);
    st = open_part(w, path, out, err);
    if (!st) st = read_split(out, &got, err);
    if (!st && (got.no != want.no || got.count != want.count))
        st = error_set(err, STATUS_CORRUPT,
                       "%s: split.no is %llu of split.count %llu; its name says %llu of %llu", path,
                       (unsigned long long)got.no, (unsigned long long)got.count,
                       (unsigned long long)want.no, (unsigned long long)want.count);
    free(path);
    return st;
}

static enum status check_total(const struct weights *w, struct error *err)
{
    uint64_t total;
    enum status st = meta_u64(&w->gguf, SLICE("split.tensors.count"), &total);

    if (st == STATUS_NOT_FOUND || (!st && total == w->tensors.count)) return STATUS_OK;
    return error_set(err, STATUS_CORRUPT,
                     "%s: split.tensors.count says %llu tensors, its parts have %u", w->gguf.file,
                     st ? 0ull : (unsigned long long)total, (unsigned)w->tensors.count);
}

/* The first part (metadata) into w->gguf, then the others in order. */
static enum status open_set(struct weights *w, struct split here, struct error *err)
{
    char suffix[SUFFIX_BYTES + 1];
    size_t len = strlen(w->path), prefix_len = len - SUFFIX_BYTES;
    enum status st = STATUS_OK;

    write_suffix(suffix, here.no, here.count);
    if (len < SUFFIX_BYTES || strcmp(w->path + prefix_len, suffix) != 0)
        return error_set(
            err, STATUS_INVALID,
            "%s is part %llu of %llu of a split model; its name must end in %s, and the other "
            "parts stand beside it",
            w->path, (unsigned long long)here.no + 1, (unsigned long long)here.count, suffix);
    if (here.no != 0) {
        weights_reset(w);
        st = open_sibling(w, prefix_len, (struct split){0, here.count}, &w->gguf, err);
    }
    for (uint64_t no = 1; !st && no < here.count; no++) {
        struct gguf part = {0};
        st = open_sibling(w, prefix_len, (struct split){no, here.count}, &part, err);
        gguf_fini(&part);
    }
    return st ? st : check_total(w, err);
}

enum status gguf_split_open(struct weights *w, struct error *err)
{
    struct split here;
    enum status st = open_part(w, w->path, &w->gguf, err);

    if (!st) st = read_split(&w->gguf, &here, err);
    if (!st && here.count > 1) st = open_set(w, here, err);
    return st;
}
