/* template_parse.h - what the two halves of the parser share: template_parse.c (expressions) and
 * template_statements.c (tags). Private to them. */
#pragma once

#include "text/template_ast.h"

void next_token(struct compiler *c);
const struct token *look_ahead(struct compiler *c); /* the token after the current one */
bool at_op(const struct compiler *c, uint8_t op);
bool at_name(const struct compiler *c, const char *name);
bool skip_op(struct compiler *c, uint8_t op);
bool skip_name(struct compiler *c, const char *name);
void expect_op(struct compiler *c, uint8_t op, const char *text);
struct slice expect_name(struct compiler *c);
_Noreturn void unexpected(struct compiler *c, const char *wanted); /* wanted may be NULL */
bool tuple_ends(const struct compiler *c, const char *end);

void parse_enter(struct compiler *c); /* one level of nesting deeper */
void parse_leave(struct compiler *c);
struct node *parse_make(struct compiler *c, enum node_kind kind);
void parse_push(struct compiler *c, struct node *n, struct node *child);
void *parse_grow(struct compiler *c, void *list, uint32_t count, size_t size);
uint32_t symbol_of(struct compiler *c, struct slice name);
struct value constant_text(struct compiler *c, struct slice text);
struct node *name_node(struct compiler *c, struct slice name);

struct node *parse_expression(struct compiler *c, bool with_cond);
struct node *parse_primary(struct compiler *c);
/* One expression, or several with commas. end: a name that ends it too (NULL: none); in_parens: () is a tuple. */
struct node *parse_tuple(struct compiler *c, bool with_cond, const char *end, bool in_parens);
/* The filters at the current token; inline_start: the first has no `|`. */
struct node *parse_filter(struct compiler *c, struct node *input, bool inline_start);
