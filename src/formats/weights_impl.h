/* weights_impl.h - what weights.c shares with the openers of split GGUF files and of folders. */
#pragma once

#include "base/file_map.h"
#include "formats/gguf.h"
#include "formats/tensor_list.h"
#include "formats/weights.h"

enum { WEIGHTS_FILES_MAX = 4096 }; /* shards; the largest published model has a few hundred */

struct weights_file {
    char *path; /* owned; tensor places and the gguf borrow it */
    struct file_map map;
};

/* A small file of the folder, read once. */
struct weights_doc {
    struct weights_doc *next;
    char *name;
    json_t *json; /* or */
    char *text;
    uint64_t text_len;
};

struct weights {
    enum weights_kind kind;
    char *path;
    char *folder;               /* NULL for GGUF */
    struct weights_file *files; /* [file_count] */
    uint32_t file_count;
    struct tensor_list tensors;
    struct gguf gguf;         /* of the first part; empty for other kinds */
    struct weights_doc *docs; /* newest first */
};

/* Maps one more file of the model. `path` is copied. *out is valid until the next call. */
enum status weights_add_file(struct weights *w, const char *path, struct weights_file **out,
                             struct error *err);
/* Forgets files, tensors and metadata. */
void weights_reset(struct weights *w);

/* Opens w->path as a GGUF file with all its parts. */
enum status gguf_split_open(struct weights *w, struct error *err);

/* Opens the weight files of w->folder. STATUS_NOT_FOUND when it has none. */
/* Whether a folder whose weights are left alone has anything of a model. Errors: STATUS_NOT_FOUND, STATUS_INVALID (GGUF files only). */
enum status hf_folder_check(const struct weights *w, struct error *err);
enum status hf_folder_open(struct weights *w, struct error *err);
/* Maps and parses one safetensors file. */
enum status hf_folder_add_file(struct weights *w, const char *path, struct error *err);
void hf_folder_drop_docs(struct weights *w);
