/* observe_setup.h - logs, traces and the labels of metrics, as the options say: for serve. */
#pragma once

#include "cli/load.h"
#include "config/config.h"
#include "observe/metrics.h"

/* Level, format, timestamps; under systemd's journal each line's priority, and no time of its own unless it was asked for. */
void observe_setup_log(const struct config *config);
/* The same of the form alone, where the options could not be read: `format` as --log-format has it, or NULL. */
void observe_setup_form(const char *format);
/* What is wrong about its options before anything is opened: STATUS_INVALID. */
enum status observe_check(const struct config *c, struct error *err);
/* *out: NULL where no endpoint is given. Ended with tracer_destroy. Errors: those of tracer_create. */
enum status observe_open_tracer(const struct config *config, struct tracer **out,
                                struct error *err);
/* Borrows from both, and name. */
void observe_describe(const struct config *config, const struct loaded *loaded, const char *name,
                      struct metrics_model *out);
