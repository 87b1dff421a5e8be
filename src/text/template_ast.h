/* template_ast.h - a parsed template (private to template*.c): nodes in the template's own arena, immutable once
 * parsed. The parser bounds the nesting, so that a walk needs no limit of its own. */
#pragma once

#include "text/template_value.h"

enum token_type {
    T_END, /* of the template */
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_OPERATOR
};
enum operator_type {
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
    OP_TILDE,
    OP_LPAREN,
    OP_RPAREN,
    OP_LBRACKET,
    OP_RBRACKET,
    OP_LBRACE,
    OP_RBRACE,
    OP_ASSIGN,
    OP_DOT,
    OP_COLON,
    OP_PIPE,
    OP_COMMA,
    OP_SEMICOLON
};
struct token {
    uint8_t type;       /* enum token_type */
    uint8_t op;         /* enum operator_type */
    uint32_t line;      /* from 1 */
    struct slice text;  /* data, name, operator, or a string's contents after its escapes */
    struct value value; /* T_INTEGER, T_FLOAT */
};

/* State of the compiler; a fault ends it by longjmp, all memory is in `arena`. */
struct compiler {
    struct arena *arena;
    jmp_buf failed;
    enum template_fault fault;
    struct error *err;
    /* lexer */
    const char *src; /* newlines are \n, the last one is gone */
    uint32_t len, at, line;
    bool in_tag, in_block, line_starting;
    char brackets[256]; /* what closes the open ones */
    uint32_t bracket_count;
    uint8_t pending; /* token that follows a piece of data */
    /* parser */
    struct token token, ahead;
    bool has_ahead;
    uint32_t nesting;
    uint32_t loops;        /* enclosing loops that break and continue may end */
    bool soft;             /* inside {% if %}: an unknown filter is a fault only when it runs */
    uint8_t special;       /* names that a macro's body uses: enum macro_special bits */
    struct node **unknown; /* calls of filters and tests that do not exist */
    uint32_t unknown_count, unknown_cap;
    struct slice *names; /* [symbol] */
    uint32_t name_count, name_cap;
    uint32_t *name_index; /* open addressing, symbol + 1 */
    uint32_t name_mask;
};
_Noreturn void compile_fail(struct compiler *c, enum template_fault fault, uint32_t line,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));
void *compile_alloc(struct compiler *c, size_t size);
void lex_init(struct compiler *c, struct slice source);
void lex_next(struct compiler *c, struct token *out);
const char *token_name(const struct token *token, char *buf, size_t size);

enum node_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,    /* list: key, value, key, value */
    N_CHAIN,   /* list: operands; ops[i] between i and i+1; one precedence, left to right */
    N_CONCAT,  /* list */
    N_COMPARE, /* as N_CHAIN */
    N_AND,     /* list */
    N_OR,
    N_NOT,
    N_NEG,
    N_POS,
    N_COND,  /* a if b else c (c may be NULL) */
    N_ATTR,  /* a.value */
    N_ITEM,  /* a[b] */
    N_SLICE, /* a[list[0]:list[1]:list[2]], entries may be NULL */
    N_CALL,
    N_FILTER, /* a | value(args); a NULL: of a block's text */
    N_TEST,
    /* statements */
    N_DATA,         /* value */
    N_OUTPUT,       /* a */
    N_IF,           /* list: test, body, test, body ...; c: else */
    N_FOR,          /* a target, b iterable, c filter, body, other */
    N_SET,          /* a target, b value */
    N_SET_BLOCK,    /* a target, b filter chain or NULL, body */
    N_SET_ATTR,     /* target only: symbol.value */
    N_MACRO,        /* symbol, list: parameters (N_NAME), defaults, body */
    N_CALL_BLOCK,   /* a call, b the anonymous macro */
    N_FILTER_BLOCK, /* b filter chain, body */
    N_WITH,         /* list: target, value ...; body */
    N_SCOPE,        /* body: generation, block */
    N_AUTOESCAPE,   /* a, body */
    N_BREAK,
    N_CONTINUE,
    N_BODY /* list */
};
enum macro_special { USES_CALLER = 1, USES_VARARGS = 2, USES_KWARGS = 4 };

struct call_args {
    struct node **pos;
    struct value *names;
    struct node **named;
    uint32_t count, named_count;
    struct node *spread, *spread_named; /* *args, **kwargs */
};
struct node {
    uint8_t kind;
    uint8_t flags; /* N_FOR: recursive; N_MACRO: macro_special; N_CALL_BLOCK and so on: 0 */
    uint32_t line;
    uint32_t symbol;
    uint32_t count;
    struct node **list;
    uint8_t *ops;
    struct node *a, *b, *c, *body, *other;
    struct node **defaults; /* N_MACRO: [count], NULL where none */
    struct call_args *args;
    const struct builtin *builtin; /* N_FILTER, N_TEST; NULL: unknown */
    struct value value;
};

struct template
{
    struct arena arena;
    struct node *root;
    struct slice *names;
    uint32_t name_count;
};
/* Fills t->root and names from the compiler's source. */
void parse_template(struct compiler *c, struct template *t);
/* Names (template_scope.c). */
struct value scope_lookup(struct render *r, uint32_t symbol);
void scope_bind(struct render *r, uint32_t symbol, struct value value); /* in the innermost scope */
struct scope *scope_open(struct render *r, struct scope *parent);
/* Assigns to a name, a tuple of targets or an attribute of a namespace. */
void scope_bind_target(struct render *r, const struct node *target, struct value value);
/* Runs the root body (template_eval.c). */
void run_template(struct render *r);
struct value eval(struct render *r, const struct node *n);
