/* check.h - what can be known wrong of the options together, before anything is opened: wrong usage, exit status 2.
 *
 * What config_parse cannot see, as it knows no devices, endpoints or lists of processors. Every command that takes the options of
 * `serve` asks, so that none of them lets pass what another refuses. */
#pragma once

#include "config/config.h"

/* Errors: STATUS_INVALID with what would be right. */
enum status check_options(const struct config *config, struct error *err);
/* config_parse, then (unless help is asked for) check_options. 0, or 2 after a sentence on standard error; then *out is empty. */
int check_parse(int argc, char **argv, struct config *out);
/* For a command that takes one model and nothing behind it. -1: it has one; else the exit status, after the usage (where help is asked
 * for) or a sentence and the usage. */
int check_one_model(const struct config *config, const char *command, const char *usage);
