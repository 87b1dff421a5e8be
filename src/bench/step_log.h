/* step_log.h - what a daemon tells of itself, for fit_solve.h: its steps, and what its front end adds to a request. */
#pragma once

#include "bench/fit_solve.h"

struct step_log {
    struct fit_sample *samples; /* owned */
    uint32_t count;
    double
        wake_ns; /* from a plan for a device that stood still to its step's start, the median; 0: never */
};

/* Lines of GET /admin/steps (docs/api.md, section 6). A step's time is from the end of the one before it where it was queued behind that: what
 * the device needs between two steps is part of them. Steps whose predecessor is not there are left out. Errors: as file_read, STATUS_CORRUPT
 * with line and key. */
enum status step_log_read(const char *path, struct step_log *out, struct error *err);
void step_log_fini(struct step_log *log);

/* From the "request done" lines of the daemon's log, medians: from a request's arrival to its submission, and from its last token to
 * the end of its answer. Errors: as file_read, STATUS_NOT_FOUND (no such line). */
enum status front_from_log(const char *path, double *request_ns, double *reply_ns,
                           struct error *err);
