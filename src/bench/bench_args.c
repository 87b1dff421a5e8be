#include "bench/bench_args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(const char *program, const char *about, const struct bench_arg *args,
                       uint32_t count)
{
    printf("usage: inferd %s [options]\n%s\n", program, about);
    for (uint32_t i = 0; i < count; i++) {
        const struct bench_arg *a = &args[i];
        char value[48] = "";

        if (a->type == ARG_COUNT) snprintf(value, sizeof value, " %u", *(uint32_t *)a->out);
        if (a->type == ARG_REAL) snprintf(value, sizeof value, " %g", *(double *)a->out);
        if (a->type == ARG_TEXT)
            snprintf(value, sizeof value, " %s",
                     *(const char **)a->out ? *(const char **)a->out : "...");
        printf("  %-28s%-22s %s\n", a->name, value, a->help);
    }
}

static int fault(const char *program, const char *what, const char *value, const char *right)
{
    fprintf(stderr, "inferd: %s: %s %.200s; %s\n", program, what, value, right);
    return 2;
}

static int set(const char *program, const struct bench_arg *a, const char *text)
{
    char right[96], *end;
    double number;

    if (a->type == ARG_TEXT) {
        *(const char **)a->out = text;
        return -1;
    }
    snprintf(right, sizeof right, "%s is %.10g to %.10g",
             a->type == ARG_COUNT ? "a whole number that" : "a number that", a->low, a->high);
    number = strtod(text, &end);
    if (end == text || *end || isnan(number) || number < a->low || number > a->high ||
        (a->type == ARG_COUNT && number != floor(number)))
        return fault(program, a->name, text, right);
    if (a->type == ARG_COUNT)
        *(uint32_t *)a->out = (uint32_t)number;
    else
        *(double *)a->out = number;
    return -1;
}

static const struct bench_arg *find(const struct bench_arg *args, uint32_t count, const char *name,
                                    size_t len)
{
    for (uint32_t i = 0; i < count; i++)
        if (strlen(args[i].name) == len && strncmp(args[i].name, name, len) == 0) return &args[i];
    return NULL;
}

int bench_args_parse(const char *program, const char *about, const struct bench_arg *args,
                     uint32_t count, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        size_t len = strcspn(argv[i], "=");
        const char *value = argv[i][len] ? argv[i] + len + 1 : NULL;
        const struct bench_arg *a = find(args, count, argv[i], len);
        int st;

        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(program, about, args, count);
            return 0;
        }
        if (!a) return fault(program, "there is no option", argv[i], "--help lists them");
        if (a->type == ARG_FLAG) {
            if (value) return fault(program, argv[i], "", "it takes no value");
            *(bool *)a->out = true;
            continue;
        }
        if (!value && ++i == argc) return fault(program, a->name, "has no value", a->help);
        st = set(program, a, value ? value : argv[i]);
        if (st >= 0) return st;
    }
    return -1;
}
