/* listen.h - a listening socket, TCP or unix. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Binds and listens, non-blocking. reuse_port: binds only, beside other sockets that do the same; listen_start comes later.
 * *port: the TCP port in use. Errors: STATUS_IO with the address in the sentence. */
enum status listen_tcp(const char *host, uint16_t port, bool reuse_port, int *fd,
                       uint16_t *bound_port, struct error *err);
enum status listen_start(int fd, struct error *err);
/* The TCP port of a socket, 0 for a unix one. */
uint16_t listen_port(int fd);
/* New connections go to the other socket of the port's group, if there is one, from here on: while this one drains. */
void listen_steer_away(int fd);
void listen_steer_back(int fd);
/* Makes room for a unix socket: removes one that nobody listens on any more. One in use is STATUS_IO, a file that is none too. */
enum status listen_clear(const char *path, struct error *err);
/* Replaces a socket that nobody listens on any more; one in use is STATUS_IO, a file that is none too. mode: of the
 * socket file; 0: as the umask has it. */
enum status listen_unix(const char *path, unsigned mode, int *fd, struct error *err);
