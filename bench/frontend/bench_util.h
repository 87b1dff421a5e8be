/* bench_util.h - what the two programs of this folder share: clocks, CPU time of a process, quantiles, HTTP by hand. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int64_t now_ns(void);
/* On-CPU time of all threads of a process that are alive, in ns (schedstat: to the ns, not to the tick). */
int64_t cpu_of(int pid);
/* Sorts values, then gives quantiles. */
void sort_values(double *values, size_t count);
double quantile(const double *sorted, size_t count, double q);
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* A TCP connection with TCP_NODELAY, non-blocking afterwards. */
int connect_tcp(const char *host, uint16_t port);
/* A POST of JSON as bytes; returns the length. */
size_t post_text(char *out, size_t size, const char *path, const char *json);

/* Takes HTTP's head and chunked coding away. Feed it bytes as they come. */
struct dechunk {
    enum { IN_HEAD, IN_SIZE, IN_DATA, AFTER_DATA, AT_END } state;
    size_t left;
    unsigned line; /* bytes of the line so far; in the head: of the end of it that has been seen */
    unsigned status;
    char head[16]; /* the first bytes, for the status */
    unsigned head_len;
};
/* Writes the body's bytes to out (room for len); returns how many. */
size_t dechunk(struct dechunk *d, const char *bytes, size_t len, char *out);
