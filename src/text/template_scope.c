/* template_scope.c - which value a name has.
 *
 * Scopes: a `set` binds in the innermost scope; a lookup goes outwards to the root, then to the context's variables,
 * then to the globals. For bodies, macros, call, filter and set blocks and `with` open a scope, `if` does not; a
 * macro sees the scope where it was defined. Each turn of a loop starts with a fresh scope. */
#include "text/template_ast.h"

static struct value *find_binding(struct scope *scope, uint32_t symbol)
{
    for (uint32_t i = 0; i < scope->count; i++)
        if (scope->items[i].sym == symbol) return &scope->items[i].value;
    return NULL;
}

static struct value *outer_symbol(struct render *r, uint32_t symbol)
{
    struct value *v = &r->symbols[symbol], *given;
    struct slice name = r->t->names[symbol];
    const struct builtin *global;

    if (v->type != V_ABSENT) return v;
    given = dict_find(r, r->context, v_str(r, name.ptr, name.len, false));
    global = given ? NULL : global_find(name);
    if (given)
        *v = *given;
    else if (global)
        *v = (struct value){.type = V_BUILTIN, .builtin = global};
    else {
        struct sink s;
        sink_init(&s, r);
        sink_put(&s, "'", 1, false);
        sink_put(&s, name.ptr, name.len < 80 ? name.len : 80, false);
        sink_put(&s, "' is undefined", 15, false);
        *v = v_undefined(s.ptr);
    }
    return v;
}

struct value scope_lookup(struct render *r, uint32_t symbol)
{
    struct value *v;

    for (struct scope *scope = r->scope; scope; scope = scope->parent) {
        v = find_binding(scope, symbol);
        if (v) return *v;
    }
    return *outer_symbol(r, symbol);
}

void scope_bind(struct render *r, uint32_t symbol, struct value value)
{
    struct scope *scope = r->scope;
    struct value *v = find_binding(scope, symbol);

    if (v) {
        *v = value;
        return;
    }
    if (scope->count == scope->cap) {
        uint32_t cap = scope->cap ? scope->cap * 2 : 8;
        struct binding *more = render_alloc(r, cap * sizeof *more);
        if (scope->count) memcpy(more, scope->items, scope->count * sizeof *more);
        scope->items = more;
        scope->cap = cap;
    }
    scope->items[scope->count++] = (struct binding){symbol, value};
}

struct scope *scope_open(struct render *r, struct scope *parent)
{
    struct scope *scope = render_alloc(r, sizeof *scope);

    scope->parent = parent;
    return scope;
}

void scope_bind_target(struct render *r, const struct node *target, struct value value)
{
    struct list *items;
    struct value ns;

    switch (target->kind) {
    case N_NAME: scope_bind(r, target->symbol, value); return;
    case N_SET_ATTR:
        ns = scope_lookup(r, target->symbol);
        if (ns.type != V_NAMESPACE)
            template_fail(r, TEMPLATE_RUNTIME, "cannot assign attribute on non-namespace object");
        if (target->value.s->len && target->value.s->ptr[0] == '_')
            template_fail(r, TEMPLATE_SECURITY, "underscore-prefixed attribute of a namespace");
        dict_set(r, ns.d, target->value, value);
        return;
    default: break;
    }
    items = value_items(r, value);
    if (items->count != target->count)
        template_fail(r, TEMPLATE_RUNTIME, "%s values to unpack (expected %u)",
                      items->count > target->count ? "too many" : "not enough", target->count);
    for (uint32_t i = 0; i < target->count; i++)
        scope_bind_target(r, target->list[i], items->items[i]);
}
