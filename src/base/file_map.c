#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status open_regular(const char *path, int *fd, uint64_t *len, struct error *err)
{
    struct stat st;

    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "cannot open %s: %s",
                         path, strerror(errno));
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *len = (uint64_t)st.st_size;
        return STATUS_OK;
    }
    close(*fd);
    return error_set(err, STATUS_IO, "%s is not a regular file", path);
}

enum status file_map_open(const char *path, struct file_map *out, struct error *err)
{
    int fd;
    uint64_t len;
    void *ptr;
    enum status st = open_regular(path, &fd, &len, err);

    *out = (struct file_map){0};
    if (st) return st;
    if (len == 0) {
        close(fd);
        return STATUS_OK;
    }
    ptr = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (ptr == MAP_FAILED)
        st = error_set(err, STATUS_IO, "cannot map %s: %s", path, strerror(errno));
    else
        *out = (struct file_map){ptr, len};
    close(fd);
    return st;
}

void file_map_close(struct file_map *map)
{
    if (map->ptr) munmap((void *)map->ptr, map->len);
    *map = (struct file_map){0};
}

void file_map_drop(const void *ptr, uint64_t len)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)ptr + page - 1) & ~(page - 1),
              to = ((uintptr_t)ptr + len) & ~(page - 1);

    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

enum status file_read(const char *path, uint64_t limit, char **out, uint64_t *len,
                      struct error *err)
{
    int fd;
    uint64_t size, got = 0;
    char *bytes;
    enum status st = open_regular(path, &fd, &size, err);

    if (st) return st;
    if (size > limit) {
        close(fd);
        return error_set(err, STATUS_LIMIT, "%s has %llu bytes; at most %llu are read", path,
                         (unsigned long long)size, (unsigned long long)limit);
    }
    bytes = malloc(size + 1);
    if (!bytes) st = error_set(err, STATUS_NOMEM, "no memory for %s", path);
    while (!st && got < size) {
        ssize_t n = read(fd, bytes + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) st = error_set(err, STATUS_IO, "cannot read %s: %s", path, strerror(errno));
        if (n == 0) break; /* it has shrunk meanwhile */
        if (n > 0) got += (uint64_t)n;
    }
    close(fd);
    if (st) {
        free(bytes);
        return st;
    }
    bytes[got] = '\0';
    *out = bytes;
    *len = got;
    return STATUS_OK;
}
