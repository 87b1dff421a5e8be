#include "device/cuda/gemm_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/log.h"

#define HEAD "inferd products 1\n"

enum { FILE_MAX = 4 << 20, ENTRIES_MAX = 16384 };

struct gemm_cache {
    char *folder, *path, *key; /* path NULL: nothing is kept */
    struct gemm_choice *choices;
    uint32_t count, room;
    bool changed;
};

static bool same(const struct gemm_choice *a, const struct gemm_choice *b)
{
    return a->N == b->N && a->K == b->K && a->ldx == b->ldx && a->ldy == b->ldy &&
           a->y_float == b->y_float && a->rows == b->rows;
}

bool gemm_cache_find(const struct gemm_cache *cache, struct gemm_choice *choice)
{
    for (uint32_t i = 0; cache && i < cache->count; i++) {
        if (!same(&cache->choices[i], choice)) continue;
        memcpy(choice->algorithm, cache->choices[i].algorithm, sizeof choice->algorithm);
        return true;
    }
    return false;
}

static bool insert(struct gemm_cache *cache, const struct gemm_choice *choice)
{
    for (uint32_t i = 0; i < cache->count; i++)
        if (same(&cache->choices[i], choice)) {
            cache->choices[i] = *choice;
            return true;
        }
    if (cache->count == cache->room) {
        uint32_t room = cache->room ? cache->room * 2 : 64;
        struct gemm_choice *more =
            room > ENTRIES_MAX ? NULL : realloc(cache->choices, room * sizeof *more);
        if (!more) return false;
        cache->choices = more, cache->room = room;
    }
    cache->choices[cache->count++] = *choice;
    return true;
}

void gemm_cache_add(struct gemm_cache *cache, const struct gemm_choice *choice)
{
    if (cache && insert(cache, choice)) cache->changed = true;
}

/* --- reading --- */

static bool parse_line(const char *line, struct gemm_choice *out)
{
    uint32_t y_float;
    int used = 0;

    if (sscanf(line, "%" SCNu32 " %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu32 " %" SCNu32 "%n",
               &out->N, &out->K, &out->ldx, &out->ldy, &y_float, &out->rows, &used) != 6 ||
        y_float > 1)
        return false;
    out->y_float = y_float;
    for (int i = 0; i < GEMM_ALGORITHM_WORDS; i++) {
        int more = 0;
        if (sscanf(line + used, " %16" SCNx64 "%n", &out->algorithm[i], &more) != 1) return false;
        used += more;
    }
    return line[used] == '\0';
}

enum { SUM_BYTES = 21 }; /* "sum ", 16 digits, "\n" */

static void print_sum(const char *text, size_t len, char out[SUM_BYTES + 1])
{
    snprintf(out, SUM_BYTES + 1, "sum %016" PRIx64 "\n", hash_bytes(text, len, 1));
}

/* Cuts off the last line; whether it was the sum of those in front. */
static bool check_sum(char *text, uint64_t len)
{
    char want[SUM_BYTES + 1];

    if (len < SUM_BYTES) return false;
    print_sum(text, len - SUM_BYTES, want);
    if (memcmp(text + len - SUM_BYTES, want, SUM_BYTES) != 0) return false;
    text[len - SUM_BYTES] = '\0';
    return true;
}

static bool parse(struct gemm_cache *cache, char *text, uint64_t len)
{
    size_t head = strlen(HEAD), key = strlen(cache->key);
    char *save = NULL;

    if (strlen(text) != len || !check_sum(text, len) || strncmp(text, HEAD, head) != 0 ||
        strncmp(text + head, cache->key, key) != 0 || text[head + key] != '\n')
        return false;
    for (char *line = strtok_r(text + head + key + 1, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        struct gemm_choice choice = {0};
        if (!parse_line(line, &choice) || !insert(cache, &choice)) return false;
    }
    return true;
}

static void load(struct gemm_cache *cache)
{
    char *text = NULL;
    uint64_t len = 0;
    struct error err = {0};
    enum status st = file_read(cache->path, FILE_MAX, &text, &len, &err);

    if (st == STATUS_NOT_FOUND) return;
    if (st || !parse(cache, text, len)) {
        cache->count = 0;
        log_warn("product choices ignored", "file=%s cause=\"%s\"", cache->path,
                 st ? err.message : "cut, changed or of another machine; it will be written anew");
    }
    free(text);
}

static void clean_key(char *key)
{
    for (; *key; key++)
        if ((unsigned char)*key < ' ') *key = ' ';
}

struct gemm_cache *gemm_cache_open(const char *folder, const char *key)
{
    struct gemm_cache *cache = calloc(1, sizeof *cache);

    if (!cache) return NULL;
    cache->key = strdup(key);
    if (cache->key) clean_key(cache->key);
    if (!folder || !*folder || !cache->key) return cache;
    cache->folder = strdup(folder);
    if (cache->folder && asprintf(&cache->path, "%s/products-%016" PRIx64 ".txt", folder,
                                  hash_bytes(cache->key, strlen(cache->key), 0)) < 0)
        cache->path = NULL;
    if (cache->path) load(cache);
    return cache;
}

/* --- writing --- */

static void print(const struct gemm_cache *cache, struct buf *out)
{
    char sum[SUM_BYTES + 1];

    buf_printf(out, HEAD "%s\n", cache->key);
    for (uint32_t i = 0; i < cache->count; i++) {
        const struct gemm_choice *c = &cache->choices[i];
        buf_printf(out, "%" PRIu32 " %" PRIu32 " %" PRIu64 " %" PRIu64 " %d %" PRIu32, c->N, c->K,
                   c->ldx, c->ldy, c->y_float, c->rows);
        for (int k = 0; k < GEMM_ALGORITHM_WORDS; k++)
            buf_printf(out, " %016" PRIx64, c->algorithm[k]);
        buf_append_char(out, '\n');
    }
    if (buf_status(out)) return;
    print_sum(out->ptr, out->len, sum);
    buf_append_str(out, sum);
}

/* Every folder of the path that is missing. */
static void make_folders(const char *path)
{
    char *copy = strdup(path);

    for (char *at = copy ? copy + 1 : NULL; at && (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        mkdir(copy, 0777);
    }
    mkdir(path, 0777);
    free(copy);
}

static bool write_file(const char *path, const struct buf *text)
{
    FILE *f = fopen(path, "we");
    bool good = f && fwrite(text->ptr, 1, text->len, f) == text->len;

    if (f) good = fclose(f) == 0 && good;
    return good;
}

/* Written beside and renamed: a reader sees the old file or the new one. */
static void save(const struct gemm_cache *cache)
{
    char *beside = NULL;
    struct buf text;

    if (asprintf(&beside, "%s.%ld", cache->path, (long)getpid()) < 0) return;
    buf_init(&text, 0);
    print(cache, &text);
    make_folders(cache->folder);
    if (buf_status(&text) || !write_file(beside, &text) || rename(beside, cache->path)) {
        log_warn("product choices not kept", "file=%s cause=\"%s\"", cache->path, strerror(errno));
        unlink(beside);
    }
    buf_fini(&text);
    free(beside);
}

void gemm_cache_close(struct gemm_cache *cache)
{
    if (!cache) return;
    if (cache->changed && cache->path) save(cache);
    free(cache->folder), free(cache->path), free(cache->key), free(cache->choices);
    free(cache);
}
