/* weights.c - the door: opens by kind, answers for all kinds. */
#include "formats/weights.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/log.h"
#include "formats/safetensors.h"
#include "formats/weights_impl.h"

/* --- opening and closing --- */

enum status weights_add_file(struct weights *w, const char *path, struct weights_file **out,
                             struct error *err)
{
    struct weights_file *files = realloc(w->files, (w->file_count + (size_t)1) * sizeof *w->files);
    struct weights_file *file;

    if (!files) return error_set(err, STATUS_NOMEM, "no memory for %s", path);
    w->files = files;
    file = &files[w->file_count];
    *file = (struct weights_file){.path = strdup(path)};
    if (!file->path) return error_set(err, STATUS_NOMEM, "no memory for %s", path);
    w->file_count++;
    *out = file;
    return file_map_open(path, &file->map, err);
}

void weights_reset(struct weights *w)
{
    gguf_fini(&w->gguf);
    tensor_list_fini(&w->tensors);
    for (uint32_t i = 0; i < w->file_count; i++) {
        file_map_close(&w->files[i].map);
        free(w->files[i].path);
    }
    free(w->files);
    w->files = NULL;
    w->file_count = 0;
}

static bool is_safetensors_name(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot && strcmp(dot, ".safetensors") == 0;
}

/* The folder that a path's file lies in; malloc'ed. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash) return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static enum status open_folder(struct weights *w, unsigned flags, struct error *err)
{
    w->kind = flags & WEIGHTS_CONFIG_ONLY ? WEIGHTS_NONE : WEIGHTS_SAFETENSORS;
    w->folder = strdup(w->path);
    if (!w->folder) return error_set(err, STATUS_NOMEM, "no memory for %s", w->path);
    return flags & WEIGHTS_CONFIG_ONLY ? hf_folder_check(w, err) : hf_folder_open(w, err);
}

static enum status open_kind(struct weights *w, unsigned flags, struct error *err)
{
    struct stat st;

    if (stat(w->path, &st) != 0)
        return error_set(err, errno == ENOENT || errno == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO,
                         "cannot open %s: %s", w->path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return open_folder(w, flags, err);
    if (!is_safetensors_name(w->path)) {
        w->kind = WEIGHTS_GGUF;
        return gguf_split_open(w, err);
    }
    w->kind = WEIGHTS_SAFETENSORS;
    w->folder = folder_of(w->path);
    if (!w->folder) return error_set(err, STATUS_NOMEM, "no memory for %s", w->path);
    return hf_folder_add_file(w, w->path, err);
}

enum status weights_open(const char *path, unsigned flags, struct weights **out, struct error *err)
{
    struct weights *w = calloc(1, sizeof *w);
    enum status st = STATUS_NOMEM;

    if (w && (w->path = strdup(path)))
        st = open_kind(w, flags, err);
    else
        error_set(err, st, "no memory for %s", path);
    if (st) {
        weights_close(w);
        return st;
    }
    *out = w;
    return STATUS_OK;
}

void weights_close(struct weights *w)
{
    if (!w) return;
    weights_reset(w);
    hf_folder_drop_docs(w);
    free(w->folder);
    free(w->path);
    free(w);
}

enum weights_kind weights_kind(const struct weights *w)
{
    return w->kind;
}

const char *weights_path(const struct weights *w)
{
    return w->path;
}

/* --- tensors --- */

uint32_t weights_count(const struct weights *w)
{
    return w->tensors.count;
}

const struct weight_view *weights_at(const struct weights *w, uint32_t index)
{
    assert(index < w->tensors.count);
    return &w->tensors.views[index];
}

const struct weight_view *weights_find(const struct weights *w, const char *name)
{
    uint32_t number = name_table_find(&w->tensors.names, slice_str(name));

    return number == NAME_NONE ? NULL : &w->tensors.views[number];
}

uint64_t weights_bytes(const struct weights *w)
{
    return w->tensors.bytes;
}

void weights_drop_pages(const struct weights *w, const struct weight_view *view)
{
    (void)w;
    file_map_drop(view->data, view->bytes);
}

void weights_drop_files(const struct weights *w)
{
    for (uint32_t i = 0; i < w->file_count; i++)
        file_map_drop(w->files[i].map.ptr, w->files[i].map.len);
}

/* --- metadata --- */

/* A scalar or an array's element; `index` counts for arrays only. */
static enum status find_value(const struct weights *w, const char *key, bool array, uint64_t index,
                              const struct gguf_value **out)
{
    *out = gguf_find(&w->gguf, slice_str(key));
    if (!*out) return STATUS_NOT_FOUND;
    if ((*out)->is_array != array) return STATUS_INVALID;
    return index < (*out)->count ? STATUS_OK : STATUS_NOT_FOUND;
}

enum status weights_meta_u64(const struct weights *w, const char *key, uint64_t *out)
{
    const struct gguf_value *value;
    enum status st = find_value(w, key, false, 0, &value);

    return st ? st : gguf_u64(value, 0, out);
}

enum status weights_meta_f64(const struct weights *w, const char *key, double *out)
{
    const struct gguf_value *value;
    enum status st = find_value(w, key, false, 0, &value);

    return st ? st : gguf_f64(value, 0, out);
}

enum status weights_meta_bool(const struct weights *w, const char *key, bool *out)
{
    const struct gguf_value *value;
    enum status st = find_value(w, key, false, 0, &value);

    return st ? st : gguf_bool(value, 0, out);
}

enum status weights_meta_str(const struct weights *w, const char *key, struct slice *out)
{
    const struct gguf_value *value;
    enum status st = find_value(w, key, false, 0, &value);

    return st ? st : gguf_str(value, 0, out);
}

enum status weights_meta_array_len(const struct weights *w, const char *key, uint64_t *out)
{
    const struct gguf_value *value = gguf_find(&w->gguf, slice_str(key));

    if (!value) return STATUS_NOT_FOUND;
    if (!value->is_array) return STATUS_INVALID;
    *out = value->count;
    return STATUS_OK;
}

enum status weights_meta_array_str(const struct weights *w, const char *key, uint64_t index,
                                   struct slice *out)
{
    const struct gguf_value *value;
    enum status st = find_value(w, key, true, index, &value);

    return st ? st : gguf_str(value, index, out);
}

enum status weights_meta_array_f64(const struct weights *w, const char *key, uint64_t index,
                                   double *out)
{
    const struct gguf_value *value;
    enum status st = find_value(w, key, true, index, &value);

    if (!st && gguf_type_bytes(value->type) < 4) return STATUS_INVALID;
    return st ? st : gguf_f64(value, index, out);
}

enum status weights_meta_array_i64(const struct weights *w, const char *key, uint64_t index,
                                   int64_t *out)
{
    const struct gguf_value *value;
    enum status st = find_value(w, key, true, index, &value);

    return st ? st : gguf_i64(value, index, out);
}

void weights_meta_each(const struct weights *w,
                       void (*fn)(void *ctx, const char *key, const char *value_text), void *ctx)
{
    struct buf key, text;

    buf_init(&key, 0);
    buf_init(&text, 0);
    for (uint32_t i = 0; i < w->gguf.keys.count; i++) {
        buf_clear(&key);
        buf_clear(&text);
        buf_append_slice(&key, w->gguf.keys.names[i]);
        gguf_value_text(&w->gguf.values[i], &text);
        fn(ctx, buf_cstr(&key), buf_cstr(&text));
    }
    buf_fini(&key);
    buf_fini(&text);
}

/* --- sentences --- */

/* Writes the sentence, then puts the place in front: the values of both may be as long as they like. */
static enum status fault(struct error *err, enum status status, const char *place,
                         const char *format, va_list args)
{
    char sentence[sizeof err->message];

    vsnprintf(sentence, sizeof sentence, format, args);
    return error_set(err, status, "%s: %s", place, sentence);
}

enum status weights_fault_meta(const struct weights *w, const char *key, struct error *err,
                               enum status status, const char *format, ...)
{
    const struct gguf_value *value = gguf_find(&w->gguf, slice_str(key));
    char place[400];
    va_list args;

    if (value)
        snprintf(place, sizeof place, "%s: offset %llu: %s", w->gguf.file,
                 (unsigned long long)value->key_offset, key);
    else
        snprintf(place, sizeof place, "%s: %s", w->path, key);
    va_start(args, format);
    fault(err, status, place, format, args);
    va_end(args);
    return status;
}

static uint64_t entry_offset(const struct weights *w, uint32_t number)
{
    const struct tensor_place *place = &w->tensors.places[number];

    for (uint32_t i = 0; w->kind == WEIGHTS_SAFETENSORS && i < w->file_count; i++)
        if (w->files[i].path == place->file)
            return safetensors_entry_offset(slice_of(w->files[i].map.ptr, w->files[i].map.len),
                                            w->tensors.views[number].name);
    return place->entry_offset;
}

enum status weights_fault_tensor(const struct weights *w, const char *name, struct error *err,
                                 enum status status, const char *format, ...)
{
    uint32_t number = name_table_find(&w->tensors.names, slice_str(name));
    char place[400], quoted[160];
    va_list args;

    log_quote(slice_str(name), quoted, sizeof quoted);
    if (number == NAME_NONE)
        snprintf(place, sizeof place, "%s: tensor %s", w->path, quoted);
    else
        snprintf(place, sizeof place, "%s: offset %llu: tensor %s", w->tensors.places[number].file,
                 (unsigned long long)entry_offset(w, number), quoted);
    va_start(args, format);
    fault(err, status, place, format, args);
    va_end(args);
    return status;
}
