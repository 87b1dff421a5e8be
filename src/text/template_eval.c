/* template_eval.c - runs the nodes of a template: expressions to values, statements to text in r->out, which is the
 * output or a capture (macro, call, set and filter blocks). Every recursion passes render_enter. */
#include "text/template_ast.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
static enum flow run_nodes(struct render *r, const struct node *body);

/* --- expressions --- */
static void push_named(struct render *r, struct args *args, struct value name, struct value value)
{
    if (!is_str(name)) template_fail(r, TEMPLATE_RUNTIME, "keywords must be strings");
    for (uint32_t i = 0; i < args->named_count; i++)
        if (str_equal(args->names[i].s, name.s))
            template_fail(r, TEMPLATE_RUNTIME, "got multiple values for keyword argument '%.*s'",
                          (int)(name.s->len < 80 ? name.s->len : 80), name.s->ptr);
    args->names[args->named_count] = name;
    args->named[args->named_count++] = value;
}

static void eval_args(struct render *r, const struct call_args *from, struct args *to)
{
    struct value spread = v_absent(), named = v_absent();
    uint32_t count, named_count;
    struct list *more = NULL;

    *to = (struct args){0};
    if (!from) return;
    to->pos = from->count ? render_alloc(r, from->count * sizeof *to->pos) : NULL;
    for (; to->count < from->count; to->count++)
        to->pos[to->count] = eval(r, from->pos[to->count]);
    count = from->count;
    named_count = from->named_count;
    if (from->named_count) to->named = render_alloc(r, from->named_count * sizeof *to->named);
    for (uint32_t i = 0; i < from->named_count; i++)
        to->named[i] = eval(r, from->named[i]);
    if (from->spread) spread = eval(r, from->spread);
    if (from->spread_named) named = eval(r, from->spread_named);
    if (spread.type != V_ABSENT) {
        struct value *all;
        more = value_items(r, spread);
        all = render_alloc(r, (count + (size_t)more->count) * sizeof *all);
        if (count) memcpy(all, to->pos, count * sizeof *all);
        if (more->count) memcpy(all + count, more->items, more->count * sizeof *all);
        to->pos = all;
        to->count = count + more->count;
    }
    if (named.type != V_ABSENT) {
        if (named.type != V_DICT)
            template_fail(r, TEMPLATE_RUNTIME, "argument after ** must be a mapping, not %s",
                          type_name(named));
        named_count += named.d->count;
    }
    if (!named_count) return;
    struct value *values = to->named;
    to->names = render_alloc(r, named_count * sizeof *to->names);
    to->named = render_alloc(r, named_count * sizeof *to->named);
    for (uint32_t i = 0; i < from->named_count; i++)
        push_named(r, to, from->names[i], values[i]);
    for (uint32_t i = 0; named.type == V_DICT && i < named.d->count; i++)
        push_named(r, to, named.d->entries[i].key, named.d->entries[i].value);
}

struct value call_value(struct render *r, struct value callee, const struct args *args)
{
    struct value self;

    switch (callee.type) {
    case V_BUILTIN: return call_builtin(r, callee.builtin, NULL, args);
    case V_METHOD:
        self = callee.method->self;
        return call_builtin(r, callee.method->builtin, &self, args);
    case V_MACRO: return call_macro(r, callee.macro, args);
    case V_LOOP:
        if (args->count != 1 || args->named_count)
            template_fail(r, TEMPLATE_RUNTIME, "loop() takes the items to loop over");
        return call_loop(r, callee.loop, args->pos[0]);
    case V_JOINER:
        if (callee.joiner->used) return callee.joiner->separator;
        callee.joiner->used = true;
        return v_text(r, "");
    case V_UNDEFINED: fail_undefined(r, callee);
    default: template_fail(r, TEMPLATE_RUNTIME, "'%s' object is not callable", type_name(callee));
    }
}

static struct value eval_call(struct render *r, const struct node *n, struct value caller)
{
    struct value callee = eval(r, n->a);
    struct args args;

    eval_args(r, n->args, &args);
    if (caller.type != V_ABSENT) {
        struct args more = args;
        more.names = render_alloc(r, (args.named_count + (size_t)1) * sizeof *more.names);
        more.named = render_alloc(r, (args.named_count + (size_t)1) * sizeof *more.named);
        more.named_count = 0;
        for (uint32_t i = 0; i < args.named_count; i++)
            push_named(r, &more, args.names[i], args.named[i]);
        push_named(r, &more, v_text(r, "caller"), caller);
        args = more;
    }
    return call_value(r, callee, &args);
}

static struct value eval_filter(struct render *r, const struct node *n, struct value input)
{
    struct args args;
    struct value first = n->a ? eval(r, n->a) : input;

    if (!n->builtin)
        template_fail(r, TEMPLATE_RUNTIME, "no %s named '%.*s'",
                      n->kind == N_FILTER ? "filter" : "test",
                      (int)(n->value.s->len < 80 ? n->value.s->len : 80), n->value.s->ptr);
    eval_args(r, n->args, &args);
    return call_builtin(r, n->builtin, &first, &args);
}

/* A chain of filters over the text of a block; the innermost has no input of its own. */
static struct value filter_text(struct render *r, const struct node *n, struct value text)
{
    if (n->a) text = filter_text(r, n->a, text);
    struct node top = *n;
    top.a = NULL;
    return eval_filter(r, &top, text);
}

static bool compare(struct render *r, uint8_t op, struct value a, struct value b)
{
    static const char *const names[] = {
        [OP_LT] = "<", [OP_LE] = "<=", [OP_GT] = ">", [OP_GE] = ">="};
    bool ordered;
    int order;

    switch (op) {
    case OP_EQ: return value_equal(r, a, b);
    case OP_NE: return !value_equal(r, a, b);
    case OP_IN: return value_contains(r, b, a);
    case OP_NOT_IN: return !value_contains(r, b, a);
    default: break;
    }
    order = value_compare(r, a, b, names[op], &ordered);
    if (!ordered) return false;
    return op == OP_LT   ? order < 0
           : op == OP_LE ? order <= 0
           : op == OP_GT ? order > 0
                         : order >= 0;
}

static struct value eval_compare(struct render *r, const struct node *n)
{
    struct value left = eval(r, n->list[0]);

    for (uint32_t i = 1; i < n->count; i++) {
        struct value right = eval(r, n->list[i]);
        if (!compare(r, n->ops[i - 1], left, right)) return v_bool(false);
        left = right;
    }
    return v_bool(true);
}

static struct value eval_concat(struct render *r, const struct node *n)
{
    struct value text = v_text(r, ""), *parts = render_alloc(r, n->count * sizeof *parts);
    bool markup = false;

    for (uint32_t i = 0; i < n->count; i++) {
        parts[i] = eval(r, n->list[i]);
        markup |= r->autoescape && is_str(parts[i]) && parts[i].sub;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        struct value part = markup ? value_escape(r, parts[i]) : value_display(r, parts[i]);
        if (i == 0) {
            text = part;
            continue;
        }
        text = str_concat(r, text, part);
    }
    text.sub = markup;
    return text;
}

static struct value eval_negative(struct render *r, const struct node *n)
{
    struct value v = eval(r, n->a);

    if (v.type == V_UNDEFINED) fail_undefined(r, v);
    if (!is_number(v))
        template_fail(r, TEMPLATE_RUNTIME, "bad operand type for unary %c: '%s'",
                      n->kind == N_NEG ? '-' : '+', type_name(v));
    if (v.type == V_FLOAT) return v_float(n->kind == N_NEG ? -v.f : v.f);
    if (n->kind == N_POS) return v_int(as_int(v));
    if (as_int(v) == INT64_MIN) template_fail(r, TEMPLATE_LIMIT, "an integer does not fit 64 bits");
    return v_int(-as_int(v));
}

static struct value eval_list(struct render *r, const struct node *n)
{
    struct list *l = list_make(r, n->count);

    for (uint32_t i = 0; i < n->count; i++)
        list_push(r, l, eval(r, n->list[i]));
    return n->kind == N_LIST ? v_list(l) : v_tuple(l);
}

static struct value eval_dict(struct render *r, const struct node *n)
{
    struct dict *d = dict_make(r, n->count / 2);

    for (uint32_t i = 0; i < n->count; i += 2) {
        struct value key = eval(r, n->list[i]);
        dict_set(r, d, key, eval(r, n->list[i + 1]));
    }
    return v_dict(d);
}

static struct value eval_chain(struct render *r, const struct node *n)
{
    struct value v = eval(r, n->list[0]);

    for (uint32_t i = 1; i < n->count; i++) {
        render_step(r, 1);
        v = binary_op(r, n->ops[i - 1], v, eval(r, n->list[i]));
    }
    return v;
}

static struct value eval_logic(struct render *r, const struct node *n)
{
    struct value v = eval(r, n->list[0]);

    for (uint32_t i = 1; i < n->count && value_true(v) == (n->kind == N_AND); i++)
        v = eval(r, n->list[i]);
    return v;
}

static struct value eval_cond(struct render *r, const struct node *n)
{
    while (n->kind == N_COND) {
        if (value_true(eval(r, n->b))) return eval(r, n->a);
        if (!n->c)
            return v_undefined(
                "the inline if-expression evaluated to false and no else section was "
                "defined");
        n = n->c;
    }
    return eval(r, n);
}

static struct value eval_slice(struct render *r, const struct node *n)
{
    struct value object = eval(r, n->a), part[3];

    for (int i = 0; i < 3; i++)
        part[i] = n->list[i] ? eval(r, n->list[i]) : v_none();
    return value_slice(r, object, part[0], part[1], part[2]);
}

static struct value eval_other(struct render *r, const struct node *n)
{
    struct value v;

    switch (n->kind) {
    case N_LIST:
    case N_TUPLE: return eval_list(r, n);
    case N_DICT: return eval_dict(r, n);
    case N_CHAIN: return eval_chain(r, n);
    case N_CONCAT: return eval_concat(r, n);
    case N_COMPARE: return eval_compare(r, n);
    case N_AND:
    case N_OR: return eval_logic(r, n);
    case N_NOT: return v_bool(!value_true(eval(r, n->a)));
    case N_NEG:
    case N_POS: return eval_negative(r, n);
    case N_COND: return eval_cond(r, n);
    case N_ATTR: return get_attr(r, eval(r, n->a), n->value);
    case N_ITEM: v = eval(r, n->a); return get_item(r, v, eval(r, n->b));
    case N_SLICE: return eval_slice(r, n);
    case N_CALL: return eval_call(r, n, v_absent());
    case N_FILTER:
    case N_TEST: return eval_filter(r, n, v_none());
    default: template_fail(r, TEMPLATE_RUNTIME, "not an expression");
    }
}

struct value eval(struct render *r, const struct node *n)
{
    struct value v;

    render_step(r, 1);
    if (n->kind == N_CONST) return n->value;
    if (n->kind == N_NAME) return scope_lookup(r, n->symbol);
    render_enter(r);
    v = eval_other(r, n);
    render_leave(r);
    return v;
}

/* --- statements --- */
struct capture {
    struct sink sink, *out;
    bool top;
};

static void begin_capture(struct render *r, struct capture *c)
{
    sink_init(&c->sink, r);
    c->out = r->out;
    c->top = r->top;
    r->out = &c->sink;
    r->top = false;
}

static struct value end_capture(struct render *r, struct capture *c)
{
    struct value v = sink_value(&c->sink);

    r->out = c->out;
    r->top = c->top;
    v.sub = r->autoescape;
    return v;
}

static void write_value(struct render *r, struct value v)
{
    if (v.type == V_UNDEFINED && v.sub == UNDEFINED_UNSAFE) fail_undefined(r, v);
    if (r->autoescape && !(is_str(v) && v.sub)) v = value_escape(r, v);
    sink_display(r->out, v);
}

static enum flow run_inner(struct render *r, const struct node *body)
{
    struct scope *outer = r->scope;
    enum flow flow;

    r->scope = scope_open(r, outer);
    flow = run_nodes(r, body);
    r->scope = outer;
    return flow;
}

/* The items of a `for`, after its filter. */
static struct list *loop_items(struct render *r, const struct node *n, struct value over)
{
    struct list *all = value_items(r, over), *kept;
    struct scope *outer = r->scope;

    if (!n->c) return all;
    kept = list_make(r, 0);
    for (uint32_t i = 0; i < all->count; i++) {
        struct value item = all->items[i];
        r->scope = scope_open(r, outer);
        scope_bind_target(r, n->a, item);
        if (value_true(eval(r, n->c))) list_push(r, kept, item);
        r->scope = outer;
    }
    return kept;
}

static enum flow run_loop(struct render *r, const struct node *n, struct value over, uint32_t depth)
{
    struct scope *outer = r->scope, *inner = NULL;
    struct loop *loop = render_alloc(r, sizeof *loop);
    struct value self = {.type = V_LOOP, .loop = loop};
    enum flow flow = FLOW_NEXT;

    *loop = (struct loop){.depth = depth, .node = n, .scope = outer, .changed = v_absent()};
    loop->items = loop_items(r, n, over);
    if (!loop->items->count) return n->other ? run_inner(r, n->other) : FLOW_NEXT;
    for (loop->at = 0; loop->at < loop->items->count; loop->at++) {
        render_step(r, 1);
        if (!inner || inner->kept) inner = scope_open(r, outer);
        inner->count = 0;
        r->scope = inner;
        scope_bind(r, n->symbol, self);
        scope_bind_target(r, n->a, loop->items->items[loop->at]);
        flow = run_nodes(r, n->body);
        if (flow == FLOW_BREAK) break;
    }
    r->scope = outer;
    return FLOW_NEXT;
}

static void enter_call(struct render *r)
{
    if (++r->calls > r->limits.depth_max)
        template_fail(r, TEMPLATE_LIMIT, "calls are nested more than %u deep", r->limits.depth_max);
}

struct value call_loop(struct render *r, const struct loop *loop, struct value items)
{
    struct scope *outer = r->scope;
    struct capture c;

    if (!loop->node->flags)
        template_fail(r, TEMPLATE_RUNTIME,
                      "the loop must have the 'recursive' marker to be called recursively");
    enter_call(r);
    render_enter(r);
    begin_capture(r, &c);
    r->scope = loop->scope;
    run_loop(r, loop->node, items, loop->depth + 1);
    r->scope = outer;
    render_leave(r);
    r->calls--;
    return end_capture(r, &c);
}

static void keep_scopes(struct scope *scope)
{
    for (; scope && !scope->kept; scope = scope->parent)
        scope->kept = true;
}

static struct value make_macro(struct render *r, const struct node *n)
{
    struct macro *m = render_alloc(r, sizeof *m);

    *m = (struct macro){n, r->scope, r->autoescape};
    keep_scopes(r->scope);
    return (struct value){.type = V_MACRO, .macro = m};
}

static struct value take_named(struct args *left, struct value name)
{
    for (uint32_t i = 0; i < left->named_count; i++) {
        struct value v = left->named[i];
        if (!str_equal(left->names[i].s, name.s)) continue;
        left->named_count--;
        for (; i < left->named_count; i++) {
            left->names[i] = left->names[i + 1];
            left->named[i] = left->named[i + 1];
        }
        return v;
    }
    return v_absent();
}

static uint32_t special_symbol(const struct render *r, const char *name)
{
    for (uint32_t i = 0; i < r->t->name_count; i++)
        if (slice_eq(r->t->names[i], slice_str(name))) return i;
    return 0; /* not reached: the body names it */
}

/* caller, varargs and kwargs where the body uses them; what is left over without them is a fault. */
static void bind_specials(struct render *r, const struct macro *m, struct args *left,
                          bool found_caller)
{
    uint8_t uses = m->node->flags;
    struct value name = m->node->value, caller;

    if ((uses & USES_CALLER) && !found_caller) {
        caller = take_named(left, v_text(r, "caller"));
        if (caller.type == V_ABSENT) caller = v_undefined("no caller defined");
        scope_bind(r, special_symbol(r, "caller"), caller);
    }
    if (uses & USES_KWARGS) {
        struct dict *d = dict_make(r, left->named_count);
        for (uint32_t i = 0; i < left->named_count; i++)
            dict_set(r, d, left->names[i], left->named[i]);
        scope_bind(r, special_symbol(r, "kwargs"), v_dict(d));
    } else if (left->named_count) {
        struct str *s = left->names[0].s;
        template_fail(r, TEMPLATE_RUNTIME, "a macro takes no keyword argument '%.*s'",
                      (int)(s->len < 80 ? s->len : 80), s->ptr);
    }
    if (uses & USES_VARARGS) {
        struct list *l = list_make(r, left->count);
        for (uint32_t i = 0; i < left->count; i++)
            list_push(r, l, left->pos[i]);
        scope_bind(r, special_symbol(r, "varargs"), v_tuple(l));
    } else if (left->count) {
        template_fail(r, TEMPLATE_RUNTIME, "macro '%.*s' takes not more than %u argument(s)",
                      is_str(name) ? (int)(name.s->len < 80 ? name.s->len : 80) : 6,
                      is_str(name) ? name.s->ptr : "caller", m->node->count);
    }
}

static void bind_parameters(struct render *r, const struct macro *m, const struct args *given)
{
    const struct node *n = m->node;
    struct args left = *given;
    uint32_t from_pos = left.count < n->count ? left.count : n->count;
    struct value *values = render_alloc(r, (n->count + (size_t)1) * sizeof *values);
    bool found_caller = false;

    if (left.named_count) { /* take_named changes them */
        left.names = render_alloc(r, left.named_count * sizeof *left.names);
        left.named = render_alloc(r, left.named_count * sizeof *left.named);
        memcpy(left.names, given->names, left.named_count * sizeof *left.names);
        memcpy(left.named, given->named, left.named_count * sizeof *left.named);
    }
    for (uint32_t i = 0; i < n->count; i++) {
        values[i] = i < from_pos ? left.pos[i] : take_named(&left, n->list[i]->value);
        found_caller |= str_is(n->list[i]->value.s, "caller");
        if (values[i].type != V_ABSENT) scope_bind(r, n->list[i]->symbol, values[i]);
    }
    left.pos += from_pos;
    left.count -= from_pos;
    bind_specials(r, m, &left, found_caller);
    for (uint32_t i = 0; i < n->count; i++) {
        if (values[i].type != V_ABSENT) continue;
        scope_bind(r, n->list[i]->symbol,
                   n->defaults[i] ? eval(r, n->defaults[i])
                                  : v_undefined("a parameter of a macro was not provided"));
    }
}

struct value call_macro(struct render *r, const struct macro *m, const struct args *args)
{
    struct scope *outer = r->scope;
    bool autoescape = r->autoescape;
    struct capture c;
    struct value v;

    enter_call(r);
    render_enter(r);
    r->scope = scope_open(r, m->scope);
    r->autoescape = m->autoescape;
    bind_parameters(r, m, args);
    begin_capture(r, &c);
    run_nodes(r, m->node->body);
    v = end_capture(r, &c);
    r->scope = outer;
    r->autoescape = autoescape;
    render_leave(r);
    r->calls--;
    return v;
}

/* The text of a body in a scope of its own. */
static enum flow capture_inner(struct render *r, const struct node *body, struct value *text)
{
    struct capture c;
    enum flow flow;

    begin_capture(r, &c);
    flow = run_inner(r, body);
    *text = end_capture(r, &c);
    return flow;
}

static enum flow run_with(struct render *r, const struct node *n)
{
    struct scope *outer = r->scope;
    struct value *values = render_alloc(r, (n->count / 2 + (size_t)1) * sizeof *values);
    enum flow flow;

    for (uint32_t i = 0; i < n->count; i += 2)
        values[i / 2] = eval(r, n->list[i + 1]);
    r->scope = scope_open(r, outer);
    for (uint32_t i = 0; i < n->count; i += 2)
        scope_bind_target(r, n->list[i], values[i / 2]);
    flow = run_nodes(r, n->body);
    r->scope = outer;
    return flow;
}

static enum flow run_if(struct render *r, const struct node *n)
{
    for (uint32_t i = 0; i < n->count; i += 2)
        if (value_true(eval(r, n->list[i]))) return run_nodes(r, n->list[i + 1]);
    return n->c ? run_nodes(r, n->c) : FLOW_NEXT;
}

static enum flow run_autoescape(struct render *r, const struct node *n)
{
    bool before = r->autoescape;
    enum flow flow;

    r->autoescape = value_true(eval(r, n->a));
    flow = run_inner(r, n->body);
    r->autoescape = before;
    return flow;
}

static enum flow run_node(struct render *r, const struct node *n)
{
    struct value v;
    enum flow flow;

    switch (n->kind) {
    case N_DATA: sink_str(r->out, n->value.s); return FLOW_NEXT;
    case N_OUTPUT: write_value(r, eval(r, n->a)); return FLOW_NEXT;
    case N_IF: return run_if(r, n);
    case N_FOR: return run_loop(r, n, eval(r, n->b), 0);
    case N_SET: scope_bind_target(r, n->a, eval(r, n->b)); return FLOW_NEXT;
    case N_SET_BLOCK:
        flow = capture_inner(r, n->body, &v);
        if (flow != FLOW_NEXT) return flow;
        if (n->b) v = filter_text(r, n->b, v);
        scope_bind_target(r, n->a, v);
        return FLOW_NEXT;
    case N_MACRO: scope_bind(r, n->symbol, make_macro(r, n)); return FLOW_NEXT;
    case N_CALL_BLOCK: write_value(r, eval_call(r, n->a, make_macro(r, n->b))); return FLOW_NEXT;
    case N_FILTER_BLOCK:
        flow = capture_inner(r, n->body, &v);
        if (flow != FLOW_NEXT) return flow;
        v = filter_text(r, n->b, v);
        if (!is_str(v))
            template_fail(r, TEMPLATE_RUNTIME, "a filter block must give text, not %s",
                          type_name(v));
        write_value(r, v);
        return FLOW_NEXT;
    case N_WITH: return run_with(r, n);
    case N_SCOPE: return run_inner(r, n->body);
    case N_AUTOESCAPE: return run_autoescape(r, n);
    case N_BREAK: return FLOW_BREAK;
    case N_CONTINUE: return FLOW_CONTINUE;
    case N_BODY: return run_nodes(r, n);
    default: template_fail(r, TEMPLATE_RUNTIME, "not a statement");
    }
}

static enum flow run_nodes(struct render *r, const struct node *body)
{
    enum flow flow = FLOW_NEXT;

    render_enter(r);
    for (uint32_t i = 0; flow == FLOW_NEXT && i < body->count; i++) {
        render_step(r, 1);
        flow = run_node(r, body->list[i]);
    }
    render_leave(r);
    return flow;
}

void run_template(struct render *r)
{
    r->scope = scope_open(r, NULL);
    run_nodes(r, r->t->root);
}
