/* template_parse.c - tokens to nodes: jinja2's grammar, by recursive descent.
 *
 * Nesting is bounded by NESTING_MAX; chains (a + b + c, a.b.c, x | f | g, elif, else-if) are loops here and flat or
 * left-deep nodes whose depth the same bound covers. Names become symbols: indexes into a table of the template. */
#include "text/template_parse.h"

#include "base/hash.h"

enum { NESTING_MAX = 100, CHAIN_MAX = 256 };

static struct node *parse_unary(struct compiler *c, bool with_filter);
static struct node *parse_postfix(struct compiler *c, struct node *n);

/* --- tokens --- */
void next_token(struct compiler *c)
{
    if (c->has_ahead) {
        c->token = c->ahead;
        c->has_ahead = false;
    } else {
        lex_next(c, &c->token);
    }
}

const struct token *look_ahead(struct compiler *c)
{
    if (!c->has_ahead) {
        lex_next(c, &c->ahead);
        c->has_ahead = true;
    }
    return &c->ahead;
}

bool at_op(const struct compiler *c, uint8_t op)
{
    return c->token.type == T_OPERATOR && c->token.op == op;
}

static bool token_is_name(const struct token *t, const char *name)
{
    return t->type == T_NAME && slice_eq(t->text, slice_str(name));
}

bool at_name(const struct compiler *c, const char *name)
{
    return token_is_name(&c->token, name);
}

bool skip_op(struct compiler *c, uint8_t op)
{
    if (!at_op(c, op)) return false;
    next_token(c);
    return true;
}

bool skip_name(struct compiler *c, const char *name)
{
    if (!at_name(c, name)) return false;
    next_token(c);
    return true;
}

_Noreturn void unexpected(struct compiler *c, const char *wanted)
{
    char buf[48];
    const char *got = token_name(&c->token, buf, sizeof buf);

    if (wanted)
        compile_fail(c, TEMPLATE_SYNTAX, c->token.line, "expected %s, got '%s'", wanted, got);
    compile_fail(c, TEMPLATE_SYNTAX, c->token.line, "unexpected '%s'", got);
}

void expect_op(struct compiler *c, uint8_t op, const char *text)
{
    if (!skip_op(c, op)) unexpected(c, text);
}

struct slice expect_name(struct compiler *c)
{
    struct slice name = c->token.text;

    if (c->token.type != T_NAME) unexpected(c, "a name");
    next_token(c);
    return name;
}

void parse_enter(struct compiler *c)
{
    if (++c->nesting > NESTING_MAX)
        compile_fail(c, TEMPLATE_LIMIT, c->token.line, "the template is nested too deeply");
}

void parse_leave(struct compiler *c)
{
    c->nesting--;
}

/* --- nodes --- */
struct node *parse_make(struct compiler *c, enum node_kind kind)
{
    struct node *n = compile_alloc(c, sizeof *n);

    n->kind = (uint8_t)kind;
    n->line = c->token.line;
    return n;
}

/* Appends to a list whose room is the next power of two of its count. */
void *parse_grow(struct compiler *c, void *list, uint32_t count, size_t size)
{
    void *more;

    if (count & (count - 1)) return list; /* 0, 1, 2, 4, ... are full */
    more = compile_alloc(c, (count ? 2 * (size_t)count : 1) * size);
    if (count) memcpy(more, list, count * size);
    return more;
}

void parse_push(struct compiler *c, struct node *n, struct node *child)
{
    n->list = parse_grow(c, n->list, n->count, sizeof *n->list);
    n->list[n->count++] = child;
}

struct value constant_text(struct compiler *c, struct slice text)
{
    struct str *s = compile_alloc(c, sizeof *s);

    *s = (struct str){.ptr = text.ptr, .len = (uint32_t)text.len, .chars = STR_UNKNOWN};
    s->chars = str_chars(s);
    str_hash(s);
    return (struct value){.type = V_STR, .s = s};
}

static struct node *constant(struct compiler *c, struct value v)
{
    struct node *n = parse_make(c, N_CONST);

    n->value = v;
    return n;
}

static uint32_t name_slot(const struct compiler *c, struct slice name)
{
    uint32_t at = (uint32_t)hash_bytes(name.ptr, name.len, 0) & c->name_mask;

    while (c->name_index[at] && !slice_eq(c->names[c->name_index[at] - 1], name))
        at = (at + 1) & c->name_mask;
    return at;
}

uint32_t symbol_of(struct compiler *c, struct slice name)
{
    uint32_t slot;

    if (c->name_count * 2 >= c->name_mask) {
        c->name_mask = c->name_mask ? c->name_mask * 2 + 1 : 63;
        c->name_index = compile_alloc(c, (c->name_mask + (size_t)1) * sizeof *c->name_index);
        for (uint32_t i = 0; i < c->name_count; i++)
            c->name_index[name_slot(c, c->names[i])] = i + 1;
    }
    slot = name_slot(c, name);
    if (!c->name_index[slot]) {
        c->names = parse_grow(c, c->names, c->name_count, sizeof *c->names);
        c->names[c->name_count++] = name;
        c->name_index[slot] = c->name_count;
    }
    return c->name_index[slot] - 1;
}

struct node *name_node(struct compiler *c, struct slice name)
{
    struct node *n = parse_make(c, N_NAME);

    n->symbol = symbol_of(c, name);
    n->value = constant_text(c, name);
    if (slice_eq(name, SLICE("caller"))) c->special |= USES_CALLER;
    if (slice_eq(name, SLICE("varargs"))) c->special |= USES_VARARGS;
    if (slice_eq(name, SLICE("kwargs"))) c->special |= USES_KWARGS;
    return n;
}

/* --- primaries --- */
bool tuple_ends(const struct compiler *c, const char *end)
{
    return c->token.type == T_VARIABLE_END || c->token.type == T_BLOCK_END || at_op(c, OP_RPAREN) ||
           (end && at_name(c, end));
}

/* One expression, or several with commas. end: a name that ends it too. in_parens: () is a tuple. */
struct node *parse_tuple(struct compiler *c, bool with_cond, const char *end, bool in_parens)
{
    struct node *tuple = parse_make(c, N_TUPLE);
    bool is_tuple = false;

    for (;;) {
        if (tuple->count) {
            expect_op(c, OP_COMMA, "','");
        }
        if (tuple_ends(c, end)) break;
        parse_push(c, tuple, parse_expression(c, with_cond));
        if (!at_op(c, OP_COMMA)) break;
        is_tuple = true;
    }
    if (is_tuple) return tuple;
    if (tuple->count) return tuple->list[0];
    if (!in_parens) unexpected(c, "an expression");
    return tuple;
}

static struct node *parse_string(struct compiler *c)
{
    struct slice text = c->token.text;

    next_token(c);
    if (c->token.type != T_STRING) return constant(c, constant_text(c, text));
    while (c->token.type == T_STRING) { /* 'a' 'b' */
        char *both = compile_alloc(c, text.len + c->token.text.len + 1);
        if (text.len) memcpy(both, text.ptr, text.len);
        if (c->token.text.len) memcpy(both + text.len, c->token.text.ptr, c->token.text.len);
        text = slice_of(both, text.len + c->token.text.len);
        next_token(c);
    }
    return constant(c, constant_text(c, text));
}

static struct node *parse_list(struct compiler *c)
{
    struct node *n = parse_make(c, N_LIST);

    next_token(c);
    while (!at_op(c, OP_RBRACKET)) {
        if (n->count) expect_op(c, OP_COMMA, "','");
        if (at_op(c, OP_RBRACKET)) break;
        parse_push(c, n, parse_expression(c, true));
    }
    next_token(c);
    return n;
}

static struct node *parse_dict(struct compiler *c)
{
    struct node *n = parse_make(c, N_DICT);

    next_token(c);
    while (!at_op(c, OP_RBRACE)) {
        if (n->count) expect_op(c, OP_COMMA, "','");
        if (at_op(c, OP_RBRACE)) break;
        parse_push(c, n, parse_expression(c, true));
        expect_op(c, OP_COLON, "':'");
        parse_push(c, n, parse_expression(c, true));
    }
    next_token(c);
    return n;
}

static struct node *parse_name(struct compiler *c)
{
    struct slice name = c->token.text;

    next_token(c);
    if (slice_eq(name, SLICE("true")) || slice_eq(name, SLICE("True")))
        return constant(c, v_bool(true));
    if (slice_eq(name, SLICE("false")) || slice_eq(name, SLICE("False")))
        return constant(c, v_bool(false));
    if (slice_eq(name, SLICE("none")) || slice_eq(name, SLICE("None")))
        return constant(c, v_none());
    return name_node(c, name);
}

struct node *parse_primary(struct compiler *c)
{
    struct node *n;

    switch (c->token.type) {
    case T_NAME: return parse_name(c);
    case T_STRING: return parse_string(c);
    case T_INTEGER:
    case T_FLOAT:
        n = constant(c, c->token.value);
        next_token(c);
        return n;
    default: break;
    }
    if (at_op(c, OP_LBRACKET)) return parse_list(c);
    if (at_op(c, OP_LBRACE)) return parse_dict(c);
    if (!at_op(c, OP_LPAREN)) unexpected(c, NULL);
    next_token(c);
    n = parse_tuple(c, true, NULL, true);
    expect_op(c, OP_RPAREN, "')'");
    return n;
}

/* --- postfix: subscripts, calls, filters, tests --- */
static struct node *parse_slice_part(struct compiler *c)
{
    if (at_op(c, OP_COLON) || at_op(c, OP_COMMA) || at_op(c, OP_RBRACKET)) return NULL;
    return parse_expression(c, true);
}

static struct node *parse_subscript_part(struct compiler *c, struct node *object)
{
    struct node *first = at_op(c, OP_COLON) ? NULL : parse_expression(c, true), *n;

    if (!at_op(c, OP_COLON)) {
        n = parse_make(c, N_ITEM);
        n->a = object;
        n->b = first;
        return n;
    }
    n = parse_make(c, N_SLICE);
    n->a = object;
    next_token(c);
    parse_push(c, n, first);
    parse_push(c, n, parse_slice_part(c));
    parse_push(c, n, skip_op(c, OP_COLON) ? parse_slice_part(c) : NULL);
    return n;
}

static struct node *parse_subscript(struct compiler *c, struct node *object)
{
    struct node *n, *tuple;

    if (skip_op(c, OP_DOT)) {
        n = parse_make(c, c->token.type == T_NAME ? N_ATTR : N_ITEM);
        n->a = object;
        if (n->kind == N_ATTR) {
            n->value = constant_text(c, c->token.text);
        } else {
            if (c->token.type != T_INTEGER) unexpected(c, "a name or a number");
            n->b = constant(c, c->token.value);
        }
        next_token(c);
        return n;
    }
    next_token(c);
    if (at_op(c, OP_RBRACKET)) unexpected(c, "an index");
    n = parse_subscript_part(c, object);
    if (at_op(c, OP_COMMA)) { /* x[1, 2] */
        if (n->kind == N_SLICE)
            compile_fail(c, TEMPLATE_SYNTAX, c->token.line, "a slice stands alone in brackets");
        tuple = parse_make(c, N_TUPLE);
        parse_push(c, tuple, n->b);
        while (skip_op(c, OP_COMMA))
            parse_push(c, tuple, parse_expression(c, true));
        n->b = tuple;
    }
    expect_op(c, OP_RBRACKET, "']'");
    return n;
}

static struct call_args *parse_args(struct compiler *c)
{
    struct call_args *args = compile_alloc(c, sizeof *args);
    bool comma = false;

    next_token(c);
    while (!at_op(c, OP_RPAREN)) {
        if (comma) {
            expect_op(c, OP_COMMA, "','");
            if (at_op(c, OP_RPAREN)) break;
        }
        comma = true;
        if (at_op(c, OP_MUL) && !args->spread && !args->spread_named) {
            next_token(c);
            args->spread = parse_expression(c, true);
        } else if (at_op(c, OP_POW) && !args->spread_named) {
            next_token(c);
            args->spread_named = parse_expression(c, true);
        } else if (c->token.type == T_NAME && look_ahead(c)->type == T_OPERATOR &&
                   look_ahead(c)->op == OP_ASSIGN && !args->spread_named) {
            uint32_t n = args->named_count;
            args->names = parse_grow(c, args->names, n, sizeof *args->names);
            args->named = parse_grow(c, args->named, n, sizeof(struct node *));
            args->names[n] = constant_text(c, c->token.text);
            next_token(c);
            next_token(c);
            args->named[n] = parse_expression(c, true);
            args->named_count++;
        } else {
            if (args->spread || args->spread_named || args->named_count)
                compile_fail(c, TEMPLATE_SYNTAX, c->token.line,
                             "invalid syntax for function call expression");
            args->pos = parse_grow(c, args->pos, args->count, sizeof(struct node *));
            args->pos[args->count++] = parse_expression(c, true);
        }
    }
    next_token(c);
    return args;
}

/* The dotted name of a filter or test, without spaces in between. */
static struct slice dotted_name(struct compiler *c)
{
    struct slice name = expect_name(c);

    while (skip_op(c, OP_DOT)) {
        struct slice part = expect_name(c);
        char *both = compile_alloc(c, name.len + part.len + 2);
        memcpy(both, name.ptr, name.len);
        both[name.len] = '.';
        memcpy(both + name.len + 1, part.ptr, part.len);
        name = slice_of(both, name.len + 1 + part.len);
    }
    return name;
}

static void note_unknown(struct compiler *c, struct node *n)
{
    if (n->builtin || c->soft) return;
    c->unknown = parse_grow(c, c->unknown, c->unknown_count, sizeof(struct node *));
    c->unknown[c->unknown_count++] = n;
}

/* `|` is the current token unless `inline_start`. */
struct node *parse_filter(struct compiler *c, struct node *input, bool inline_start)
{
    for (uint32_t count = 0; at_op(c, OP_PIPE) || inline_start; count++) {
        struct node *n = parse_make(c, N_FILTER);
        if (count == CHAIN_MAX)
            compile_fail(c, TEMPLATE_LIMIT, n->line, "more than %d filters in a row", CHAIN_MAX);
        if (!inline_start) next_token(c);
        inline_start = false;
        n->value = constant_text(c, dotted_name(c));
        n->builtin = filter_find(slice_of(n->value.s->ptr, n->value.s->len));
        n->a = input;
        if (at_op(c, OP_LPAREN)) n->args = parse_args(c);
        note_unknown(c, n);
        input = n;
    }
    return input;
}

static bool test_argument_follows(const struct compiler *c)
{
    if (c->token.type == T_NAME)
        return !at_name(c, "else") && !at_name(c, "or") && !at_name(c, "and");
    return c->token.type == T_STRING || c->token.type == T_INTEGER || c->token.type == T_FLOAT ||
           at_op(c, OP_LBRACKET) || at_op(c, OP_LBRACE);
}

static struct node *parse_test(struct compiler *c, struct node *input)
{
    struct node *n = parse_make(c, N_TEST), *negated;
    bool inverse;

    next_token(c);
    inverse = skip_name(c, "not");
    n->value = constant_text(c, dotted_name(c));
    n->builtin = test_find(slice_of(n->value.s->ptr, n->value.s->len));
    n->a = input;
    if (at_op(c, OP_LPAREN)) {
        n->args = parse_args(c);
    } else if (test_argument_follows(c)) {
        if (at_name(c, "is"))
            compile_fail(c, TEMPLATE_SYNTAX, n->line, "you cannot chain multiple tests with is");
        n->args = compile_alloc(c, sizeof *n->args);
        n->args->pos = compile_alloc(c, sizeof(struct node *));
        n->args->pos[0] = parse_postfix(c, parse_primary(c));
        n->args->count = 1;
    }
    note_unknown(c, n);
    if (!inverse) return n;
    negated = parse_make(c, N_NOT);
    negated->a = n;
    return negated;
}

static struct node *parse_call(struct compiler *c, struct node *callee)
{
    struct node *n = parse_make(c, N_CALL);

    n->a = callee;
    n->args = parse_args(c);
    return n;
}

static void check_chain(struct compiler *c, uint32_t count)
{
    if (count > CHAIN_MAX)
        compile_fail(c, TEMPLATE_LIMIT, c->token.line, "more than %d links in a chain", CHAIN_MAX);
}

static struct node *parse_postfix(struct compiler *c, struct node *n)
{
    for (uint32_t count = 0;; count++) {
        check_chain(c, count);
        if (at_op(c, OP_DOT) || at_op(c, OP_LBRACKET))
            n = parse_subscript(c, n);
        else if (at_op(c, OP_LPAREN))
            n = parse_call(c, n);
        else
            return n;
    }
}

static struct node *parse_filter_expression(struct compiler *c, struct node *n)
{
    for (uint32_t count = 0;; count++) {
        check_chain(c, count);
        if (at_op(c, OP_PIPE))
            n = parse_filter(c, n, false);
        else if (at_name(c, "is"))
            n = parse_test(c, n);
        else if (at_op(c, OP_LPAREN))
            n = parse_call(c, n);
        else
            return n;
    }
}

/* --- operators, from the tightest --- */
static struct node *parse_unary(struct compiler *c, bool with_filter)
{
    struct node *n;

    parse_enter(c);
    if (at_op(c, OP_SUB) || at_op(c, OP_ADD)) {
        n = parse_make(c, at_op(c, OP_SUB) ? N_NEG : N_POS);
        next_token(c);
        n->a = parse_unary(c, false);
    } else {
        n = parse_primary(c);
    }
    n = parse_postfix(c, n);
    if (with_filter) n = parse_filter_expression(c, n);
    parse_leave(c);
    return n;
}

static void push_op(struct compiler *c, struct node **chain, enum node_kind kind,
                    struct node *first, uint8_t op)
{
    if (!*chain) {
        *chain = parse_make(c, kind);
        parse_push(c, *chain, first);
    }
    (*chain)->ops = parse_grow(c, (*chain)->ops, (*chain)->count - 1, 1);
    (*chain)->ops[(*chain)->count - 1] = op;
}

static struct node *parse_pow(struct compiler *c)
{
    struct node *first = parse_unary(c, true), *chain = NULL;

    while (at_op(c, OP_POW)) {
        push_op(c, &chain, N_CHAIN, first, OP_POW);
        next_token(c);
        parse_push(c, chain, parse_unary(c, true));
    }
    return chain ? chain : first;
}

static struct node *parse_product(struct compiler *c)
{
    struct node *first = parse_pow(c), *chain = NULL;

    while (at_op(c, OP_MUL) || at_op(c, OP_DIV) || at_op(c, OP_FLOORDIV) || at_op(c, OP_MOD)) {
        push_op(c, &chain, N_CHAIN, first, c->token.op);
        next_token(c);
        parse_push(c, chain, parse_pow(c));
    }
    return chain ? chain : first;
}

static struct node *parse_concat(struct compiler *c)
{
    struct node *first = parse_product(c), *n = NULL;

    while (at_op(c, OP_TILDE)) {
        if (!n) {
            n = parse_make(c, N_CONCAT);
            parse_push(c, n, first);
        }
        next_token(c);
        parse_push(c, n, parse_product(c));
    }
    return n ? n : first;
}

static struct node *parse_sum(struct compiler *c)
{
    struct node *first = parse_concat(c), *chain = NULL;

    while (at_op(c, OP_ADD) || at_op(c, OP_SUB)) {
        push_op(c, &chain, N_CHAIN, first, c->token.op);
        next_token(c);
        parse_push(c, chain, parse_concat(c));
    }
    return chain ? chain : first;
}

/* The comparison at the current token, which is skipped up to its last part; OP_NONE: none. */
static uint8_t comparison(struct compiler *c)
{
    if (c->token.type == T_OPERATOR && c->token.op >= OP_EQ && c->token.op <= OP_GE)
        return c->token.op;
    if (at_name(c, "in")) return OP_IN;
    if (at_name(c, "not") && token_is_name(look_ahead(c), "in")) {
        next_token(c);
        return OP_NOT_IN;
    }
    return OP_NONE;
}

static struct node *parse_compare(struct compiler *c)
{
    struct node *first = parse_sum(c), *chain = NULL;
    uint8_t op;

    while ((op = comparison(c)) != OP_NONE) {
        push_op(c, &chain, N_COMPARE, first, op);
        next_token(c);
        parse_push(c, chain, parse_sum(c));
    }
    return chain ? chain : first;
}

static struct node *parse_not(struct compiler *c)
{
    struct node *n;

    if (!at_name(c, "not")) return parse_compare(c);
    parse_enter(c);
    n = parse_make(c, N_NOT);
    next_token(c);
    n->a = parse_not(c);
    parse_leave(c);
    return n;
}

static struct node *parse_and(struct compiler *c)
{
    struct node *first = parse_not(c), *n = NULL;

    while (skip_name(c, "and")) {
        if (!n) {
            n = parse_make(c, N_AND);
            parse_push(c, n, first);
        }
        parse_push(c, n, parse_not(c));
    }
    return n ? n : first;
}

static struct node *parse_or(struct compiler *c)
{
    struct node *first = parse_and(c), *n = NULL;

    while (skip_name(c, "or")) {
        if (!n) {
            n = parse_make(c, N_OR);
            parse_push(c, n, first);
        }
        parse_push(c, n, parse_and(c));
    }
    return n ? n : first;
}

/* a if b else c if d else e: the else branches are a loop; each `a if b` may itself be followed by `if`. */
struct node *parse_expression(struct compiler *c, bool with_cond)
{
    uint32_t unknown = c->unknown_count, links = 0;
    struct node *first, **tail = &first, *n;

    parse_enter(c);
    first = parse_or(c);
    while (with_cond && at_name(c, "if")) {
        if (++links > CHAIN_MAX)
            compile_fail(c, TEMPLATE_LIMIT, c->token.line, "too many inline ifs in a row");
        next_token(c);
        n = parse_make(c, N_COND);
        n->a = *tail;
        n->b = parse_or(c);
        *tail = n;
        if (skip_name(c, "else")) {
            n->c = parse_or(c);
            tail = &n->c;
        }
    }
    if (links) c->unknown_count = unknown; /* in branches they are faults only when they run */
    parse_leave(c);
    return first;
}
