/* reload.h - SIGHUP: flags, environment and files are read again; what may change while serving does, the rest is said.
 *
 * The run's first config stays, for all that borrows from it; `now` is the last one that was taken.
 * Thread: reload_run from any, one at a time (it locks). */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/buf.h"
#include "config/config.h"
#include "frontend/frontend.h"

struct reload {
    int argc;
    char **argv;
    const char *credentials; /* folder or "" */
    const struct config *first;
    struct config now; /* its reloadable options are in force; a copy's strings are its own */
    bool has_now;
    bool had_keys; /* a reload never opens what was locked */
    pthread_mutex_t lock;
};

void reload_init(struct reload *reload, int argc, char **argv, const struct config *first,
                 const char *credentials);
void reload_fini(struct reload *reload);

/* The times of a drain that are in force, in s. Any thread. */
void reload_drain_times(struct reload *reload, uint64_t *grace_s, uint64_t *shutdown_s);
/* The reloadable members of the frontend's options. */
void reload_fill(const struct config *config, struct frontend_options *out);
/* Reads everything anew and puts it in force, or nothing of it. frontend may be NULL. report (may be NULL) gets JSON:
 * {"status":"reloaded","changed":[...],"not_changed":[...]} or an error's body. Logged. False: refused. */
bool reload_run(struct reload *reload, struct frontend *frontend, struct buf *report);
