/* listen.h - a listening socket, TCP or unix. */
#pragma once

#include <stdint.h>

#include "base/status.h"

/* Binds and listens, non-blocking. *port: the TCP port in use. Errors: STATUS_IO with the address in the sentence. */
enum status listen_tcp(const char *host, uint16_t port, int *fd, uint16_t *bound_port,
                       struct error *err);
/* Replaces a socket that nobody listens on any more; one in use is STATUS_IO. */
enum status listen_unix(const char *path, int *fd, struct error *err);
