/* test_gemm_cache.c - what is added is found after a new start; a file that is cut or changed anywhere, or of another machine,
 * counts as empty and is replaced; a folder that cannot be written costs nothing.
 * Method: real files in a temporary folder; every byte of one is changed in turn, and every length is tried. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "device/cuda/gemm_cache.h"
#include "test.h"

static struct gemm_choice choice(uint32_t i)
{
    struct gemm_choice c = {4096 + i, 576, 576, 4096, i % 2, 8 << i % 4, {0}};

    for (uint32_t k = 0; k < GEMM_ALGORITHM_WORDS; k++)
        c.algorithm[k] = hash_mix64(i * 8ull + k + 1);
    return c;
}

static void expect_found(const struct gemm_cache *cache, uint32_t i, bool there)
{
    struct gemm_choice want = choice(i), got = want;

    memset(got.algorithm, 0, sizeof got.algorithm);
    EXPECT_EQ(gemm_cache_find(cache, &got), there);
    if (there) EXPECT_EQ(memcmp(&got, &want, sizeof got), 0);
}

/* A folder below a folder that is not there yet. */
enum { ROOM = 512 };
static char *fresh_folder(char *room)
{
    snprintf(room, ROOM, "%s/gemm-cache-XXXXXX", INFERD_BINARY_DIR);
    if (!mkdtemp(room)) fail_msg("no temporary folder");
    return strcat(room, "/a/b");
}

static char *only_file(const char *folder, char *path)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int count = 0;

    if (!dir) fail_msg("%s is not there", folder);
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.') sprintf(path, "%s/%s", folder, entry->d_name), count++;
    closedir(dir);
    EXPECT_EQ(count, 1);
    return path;
}

static void remove_all(char *folder)
{
    char path[1024], *base = folder;

    unlink(only_file(folder, path));
    for (int i = 0; i < 3; i++) {
        rmdir(base);
        *strrchr(base, '/') = '\0';
    }
}

static void fill(const char *folder, const char *key, uint32_t count)
{
    struct gemm_cache *cache = gemm_cache_open(folder, key);

    for (uint32_t i = 0; i < count; i++) {
        struct gemm_choice c = choice(i);
        gemm_cache_add(cache, &c);
    }
    gemm_cache_close(cache);
}

TEST(what_was_added_is_found_after_a_new_start)
{
    char room[ROOM], *folder = fresh_folder(room), path[1024];

    fill(folder, "card one", 100);
    struct gemm_cache *cache = gemm_cache_open(folder, "card one");
    for (uint32_t i = 0; i < 100; i++)
        expect_found(cache, i, true);
    expect_found(cache, 100, false);
    gemm_cache_close(cache);
    cache = gemm_cache_open(folder, "card two");
    expect_found(cache, 0, false);
    gemm_cache_close(cache);
    only_file(folder, path); /* looking writes nothing */
    remove_all(folder);
}

TEST(a_later_choice_replaces_an_earlier_one)
{
    char room[ROOM], *folder = fresh_folder(room);
    struct gemm_choice changed = choice(3);

    fill(folder, "card", 8);
    struct gemm_cache *cache = gemm_cache_open(folder, "card");
    changed.algorithm[7] = 77;
    gemm_cache_add(cache, &changed);
    gemm_cache_close(cache);
    cache = gemm_cache_open(folder, "card");
    struct gemm_choice got = choice(3);
    EXPECT_TRUE(gemm_cache_find(cache, &got));
    EXPECT_EQ(got.algorithm[7], 77);
    expect_found(cache, 7, true);
    gemm_cache_close(cache);
    remove_all(folder);
}

static void overwrite(const char *path, const char *bytes, size_t len)
{
    FILE *f = fopen(path, "w");

    EXPECT_TRUE(f && fwrite(bytes, 1, len, f) == len && fclose(f) == 0);
}

TEST(a_damaged_file_counts_as_empty_and_is_replaced)
{
    char room[ROOM], *folder = fresh_folder(room), path[1024], *bytes = malloc(1 << 16);

    log_set_level(LOG_ERROR); /* each says so in a line */
    fill(folder, "card", 3);
    only_file(folder, path);
    FILE *f = fopen(path, "r");
    size_t len = fread(bytes, 1, 1 << 16, f);
    fclose(f);
    EXPECT_TRUE(len > 400 && len < 1 << 16);
    for (size_t at = 0; at < 2 * len; at++) { /* changed at a byte, then cut at a length */
        char kept = bytes[at % len];
        if (at < len) bytes[at] = (char)(kept ^ (1 << test_rand_below(8)));
        overwrite(path, bytes, at < len ? len : at - len);
        bytes[at % len] = kept;
        struct gemm_cache *cache = gemm_cache_open(folder, "card");
        for (uint32_t i = 0; i < 3; i++)
            expect_found(cache, i, false);
        gemm_cache_close(cache);
    }
    fill(folder, "card", 2);
    struct gemm_cache *cache = gemm_cache_open(folder, "card");
    expect_found(cache, 1, true);
    expect_found(cache, 2, false);
    gemm_cache_close(cache);
    log_set_level(LOG_INFO);
    remove_all(folder);
    free(bytes);
}

TEST(no_folder_costs_nothing)
{
    struct gemm_cache *cache = gemm_cache_open(NULL, "card");
    struct gemm_choice c = choice(1);

    gemm_cache_add(cache, &c);
    expect_found(cache, 1, true);
    gemm_cache_close(cache);
    log_set_level(LOG_ERROR);
    fill("/proc/no/such/place", "card", 1);
    log_set_level(LOG_INFO);
    gemm_cache_add(NULL, &c);
    EXPECT_TRUE(!gemm_cache_find(NULL, &c));
    gemm_cache_close(NULL);
}
