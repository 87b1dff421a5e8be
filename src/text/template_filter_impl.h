/* template_filter_impl.h - what the files of filters share. Private to template_*filters.c. */
#pragma once

#include "text/template_ast.h"

#define FILTER(name)                                                     \
    static struct value filter_##name(struct render *r, struct value *a, \
                                      __attribute__((unused)) const struct args *args)

static inline bool arg_absent(struct value v)
{
    return v.type == V_ABSENT || v.type == V_NONE;
}

static inline bool arg_flag(struct value v)
{
    return v.type != V_ABSENT && value_true(v);
}

/* The str method of that name on the text of a[0], with up to `count` arguments from a[1] on. */
struct value filter_by_method(struct render *r, const char *name, struct value *a, uint32_t count);
