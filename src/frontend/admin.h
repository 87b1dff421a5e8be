/* admin.h - the operator's routes on a unix socket: docs/api.md section 6. Private to frontend/.
 *
 * A libmicrohttpd daemon with a thread of its own and 16 connections at most. Who may open the socket's file may do all
 * of it: there is no key. What it tells of requests is asked of the I/O threads between two of their turns (io_visit). */
#pragma once

#include "base/status.h"

struct frontend;
struct admin; /* opaque */

/* Listens at frontend->options.admin_path (mode 0600), or on admin_fd. Errors: STATUS_IO, STATUS_INVALID, STATUS_NOMEM. */
enum status admin_start(struct frontend *frontend, struct admin **out, struct error *err);
void admin_remove_file(const struct admin *admin); /* safe in a signal handler */
void admin_stop(struct admin *admin);              /* takes NULL */
