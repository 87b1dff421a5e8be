/* template.c - the door: compiling, rendering, faults. The parts: template_lex.c (tokens), template_parse.c and
 * template_statements.c (nodes), template_eval.c and template_scope.c (running them), template_value.c, template_attr.c
 * and template_text.c (values, attributes and arithmetic, strings with marks), and what Python and jinja2 bring along:
 * template_{filters,text_filters,web_filters,tests,methods,format,json,globals,unicode}.c. */
#include "text/template.h"
#include "text/template_ast.h"

#include <stdio.h>
#include <stdlib.h>

enum { SOURCE_MAX = 1 << 20, COMPILE_MEMORY_MAX = 256 << 20 };

const struct template_limits template_limits_default = {
    .steps_max = 10 * 1000 * 1000,
    .memory_max = 64 << 20,
    .output_max = 16 << 20,
    .depth_max = 128,
};

const char *template_fault_name(enum template_fault fault)
{
    static const char *const names[] = {
        [TEMPLATE_OK] = "ok",
        [TEMPLATE_RAISE] = "raise",
        [TEMPLATE_UNDEFINED] = "undefined",
        [TEMPLATE_SYNTAX] = "syntax",
        [TEMPLATE_SECURITY] = "security",
        [TEMPLATE_LIMIT] = "limit",
        [TEMPLATE_RUNTIME] = "runtime",
    };

    return (unsigned)fault < sizeof names / sizeof *names ? names[fault] : "runtime";
}

static enum status fault_status(enum template_fault fault)
{
    return fault == TEMPLATE_LIMIT ? STATUS_LIMIT : STATUS_INVALID;
}

void compile_fail(struct compiler *c, enum template_fault fault, uint32_t line, const char *format,
                  ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->fault = fault;
    error_set(c->err, fault_status(fault), "line %u: %s", line, text);
    longjmp(c->failed, 1);
}

void *compile_alloc(struct compiler *c, size_t size)
{
    void *p = arena_alloc(c->arena, size ? size : 1);

    if (!p) compile_fail(c, TEMPLATE_LIMIT, c->line, "the template needs too much memory");
    return p;
}

/* Length of the well-formed UTF-8 sequence at p, 0 if there is none (Unicode, table 3-7). */
static size_t sequence_length(const unsigned char *p, size_t len)
{
    size_t n = p[0] < 0x80   ? 1
               : p[0] < 0xc2 ? 0
               : p[0] < 0xe0 ? 2
               : p[0] < 0xf0 ? 3
               : p[0] < 0xf5 ? 4
                             : 0;

    if (n == 0 || n > len) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0;
    if (p[0] == 0xed && p[1] > 0x9f) return 0;
    if (p[0] == 0xf0 && p[1] < 0x90) return 0;
    if (p[0] == 0xf4 && p[1] > 0x8f) return 0;
    return n;
}

static bool well_formed(struct slice s)
{
    for (size_t at = 0, n; at < s.len; at += n) {
        n = sequence_length((const unsigned char *)s.ptr + at, s.len - at);
        if (!n) return false;
    }
    return true;
}

static enum template_fault compile(struct compiler *c, struct slice source, struct template *t)
{
    if (setjmp(c->failed)) return c->fault;
    lex_init(c, source);
    parse_template(c, t);
    return TEMPLATE_OK;
}

enum template_fault template_compile(struct slice source, struct template **out, struct error *err)
{
    struct template *t;
    struct compiler *c;
    enum template_fault fault;

    if (source.len > SOURCE_MAX) {
        error_set(err, STATUS_LIMIT, "the template has %zu bytes; at most %d are read", source.len,
                  SOURCE_MAX);
        return TEMPLATE_LIMIT;
    }
    if (!well_formed(source)) {
        error_set(err, STATUS_INVALID, "the template is not valid UTF-8");
        return TEMPLATE_SYNTAX;
    }
    t = calloc(1, sizeof *t);
    c = calloc(1, sizeof *c);
    if (!t || !c) {
        free(t);
        free(c);
        error_set(err, STATUS_NOMEM, "no memory for the template");
        return TEMPLATE_LIMIT;
    }
    arena_init(&t->arena, COMPILE_MEMORY_MAX);
    c->arena = &t->arena;
    c->err = err;
    fault = compile(c, source, t);
    free(c);
    if (fault) {
        template_free(t);
        return fault;
    }
    *out = t;
    return TEMPLATE_OK;
}

void template_free(struct template *t)
{
    if (!t) return;
    arena_fini(&t->arena);
    free(t);
}

void template_marks_fini(struct template_marks *marks)
{
    free(marks->ranges);
    *marks = (struct template_marks){0};
}

/* --- rendering --- */
void template_fail(struct render *r, enum template_fault fault, const char *format, ...)
{
    char text[600]; /* longer than what error_set keeps, which cuts between characters */
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->fault = fault;
    error_set(r->err, fault_status(fault), "%s", text);
    longjmp(r->failed, 1);
}

void *render_alloc(struct render *r, size_t size)
{
    void *p = arena_alloc(&r->arena, size ? size : 1);

    if (!p) template_fail(r, TEMPLATE_LIMIT, "the template needs too much memory");
    return p;
}

/* The sink's marked runs as ranges that neither touch nor overlap. */
static bool copy_marks(const struct sink *s, size_t base, struct template_marks *marks)
{
    struct text_range *ranges = s->run_count ? malloc(s->run_count * sizeof *ranges) : NULL;
    size_t count = 0;

    if (s->run_count && !ranges) return false;
    for (uint32_t i = 0; i < s->run_count; i++) {
        struct run run = s->runs[i];
        if (run.begin == run.end) continue;
        if (count && ranges[count - 1].end == base + run.begin)
            ranges[count - 1].end = base + run.end;
        else
            ranges[count++] = (struct text_range){base + run.begin, base + run.end};
    }
    free(marks->ranges);
    *marks = (struct template_marks){.ranges = ranges, .count = count, .cap = s->run_count};
    return true;
}

static enum template_fault render(struct render *r, const json_t *context, struct sink *out)
{
    if (setjmp(r->failed)) return r->fault;
    sink_init(out, r);
    r->out = out;
    r->top = true;
    r->symbols = render_alloc(r, r->t->name_count * sizeof *r->symbols);
    for (uint32_t i = 0; i < r->t->name_count; i++)
        r->symbols[i] = v_absent();
    r->context = context_from_json(r, context);
    run_template(r);
    return TEMPLATE_OK;
}

enum template_fault template_render(const struct template *t, const json_t *context, int64_t now,
                                    const struct template_limits *limits, struct buf *out,
                                    struct template_marks *marks, struct error *err)
{
    struct render *r = calloc(1, sizeof *r);
    struct sink text = {0};
    enum template_fault fault = TEMPLATE_LIMIT;
    size_t base = out->len;

    if (!r) {
        error_set(err, STATUS_NOMEM, "no memory to render the template");
        return TEMPLATE_LIMIT;
    }
    *r = (struct render){.t = t, .limits = *limits, .steps = limits->steps_max, .now = now};
    r->err = err;
    arena_init(&r->arena, limits->memory_max);
    fault = render(r, context, &text);
    if (fault == TEMPLATE_RAISE && r->raised) buf_append(out, r->raised->ptr, r->raised->len);
    if (!fault) {
        buf_append(out, text.ptr, text.len);
        if (buf_status(out) || (marks && !copy_marks(&text, base, marks))) {
            error_set(err, STATUS_LIMIT, "no room for the rendered text");
            fault = TEMPLATE_LIMIT;
        }
    }
    arena_fini(&r->arena);
    free(r);
    return fault;
}
