/* sd_notify.h - tells the service manager how we are: lines of NAME=VALUE in one datagram to its socket.
 *
 * The protocol is a dozen lines (sd_notify(3)) and stable by promise, so there is no dependency on libsystemd.
 * A socket that is not there, full or broken is no error of ours: the message is lost, serving goes on.
 * Thread: any. Memory: none. */
#pragma once

#include <stdbool.h>

struct sd_notify {
    int fd; /* -1: nobody listens */
};

/* address: $NOTIFY_SOCKET, a path or "@name" in the abstract namespace; NULL or "": nobody listens. */
void sd_notify_open(struct sd_notify *notify, const char *address);
void sd_notify_close(struct sd_notify *notify); /* idempotent */

/* Sends one message, "READY=1\nSTATUS=serving". Never blocks. False: it did not get through. */
bool sd_notify_send(const struct sd_notify *notify, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
