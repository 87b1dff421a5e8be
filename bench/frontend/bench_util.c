#include "bench_util.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t cpu_of(int pid)
{
    char path[300];
    int64_t total = 0;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);

    if (!tasks) die("no process %d", pid);
    for (struct dirent *task; (task = readdir(tasks));) {
        long long ns = 0;

        if (task->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", pid, task->d_name);
        FILE *file = fopen(path, "r");

        if (!file) continue;
        if (fscanf(file, "%lld", &ns) == 1) total += ns;
        fclose(file);
    }
    closedir(tasks);
    return total;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void sort_values(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
}

double quantile(const double *sorted, size_t count, double q)
{
    if (!count) return 0;
    size_t at = (size_t)(q * (double)count);

    return sorted[at < count ? at : count - 1];
}

void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

int connect_tcp(const char *host, uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("%s is no IPv4 address", host);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        die("cannot connect to %s:%u: %s", host, port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

size_t post_text(char *out, size_t size, const char *path, const char *json)
{
    return (size_t)snprintf(out, size,
                            "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                            "Content-Length: %zu\r\n\r\n%s",
                            path, strlen(json), json);
}

static void take_head(struct dechunk *d, char c)
{
    static const char end[] = "\r\n\r\n";

    if (d->head_len < sizeof d->head - 1) d->head[d->head_len++] = c;
    d->line = c == end[d->line] ? d->line + 1 : c == '\r';
    if (d->line < 4) return;
    d->status = (unsigned)atoi(d->head + 9);
    d->state = IN_SIZE;
    d->line = 0;
}

static void take_size(struct dechunk *d, char c)
{
    int digit = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;

    if (digit >= 0) {
        d->left = d->left * 16 + (size_t)digit;
    } else if (c == '\n') {
        d->state = d->left ? IN_DATA : AT_END;
    } else if (c != '\r') {
        die("not a chunk's size: '%c'", c);
    }
}

size_t dechunk(struct dechunk *d, const char *bytes, size_t len, char *out)
{
    size_t wrote = 0, at = 0;

    while (at < len) {
        if (d->state == IN_HEAD) {
            take_head(d, bytes[at++]);
        } else if (d->state == IN_SIZE) {
            take_size(d, bytes[at++]);
        } else if (d->state == IN_DATA) {
            size_t some = d->left < len - at ? d->left : len - at;

            memcpy(out + wrote, bytes + at, some);
            wrote += some;
            at += some;
            d->left -= some;
            if (!d->left) d->state = AFTER_DATA;
        } else if (d->state == AFTER_DATA) {
            if (bytes[at++] == '\n') d->state = IN_SIZE;
        } else {
            at = len; /* the empty line behind the last chunk */
        }
    }
    return wrote;
}
