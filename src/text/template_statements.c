/* template_statements.c - the tags of a template to nodes. A body ends at one of the tags that its parent names.
 * Tags that would read another file (include, import, from, extends) are refused here. */
#include "text/template_parse.h"

#include <stdio.h>

struct context { /* what a body of its own changes, restored after it */
    uint32_t loops;
    bool soft;
};

static struct context begin_context(struct compiler *c, uint32_t loops, bool soft)
{
    struct context saved = {c->loops, c->soft};

    c->loops = loops;
    c->soft = soft;
    return saved;
}

static void end_context(struct compiler *c, struct context saved)
{
    c->loops = saved.loops;
    c->soft = saved.soft;
}

static void expect_block_end(struct compiler *c)
{
    if (c->token.type != T_BLOCK_END) unexpected(c, "the end of the statement");
    next_token(c);
}

static struct node *parse_statement(struct compiler *c);

static bool at_any(const struct compiler *c, const char *const names[])
{
    for (; *names; names++)
        if (at_name(c, *names)) return true;
    return false;
}

static _Noreturn void unclosed(struct compiler *c, const char *const ends[])
{
    char list[160];
    size_t n = 0;

    for (int i = 0; ends[i]; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s'%s'", i ? " or " : "", ends[i]);
    compile_fail(c, TEMPLATE_SYNTAX, c->token.line,
                 "unexpected end of template: looking for the tag %s", list);
}

/* Data, outputs and statements up to a tag of `ends` (NULL: the end), whose name is then the current token. */
static struct node *parse_nodes(struct compiler *c, const char *const ends[])
{
    struct node *body = parse_make(c, N_BODY), *n;

    parse_enter(c);
    for (;;) {
        switch (c->token.type) {
        case T_DATA:
            n = parse_make(c, N_DATA);
            n->value = constant_text(c, c->token.text);
            parse_push(c, body, n);
            next_token(c);
            break;
        case T_VARIABLE_BEGIN:
            next_token(c);
            n = parse_make(c, N_OUTPUT);
            n->a = parse_tuple(c, true, NULL, false);
            parse_push(c, body, n);
            if (c->token.type != T_VARIABLE_END) unexpected(c, "the end of the print statement");
            next_token(c);
            break;
        case T_BLOCK_BEGIN:
            next_token(c);
            if (ends && at_any(c, ends)) {
                parse_leave(c);
                return body;
            }
            parse_push(c, body, parse_statement(c));
            expect_block_end(c);
            break;
        default:
            if (ends) unclosed(c, ends);
            parse_leave(c);
            return body;
        }
    }
}

static struct node *parse_body(struct compiler *c, const char *const ends[])
{
    skip_op(c, OP_COLON);
    expect_block_end(c);
    return parse_nodes(c, ends);
}

/* A body of its own scope up to {% end %}. */
static struct node *parse_inner(struct compiler *c, const char *end)
{
    struct context saved = begin_context(c, c->loops, false);
    struct node *body = parse_body(c, (const char *const[]){end, NULL});

    next_token(c);
    end_context(c, saved);
    return body;
}

/* --- targets of assignments --- */
static struct node *parse_target_part(struct compiler *c, bool with_attr)
{
    struct node *n;

    if (at_op(c, OP_LPAREN)) {
        next_token(c);
        n = parse_make(c, N_TUPLE);
        parse_enter(c);
        while (!at_op(c, OP_RPAREN)) {
            if (n->count) expect_op(c, OP_COMMA, "','");
            if (at_op(c, OP_RPAREN)) break;
            parse_push(c, n, parse_target_part(c, with_attr));
        }
        parse_leave(c);
        next_token(c);
        return n;
    }
    if (c->token.type != T_NAME) unexpected(c, "a name to assign to");
    if (with_attr && look_ahead(c)->type == T_OPERATOR && look_ahead(c)->op == OP_DOT) {
        n = parse_make(c, N_SET_ATTR);
        n->symbol = symbol_of(c, expect_name(c));
        next_token(c);
        n->value = constant_text(c, expect_name(c));
        return n;
    }
    n = parse_primary(c);
    if (n->kind != N_NAME) compile_fail(c, TEMPLATE_SYNTAX, n->line, "can't assign to a constant");
    return n;
}

static struct node *parse_target(struct compiler *c, bool with_attr, const char *end)
{
    struct node *tuple = NULL, *n = parse_target_part(c, with_attr);

    while (at_op(c, OP_COMMA)) {
        if (!tuple) {
            tuple = parse_make(c, N_TUPLE);
            parse_push(c, tuple, n);
        }
        next_token(c);
        if (at_op(c, OP_ASSIGN) || tuple_ends(c, end)) break;
        parse_push(c, tuple, parse_target_part(c, with_attr));
    }
    return tuple ? tuple : n;
}

static bool target_has(const struct node *n, uint32_t symbol)
{
    if (n->kind == N_NAME) return n->symbol == symbol;
    for (uint32_t i = 0; i < n->count; i++)
        if (target_has(n->list[i], symbol)) return true;
    return false;
}

/* --- the tags --- */
static struct node *parse_for(struct compiler *c)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n = parse_make(c, N_FOR);
    struct context saved;

    n->symbol = symbol_of(c, SLICE("loop"));
    n->a = parse_target(c, false, "in");
    if (target_has(n->a, n->symbol))
        compile_fail(c, TEMPLATE_SYNTAX, n->line, "can't assign to the special loop variable");
    if (!skip_name(c, "in")) unexpected(c, "'in'");
    n->b = parse_tuple(c, false, "recursive", false);
    saved = begin_context(c, c->loops, false);
    if (skip_name(c, "if")) n->c = parse_expression(c, true);
    n->flags = skip_name(c, "recursive");
    c->loops++;
    n->body = parse_body(c, ends);
    end_context(c, saved);
    if (at_name(c, "else")) {
        next_token(c);
        n->other = parse_inner(c, "endfor");
    } else {
        next_token(c);
    }
    return n;
}

static struct node *parse_if(struct compiler *c)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = parse_make(c, N_IF);
    struct context saved = begin_context(c, c->loops, true);
    bool more;

    do {
        parse_push(c, n, parse_tuple(c, false, NULL, false));
        parse_push(c, n, parse_body(c, ends));
        more = at_name(c, "elif");
        if (more) next_token(c);
    } while (more);
    if (at_name(c, "else")) {
        next_token(c);
        n->c = parse_body(c, (const char *const[]){"endif", NULL});
    }
    next_token(c);
    end_context(c, saved);
    return n;
}

static struct node *parse_set(struct compiler *c)
{
    struct node *n = parse_make(c, N_SET);

    n->a = parse_target(c, true, NULL);
    if (skip_op(c, OP_ASSIGN)) {
        n->b = parse_tuple(c, true, NULL, false);
        return n;
    }
    n->kind = N_SET_BLOCK;
    if (at_op(c, OP_PIPE)) n->b = parse_filter(c, NULL, false);
    n->body = parse_inner(c, "endset");
    return n;
}

static void parse_signature(struct compiler *c, struct node *macro)
{
    next_token(c);
    while (!at_op(c, OP_RPAREN)) {
        if (macro->count) expect_op(c, OP_COMMA, "','");
        if (c->token.type != T_NAME) unexpected(c, "a parameter name");
        macro->defaults = parse_grow(c, macro->defaults, macro->count, sizeof(struct node *));
        macro->defaults[macro->count] = NULL;
        parse_push(c, macro, parse_target_part(c, false));
        if (skip_op(c, OP_ASSIGN))
            macro->defaults[macro->count - 1] = parse_expression(c, true);
        else if (macro->count > 1 && macro->defaults[macro->count - 2])
            compile_fail(c, TEMPLATE_SYNTAX, c->token.line,
                         "non-default argument follows default argument");
    }
    next_token(c);
}

/* The body of a macro or call block: notes which special names it uses, for itself and those around it. */
static void parse_macro_body(struct compiler *c, struct node *macro, const char *end)
{
    struct context saved = begin_context(c, 0, false);
    uint8_t outer = c->special;

    c->special = 0;
    macro->body = parse_inner(c, end);
    macro->flags = c->special;
    c->special |= outer;
    end_context(c, saved);
}

static struct node *parse_macro(struct compiler *c)
{
    struct node *n = parse_make(c, N_MACRO);
    struct slice name = expect_name(c);

    n->symbol = symbol_of(c, name);
    n->value = constant_text(c, name);
    if (!at_op(c, OP_LPAREN)) unexpected(c, "'('");
    parse_signature(c, n);
    parse_macro_body(c, n, "endmacro");
    return n;
}

static struct node *parse_call_block(struct compiler *c)
{
    struct node *n = parse_make(c, N_CALL_BLOCK);

    n->b = parse_make(c, N_MACRO);
    n->b->value = v_none();
    if (at_op(c, OP_LPAREN)) parse_signature(c, n->b);
    n->a = parse_expression(c, true);
    if (n->a->kind != N_CALL) compile_fail(c, TEMPLATE_SYNTAX, n->line, "expected a call");
    parse_macro_body(c, n->b, "endcall");
    return n;
}

static struct node *parse_filter_block(struct compiler *c)
{
    struct node *n = parse_make(c, N_FILTER_BLOCK);

    n->b = parse_filter(c, NULL, true);
    n->body = parse_inner(c, "endfilter");
    return n;
}

static struct node *parse_with(struct compiler *c)
{
    struct node *n = parse_make(c, N_WITH);

    while (c->token.type != T_BLOCK_END) {
        if (n->count) expect_op(c, OP_COMMA, "','");
        parse_push(c, n, parse_target_part(c, false));
        expect_op(c, OP_ASSIGN, "'='");
        parse_push(c, n, parse_expression(c, true));
    }
    n->body = parse_inner(c, "endwith");
    return n;
}

static struct node *parse_print(struct compiler *c)
{
    struct node *body = parse_make(c, N_BODY), *n;

    while (c->token.type != T_BLOCK_END) {
        if (body->count) expect_op(c, OP_COMMA, "','");
        n = parse_make(c, N_OUTPUT);
        n->a = parse_expression(c, true);
        parse_push(c, body, n);
    }
    return body;
}

static struct node *parse_block(struct compiler *c)
{
    struct node *n = parse_make(c, N_SCOPE);
    struct slice name = expect_name(c);
    struct context saved = begin_context(c, 0, false);

    skip_name(c, "scoped");
    n->body = parse_inner(c, "endblock");
    end_context(c, saved);
    if (c->token.type == T_NAME && slice_eq(c->token.text, name)) next_token(c);
    return n;
}

static struct node *parse_generation(struct compiler *c)
{
    struct node *n = parse_make(c, N_SCOPE);
    struct context saved = begin_context(c, 0, false);

    n->body = parse_inner(c, "endgeneration");
    end_context(c, saved);
    return n;
}

static struct node *parse_autoescape(struct compiler *c)
{
    struct node *n = parse_make(c, N_AUTOESCAPE);

    n->a = parse_expression(c, true);
    n->body = parse_inner(c, "endautoescape");
    return n;
}

static struct node *parse_loop_control(struct compiler *c, enum node_kind kind)
{
    struct node *n = parse_make(c, kind);

    if (!c->loops)
        compile_fail(c, TEMPLATE_SYNTAX, n->line, "'%s' outside loop",
                     kind == N_BREAK ? "break" : "continue");
    return n;
}

static struct node *parse_break(struct compiler *c)
{
    return parse_loop_control(c, N_BREAK);
}

static struct node *parse_continue(struct compiler *c)
{
    return parse_loop_control(c, N_CONTINUE);
}

static struct node *parse_statement(struct compiler *c)
{
    static const struct {
        const char *name;
        struct node *(*parse)(struct compiler *c);
    } tags[] = {
        {"set", parse_set},           {"if", parse_if},
        {"for", parse_for},           {"macro", parse_macro},
        {"call", parse_call_block},   {"filter", parse_filter_block},
        {"with", parse_with},         {"print", parse_print},
        {"block", parse_block},       {"generation", parse_generation},
        {"break", parse_break},       {"autoescape", parse_autoescape},
        {"continue", parse_continue},
    };
    static const char *const files[] = {"include", "import", "from", "extends", NULL};

    if (c->token.type != T_NAME) unexpected(c, "the name of a tag");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!at_name(c, tags[i].name)) continue;
        next_token(c);
        return tags[i].parse(c);
    }
    if (at_any(c, files))
        compile_fail(c, TEMPLATE_SYNTAX, c->token.line,
                     "'%.*s' reads another template, which is not allowed here",
                     (int)c->token.text.len, c->token.text.ptr);
    compile_fail(c, TEMPLATE_SYNTAX, c->token.line, "unknown tag '%.*s'",
                 (int)(c->token.text.len < 40 ? c->token.text.len : 40), c->token.text.ptr);
}

void parse_template(struct compiler *c, struct template *t)
{
    next_token(c);
    t->root = parse_nodes(c, NULL);
    if (c->unknown_count) {
        const struct node *n = c->unknown[0];
        compile_fail(c, TEMPLATE_SYNTAX, n->line, "no %s named '%.*s'",
                     n->kind == N_FILTER ? "filter" : "test",
                     (int)(n->value.s->len < 40 ? n->value.s->len : 40), n->value.s->ptr);
    }
    t->names = c->names;
    t->name_count = c->name_count;
}
