/* status.h - the outcomes a function can have, and the sentence that goes with a fault.
 *
 * Three kinds of error (docs/architecture.md): our own bug is an assert; an ordinary event
 * (exhausted, full, cancelled) is a bare status; a fault from outside (client bytes, file, device)
 * is a status and one sentence in `struct error` for whoever can fix it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum status {
    STATUS_OK = 0,
    STATUS_INVALID, /* a value that is wrong whatever else happens; the sentence says what is right */
    STATUS_NOMEM,   /* the host has no memory for it */
    STATUS_EXHAUSTED,   /* a pool has no free slot now: wait, preempt or refuse */
    STATUS_FULL,        /* a bounded queue or ring is full now */
    STATUS_EMPTY,       /* nothing to take now */
    STATUS_NOT_FOUND,   /* no such file, name, tensor, key */
    STATUS_UNSUPPORTED, /* well-formed, but this build does not do it; named in the sentence */
    STATUS_CORRUPT,     /* bytes that contradict their format */
    STATUS_INCOMPLETE,  /* bytes that end too early: more of the same could make them right */
    STATUS_LIMIT,       /* over a limit on size, depth, count or steps */
    STATUS_IO,          /* the operating system refused; errno's words are in the sentence */
    STATUS_CANCELLED,   /* ended because somebody asked for it */
    STATUS_TIMEOUT,     /* did not happen in the time given */
    STATUS_DEVICE,      /* the device failed a step and can go on */
    STATUS_DEVICE_LOST, /* the device cannot go on; the process must end */
    STATUS_CLOSED,      /* the other side has ended */
    STATUS_COUNT
};

/* The sentence of a fault. `message` is UTF-8, NUL-terminated, without a final line feed. */
struct error {
    enum status status;
    char message[512];
};

/* Short name of a status, "invalid" for STATUS_INVALID. Never NULL. Static storage. */
const char *status_name(enum status status);

/* Writes a printf-style sentence to err (err may be NULL: then nothing is kept) and returns `status`,
 * so that `return error_set(err, STATUS_INVALID, "...")` reads as one thing. Too long a sentence is
 * cut at a UTF-8 border. */
enum status error_set(struct error *err, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* For a sentence that counts: "s", or "" for one, as in "%u token%s". */
static inline const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* Puts "prefix: " in front of the sentence that err already has; returns err's status. */
enum status error_prefix(struct error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
