/* file_map.h - a file's bytes, mapped read-only and private. */
#pragma once

#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"

struct file_map {
    const unsigned char *ptr; /* NULL when len is 0 */
    uint64_t len;             /* bytes */
};

/* Maps a regular file. An empty file gives len 0. Errors: STATUS_NOT_FOUND, STATUS_IO (also for a
 * folder or a pipe), STATUS_NOMEM; the sentence names the path. */
enum status file_map_open(const char *path, struct file_map *out, struct error *err);
void file_map_close(struct file_map *map); /* takes an unopened (zeroed) map too */

/* Tells the system that these bytes are not needed for now; they read from the file again. */
void file_map_drop(const void *ptr, uint64_t len);

/* Reads a whole file of at most `limit` bytes into malloc'ed memory with a NUL behind it. The caller
 * frees *out. Errors: as above, and STATUS_LIMIT. */
enum status file_read(const char *path, uint64_t limit, char **out, uint64_t *len,
                      struct error *err);
