/* io_cpus.h - --io-cpu-set: the processors of the threads that a round trip goes through (I/O, ZeroMQ, engine). */
#pragma once

#include <sched.h>

#include "base/status.h"
#include "config/config.h"

/* *out: `set`, or NULL where the option is not given. Errors: STATUS_INVALID. */
enum status io_cpus_read(const struct config *config, cpu_set_t *set, const cpu_set_t **out,
                         struct error *err);
