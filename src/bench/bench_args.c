#include "bench/bench_args.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/shown.h"

enum { LISTED_MAX = 12, TEXT_BYTES = 200 }; /* as many names as a sentence may hold; of a value */

static void print_help(const char *program, const char *about, const struct bench_arg *args,
                       uint32_t count)
{
    printf("usage: inferd %s%s\n%s\n", program, count ? " [options]" : "", about);
    for (uint32_t i = 0; i < count; i++) {
        const struct bench_arg *a = &args[i];
        char value[48] = "";

        if (a->type == ARG_COUNT) snprintf(value, sizeof value, " %u", *(uint32_t *)a->out);
        if (a->type == ARG_REAL) snprintf(value, sizeof value, " %g", *(double *)a->out);
        if (a->type == ARG_SWITCH) snprintf(value, sizeof value, " %d", *(bool *)a->out);
        if (a->type == ARG_TEXT)
            snprintf(value, sizeof value, " %s",
                     *(const char **)a->out ? *(const char **)a->out : "...");
        printf("  %-28s%-22s %s\n", a->name, value, a->help);
    }
}

__attribute__((format(printf, 2, 3))) static int fault(const char *program, const char *format, ...)
{
    va_list values;

    fprintf(stderr, "inferd: %s: ", program);
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    return 2;
}

static int no_option(const char *program, const char *name, const struct bench_arg *args,
                     uint32_t count)
{
    char text[TEXT_BYTES], list[LISTED_MAX * 32] = "";
    size_t at = 0;

    shown(slice_str(name), text, sizeof text);
    if (!count) return fault(program, "there is no option '%s'; it takes none", text);
    if (count > LISTED_MAX)
        return fault(program, "there is no option '%s'; --help lists them", text);
    for (uint32_t i = 0; i < count && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", args[i].name);
    return fault(program, "there is no option '%s'; %s %s %s", text, program,
                 count > 1 ? "has" : "has only", list);
}

static int set_switch(const char *program, const struct bench_arg *a, const char *text)
{
    char value[TEXT_BYTES];

    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return fault(program, "%s is '%s'; it must be 0 or 1", a->name,
                     shown(slice_str(text), value, sizeof value));
    *(bool *)a->out = *text == '1';
    return -1;
}

static int set_number(const char *program, const struct bench_arg *a, const char *text)
{
    char *end, value[TEXT_BYTES];
    double number = strtod(text, &end);

    if (end == text || *end || isnan(number) || number < a->low || number > a->high ||
        (a->type == ARG_COUNT && number != floor(number)))
        return fault(program, "%s is '%s'; it must be a %snumber from %.10g to %.10g", a->name,
                     shown(slice_str(text), value, sizeof value),
                     a->type == ARG_COUNT ? "whole " : "", a->low, a->high);
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

static int set(const char *program, const struct bench_arg *a, const char *text)
{
    if (a->type == ARG_SWITCH) return set_switch(program, a, text);
    if (a->type != ARG_TEXT) return set_number(program, a, text);
    *(const char **)a->out = text;
    return -1;
}

int bench_args_parse(const char *program, const char *about, const struct bench_arg *args,
                     uint32_t count, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(program, about, args, count);
            return 0;
        }
    for (int i = 1; i < argc; i++) {
        size_t len = strcspn(argv[i], "=");
        const char *value = argv[i][len] ? argv[i] + len + 1 : NULL;
        const struct bench_arg *a = find(args, count, argv[i], len);
        int st;

        if (!a) return no_option(program, argv[i], args, count);
        if (a->type == ARG_FLAG) {
            if (value) return fault(program, "%s takes no value", a->name);
            *(bool *)a->out = true;
            continue;
        }
        if (!value && ++i == argc) return fault(program, "%s has no value; %s", a->name, a->help);
        st = set(program, a, value ? value : argv[i]);
        if (st >= 0) return st;
    }
    return -1;
}
