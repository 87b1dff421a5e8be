/* bench_args.h - the options of a measuring program, from a table: parsing, bounds, help. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A flag stands alone, a switch is followed by 0 or 1. */
enum bench_arg_type { ARG_COUNT, ARG_REAL, ARG_TEXT, ARG_FLAG, ARG_SWITCH };

struct bench_arg {
    const char *name; /* "--request-rate"; --name=value is understood too */
    enum bench_arg_type type;
    void *out;        /* uint32_t, double, const char *, bool, bool; holds the default */
    double low, high; /* of a count or a real, both included; "inf" is a real */
    const char *help;
};

/* Reads argv[1..]; plain arguments are faults. Returns -1 to go on, or the exit status: 0 after --help (-h), which may stand
 * anywhere and goes before every fault, 2 after a fault that was told on standard error. */
int bench_args_parse(const char *program, const char *about, const struct bench_arg *args,
                     uint32_t count, int argc, char **argv);
