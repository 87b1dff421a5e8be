/* hf_folder.c - a model folder in Hugging Face layout: which weight files count, and its JSON and text. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/json_guard.h"
#include "base/log.h"
#include "base/utf8.h"
#include "formats/safetensors.h"
#include "formats/weights_impl.h"

static const char index_name[] = "model.safetensors.index.json";

enum {
    INDEX_BYTES_MAX = 64 << 20,      /* a tensor is about 100 bytes of it */
    TOKENIZER_BYTES_MAX = 256 << 20, /* the largest published tokenizer.json has 35 MB */
    DOC_BYTES_MAX = 16 << 20,
    TEXT_BYTES_MAX = 1 << 20,
    DOC_DEPTH_MAX = 128
};

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), end_len = strlen(end);

    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

/* folder/name, malloc'ed; NULL when out of memory. */
static char *join(const char *folder, const char *name)
{
    char *path;

    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

static enum status no_memory(const struct weights *w, struct error *err)
{
    return error_set(err, STATUS_NOMEM, "no memory for %s", w->path);
}

enum status hf_folder_add_file(struct weights *w, const char *path, struct error *err)
{
    struct weights_file *file;
    enum status st = weights_add_file(w, path, &file, err);

    if (st) return st;
    return safetensors_parse(slice_of(file->map.ptr, file->map.len), file->path, &w->tensors, err);
}

static enum status add_named(struct weights *w, const char *name, struct error *err)
{
    char *path = join(w->folder, name);
    enum status st = path ? hf_folder_add_file(w, path, err) : no_memory(w, err);

    free(path);
    return st;
}

static bool has_file(const struct weights *w, const char *name)
{
    char *path = join(w->folder, name);
    struct stat st;
    bool found = path && stat(path, &st) == 0;

    free(path);
    return found;
}

/* --- the index of shards --- */

static enum status read_json(const char *path, uint64_t bytes_max, bool unique_names, json_t **out,
                             struct error *err)
{
    struct json_limits limits = {.depth_max = DOC_DEPTH_MAX, .unique_names = unique_names};
    char *bytes;
    uint64_t len;
    enum status st = file_read(path, bytes_max, &bytes, &len, err);

    if (st) return st;
    limits.memory_max = 32 * len + (1 << 20); /* 16 MiB of `[],` would take 768 */
    st = json_guard_parse(slice_of(bytes, len), &limits, out, err);
    free(bytes);
    if (!st) return st;
    if (st == STATUS_INVALID || st == STATUS_INCOMPLETE) st = STATUS_CORRUPT;
    if (err) err->status = st;
    error_prefix(err, "%s", path);
    return st;
}

/* A file beside the index: a plain name, no way out of the folder. */
static bool is_shard_name(const json_t *value)
{
    const char *name = json_string_value(value);

    return name && strlen(name) == json_string_length(value) && name[0] != '.' &&
           !strchr(name, '/') && !strstr(name, "..") && ends_with(name, ".safetensors");
}

/* The different files that the index names, borrowed from it. */
static enum status collect_shards(const json_t *map, const char *path, struct name_table *shards,
                                  struct error *err)
{
    const char *tensor;
    json_t *value;
    char quoted[160];

    json_object_foreach((json_t *)map, tensor, value)
    {
        uint32_t number;
        enum status st;
        if (!is_shard_name(value))
            return error_set(err, STATUS_CORRUPT,
                             "%s: tensor %s must be in a file NAME.safetensors of the same folder",
                             path, log_quote(slice_str(tensor), quoted, sizeof quoted));
        st = name_table_add(shards, slice_str(json_string_value(value)), &number);
        if (st == STATUS_NOMEM) return error_set(err, st, "no memory for %s", path);
        if (shards->count > WEIGHTS_FILES_MAX)
            return error_set(err, STATUS_LIMIT, "%s names more than %d files", path,
                             WEIGHTS_FILES_MAX);
    }
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct slice *)a)->ptr, ((const struct slice *)b)->ptr);
}

/* Whether each tensor of the index is in the file that the index says. */
static enum status check_map(const struct weights *w, const json_t *map, const char *path,
                             struct error *err)
{
    size_t folder_len = strlen(w->folder) + 1;
    const char *tensor;
    json_t *value;
    char quoted[160];

    json_object_foreach((json_t *)map, tensor, value)
    {
        uint32_t number = name_table_find(&w->tensors.names, slice_str(tensor));
        const char *shard = json_string_value(value);
        if (number != NAME_NONE && strcmp(w->tensors.places[number].file + folder_len, shard) == 0)
            continue;
        return error_set(err, STATUS_CORRUPT, "%s: tensor %s should be in %s, but is not", path,
                         log_quote(slice_str(tensor), quoted, sizeof quoted), shard);
    }
    return STATUS_OK;
}

static enum status open_shards(struct weights *w, const json_t *map, const char *path,
                               struct error *err)
{
    struct name_table shards = {0};
    enum status st = collect_shards(map, path, &shards, err);

    if (!st && shards.count) qsort(shards.names, shards.count, sizeof *shards.names, compare_names);
    for (uint32_t i = 0; !st && i < shards.count; i++) {
        st = add_named(w, shards.names[i].ptr, err);
        if (st == STATUS_NOT_FOUND) error_prefix(err, "%s names a file that is not there", path);
    }
    if (!st) st = check_map(w, map, path, err);
    name_table_fini(&shards);
    return st;
}

static enum status open_index(struct weights *w, struct error *err)
{
    char *path = join(w->folder, index_name);
    json_t *index = NULL;
    const json_t *map;
    enum status st = path ? read_json(path, INDEX_BYTES_MAX, true, &index, err) : no_memory(w, err);

    map = json_object_get(index, "weight_map");
    if (!st && (!json_is_object(map) || json_object_size(map) == 0))
        st = error_set(err, STATUS_CORRUPT, "%s: \"weight_map\" must be an object with tensors",
                       path);
    if (!st) st = open_shards(w, map, path, err);
    json_decref(index);
    free(path);
    return st;
}

/* --- which files --- */

struct listing {
    char *only;                       /* the name of a .safetensors file, owned */
    char *gguf;                       /* the first name of a .gguf file, owned */
    unsigned tensors, pickles, ggufs; /* how many files of each kind */
};

static void end_listing(struct listing *l)
{
    free(l->only);
    free(l->gguf);
}

static void keep_first(char **first, const char *name)
{
    if (*first && strcmp(*first, name) <= 0) return;
    free(*first);
    *first = strdup(name);
}

static enum status list_folder(const struct weights *w, struct listing *out, struct error *err)
{
    DIR *dir = opendir(w->folder);
    struct dirent *entry;

    if (!dir) return error_set(err, STATUS_IO, "cannot list %s: %s", w->folder, strerror(errno));
    while ((entry = readdir(dir))) {
        if (ends_with(entry->d_name, ".safetensors")) {
            free(out->only);
            out->only = strdup(entry->d_name);
            out->tensors++;
        }
        out->pickles += ends_with(entry->d_name, ".bin") || ends_with(entry->d_name, ".pth");
        if (ends_with(entry->d_name, ".gguf")) {
            keep_first(&out->gguf, entry->d_name);
            out->ggufs++;
        }
    }
    closedir(dir);
    return (out->tensors && !out->only) || (out->ggufs && !out->gguf) ? no_memory(w, err)
                                                                      : STATUS_OK;
}

static enum status name_gguf(const struct weights *w, const struct listing *found,
                             struct error *err)
{
    return error_set(err, STATUS_INVALID,
                     "%s has GGUF files: give the path of the .gguf file itself, as in %s/%s",
                     w->folder, w->folder, found->gguf);
}

static enum status open_only(struct weights *w, struct error *err)
{
    struct listing found = {0};
    enum status st = list_folder(w, &found, err);

    if (!st && found.tensors == 1)
        st = add_named(w, found.only, err);
    else if (!st && found.tensors)
        st = error_set(err, STATUS_INVALID,
                       "%s has %u .safetensors files, but neither model.safetensors nor %s",
                       w->folder, found.tensors, index_name);
    else if (!st && found.ggufs)
        st = name_gguf(w, &found, err);
    else if (!st && found.pickles)
        st = error_set(err, STATUS_UNSUPPORTED,
                       "%s has weights in PyTorch's pickle form only; convert them to safetensors",
                       w->folder);
    else if (!st)
        st = error_set(err, STATUS_NOT_FOUND,
                       "%s has no weights: no model.safetensors, no %s and no .gguf file",
                       w->folder, index_name);
    end_listing(&found);
    return st;
}

enum status hf_folder_check(const struct weights *w, struct error *err)
{
    struct listing found = {0};

    if (has_file(w, "config.json") || has_file(w, "tokenizer.json") ||
        has_file(w, "tokenizer_config.json"))
        return STATUS_OK;
    enum status st = list_folder(w, &found, err);

    if (!st && found.ggufs)
        st = name_gguf(w, &found, err);
    else if (!st)
        st = error_set(err, STATUS_NOT_FOUND,
                       "%s is no folder of a model: it has neither config.json nor tokenizer.json, "
                       "and no .gguf file",
                       w->folder);
    end_listing(&found);
    return st;
}

enum status hf_folder_open(struct weights *w, struct error *err)
{
    if (has_file(w, "model.safetensors")) return add_named(w, "model.safetensors", err);
    if (has_file(w, index_name)) return open_index(w, err);
    return open_only(w, err);
}

/* --- documents --- */

static struct weights_doc *find_doc(const struct weights *w, const char *name)
{
    for (struct weights_doc *doc = w->docs; doc; doc = doc->next)
        if (strcmp(doc->name, name) == 0) return doc;
    return NULL;
}

/* Keeps what was read; takes json and text, also when it fails. */
static enum status keep_doc(struct weights *w, const char *name, struct weights_doc what,
                            struct error *err)
{
    struct weights_doc *doc = malloc(sizeof *doc);
    char *copy = strdup(name);

    if (!doc || !copy) {
        json_decref(what.json);
        free(what.text);
        free(copy);
        free(doc);
        return no_memory(w, err);
    }
    *doc = what;
    doc->name = copy;
    doc->next = w->docs;
    w->docs = doc;
    return STATUS_OK;
}

void hf_folder_drop_docs(struct weights *w)
{
    struct weights_doc *doc;

    while ((doc = w->docs)) {
        w->docs = doc->next;
        json_decref(doc->json);
        free(doc->text);
        free(doc->name);
        free(doc);
    }
}

static enum status not_a_folder(const struct weights *w, const char *file, struct error *err)
{
    return error_set(err, STATUS_NOT_FOUND, "%s is a GGUF file and has no %s", w->path, file);
}

enum status weights_json(struct weights *w, const char *file, const json_t **out, struct error *err)
{
    uint64_t bytes_max = strcmp(file, "tokenizer.json") == 0 ? TOKENIZER_BYTES_MAX : DOC_BYTES_MAX;
    struct weights_doc *doc = find_doc(w, file), fresh = {0};
    enum status st = STATUS_OK;
    char *path;

    assert(!strchr(file, '/'));
    if (!w->folder) return not_a_folder(w, file, err);
    if (!doc) {
        path = join(w->folder, file);
        st = path ? read_json(path, bytes_max, false, &fresh.json, err) : no_memory(w, err);
        free(path);
        if (!st) st = keep_doc(w, file, fresh, err);
    }
    if (st) return st;
    *out = find_doc(w, file)->json;
    assert(*out); /* one name is read either as JSON or as text */
    return STATUS_OK;
}

enum status weights_text(struct weights *w, const char *file, struct slice *out, struct error *err)
{
    struct weights_doc *doc = find_doc(w, file), fresh = {0};
    enum status st = STATUS_OK;
    char *path;

    assert(!strchr(file, '/'));
    if (!w->folder) return not_a_folder(w, file, err);
    if (!doc) {
        path = join(w->folder, file);
        st = path ? file_read(path, TEXT_BYTES_MAX, &fresh.text, &fresh.text_len, err)
                  : no_memory(w, err);
        if (!st && !utf8_valid(slice_of(fresh.text, fresh.text_len))) {
            st = error_set(err, STATUS_CORRUPT, "%s is not UTF-8 text", path);
            free(fresh.text);
        }
        free(path);
        if (!st) st = keep_doc(w, file, fresh, err);
    }
    if (st) return st;
    doc = find_doc(w, file);
    assert(doc->text);
    *out = slice_of(doc->text, doc->text_len);
    return STATUS_OK;
}
