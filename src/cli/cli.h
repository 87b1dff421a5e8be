/* cli.h - the subcommands, a file each. argv[0] is the subcommand's own name. They return the exit status:
 * 0 done; 1 failed, with one sentence on standard error; 2 wrong usage. */
#pragma once

#include "base/status.h"

int cli_serve(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_keygen(int argc, char **argv);
int cli_docs(int argc, char **argv);

/* Prints "inferd: SENTENCE" on standard error and returns 1 (2 for STATUS_INVALID usage errors with `usage`). */
int cli_fail(const struct error *err);
