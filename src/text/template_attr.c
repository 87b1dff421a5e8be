/* template_attr.c - attributes, indexes, slices and arithmetic, as jinja2's sandbox and Python do them.
 *
 * x.name looks at the object's own attributes first, then at its items; x['name'] the other way round. Names that begin
 * with an underscore on anything but a dict's items, and methods that would change an object, are unsafe: the result
 * is undefined, and using it is a security fault. */
#include "text/template_ast.h"

#include <math.h>

enum { INT_SHIFT_MAX = 63 };

static struct value loop_attr(struct render *r, const struct value self, const struct str *name,
                              bool *found)
{
    const struct loop *loop = self.loop;
    uint32_t count = loop->items->count;
    const struct builtin *method;

    *found = true;
    if (str_is(name, "index")) return v_int(loop->at + 1);
    if (str_is(name, "index0")) return v_int(loop->at);
    if (str_is(name, "first")) return v_bool(loop->at == 0);
    if (str_is(name, "last")) return v_bool(loop->at + 1 >= count);
    if (str_is(name, "length")) return v_int(count);
    if (str_is(name, "revindex")) return v_int((int64_t)count - loop->at);
    if (str_is(name, "revindex0")) return v_int((int64_t)count - loop->at - 1);
    if (str_is(name, "depth")) return v_int(loop->depth + 1);
    if (str_is(name, "depth0")) return v_int(loop->depth);
    if (str_is(name, "previtem"))
        return loop->at && loop->at <= count ? loop->items->items[loop->at - 1]
                                             : v_undefined("there is no previous item");
    if (str_is(name, "nextitem"))
        return loop->at + 1 < count ? loop->items->items[loop->at + 1]
                                    : v_undefined("there is no next item");
    method = method_find(V_LOOP, name);
    *found = method != NULL;
    if (!method) return v_none();
    struct method *m = render_alloc(r, sizeof *m);
    *m = (struct method){method, self};
    return (struct value){.type = V_METHOD, .method = m};
}

static bool macro_attr(struct render *r, const struct macro *m, const struct str *name,
                       struct value *out)
{
    const struct node *n = m->node;

    if (str_is(name, "name"))
        *out = n->value;
    else if (str_is(name, "arguments")) {
        struct list *l = list_make(r, n->count);
        for (uint32_t i = 0; i < n->count; i++)
            list_push(r, l, n->list[i]->value);
        *out = v_tuple(l);
    } else if (str_is(name, "catch_varargs"))
        *out = v_bool(n->flags & USES_VARARGS);
    else if (str_is(name, "catch_kwargs"))
        *out = v_bool(n->flags & USES_KWARGS);
    else if (str_is(name, "caller"))
        *out = v_bool(n->flags & USES_CALLER);
    else
        return false;
    return true;
}

/* Methods that would change a list or dict: they are there, and unsafe. */
static bool changes(uint8_t type, const struct str *name)
{
    static const char *const lists[] = {"append", "clear",   "extend", "insert", "pop",
                                        "remove", "reverse", "sort",   NULL};
    static const char *const dicts[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *names = type == V_LIST ? lists : type == V_DICT ? dicts : NULL;

    for (; names && *names; names++)
        if (str_is(name, *names)) return true;
    return false;
}

bool find_attr(struct render *r, struct value object, struct value name, struct value *out)
{
    const struct builtin *method;
    struct value *there;
    bool found;

    if (name.s->len >= 1 && name.s->ptr[0] == '_') {
        bool dunder = name.s->len >= 2 && name.s->ptr[1] == '_';
        bool inner = object.type == V_MACRO || object.type == V_LOOP || object.type == V_NAMESPACE;
        if (!dunder && !inner) return false;
        *out = v_unsafe_attr(r, object, name);
        return true;
    }
    switch (object.type) {
    case V_NAMESPACE:
        there = dict_find(r, object.d, name);
        if (there) *out = *there;
        return there != NULL;
    case V_LOOP: *out = loop_attr(r, object, name.s, &found); return found;
    case V_MACRO: return macro_attr(r, object.macro, name.s, out);
    case V_TUPLE:
        if (!object.sub) break;
        found = str_is(name.s, "grouper") || str_is(name.s, "list");
        if (found) *out = object.l->items[str_is(name.s, "list")];
        if (found) return true;
        break;
    case V_CYCLER:
        if (!str_is(name.s, "current")) break;
        *out = object.cycler->items->items[object.cycler->at];
        return true;
    default: break;
    }
    if (changes(object.type, name.s)) {
        *out = v_unsafe_attr(r, object, name);
        return true;
    }
    method = method_find(object.type, name.s);
    if (!method) return false;
    struct method *m = render_alloc(r, sizeof *m);
    *m = (struct method){method, object};
    *out = (struct value){.type = V_METHOD, .method = m};
    return true;
}

struct value get_attr(struct render *r, struct value object, struct value name)
{
    struct value v, *there;

    if (object.type == V_UNDEFINED) fail_undefined(r, object);
    if (find_attr(r, object, name, &v)) {
        if (object.type != V_DICT || v.type != V_UNDEFINED || name.s->ptr[0] != '_') return v;
        there = dict_find(r, object.d, name); /* a key like "__x" is a key */
        return there ? *there : v;
    }
    if (object.type == V_DICT && (there = dict_find(r, object.d, name))) return *there;
    return v_undefined_attr(r, object, name);
}

static bool item_at(struct render *r, struct value object, int64_t at, struct value *out)
{
    int64_t count;
    uint32_t begin, end;

    if (object.type != V_STR && object.type != V_LIST && object.type != V_TUPLE &&
        object.type != V_RANGE)
        return false;
    count = value_length(r, object);
    if (at < 0) at += count;
    if (at < 0 || at >= count) return false;
    if (object.type == V_RANGE) {
        *out = v_int(object.range->start + at * object.range->step);
    } else if (object.type == V_STR) {
        render_step(r, str_ascii(object.s) ? 0 : (uint64_t)at / 16);
        begin = end = str_offset(object.s, (uint32_t)at);
        str_next(object.s->ptr, &end);
        *out = str_sub(r, object.s, begin, end);
        out->sub = object.sub;
    } else {
        *out = object.l->items[at];
    }
    return true;
}

struct value get_item(struct render *r, struct value object, struct value key)
{
    struct value v, *there;

    if (object.type == V_UNDEFINED) fail_undefined(r, object);
    if (object.type == V_DICT && key.type != V_LIST && key.type != V_DICT &&
        (there = dict_find(r, object.d, key)))
        return *there;
    if (is_integer(key) && item_at(r, object, as_int(key), &v)) return v;
    if (is_str(key) && find_attr(r, object, key, &v)) return v;
    return v_undefined_attr(r, object, key);
}

/* --- slices --- */
static int64_t slice_bound(struct render *r, struct value v, int64_t absent, int64_t low,
                           int64_t high, int64_t count)
{
    int64_t at;

    if (v.type == V_NONE) return absent;
    if (v.type == V_UNDEFINED || !is_integer(v))
        template_fail(r, TEMPLATE_RUNTIME,
                      "slice indices must be integers or None or have an __index__ method");
    at = as_int(v);
    if (at < 0) at = at < -count ? low : at + count;
    return at < low ? low : at > high ? high : at;
}

static struct value slice_string(struct render *r, struct value object, int64_t start, int64_t step,
                                 int64_t count)
{
    struct sink s;
    struct value v;

    if (step == 1 || count == 0) {
        uint32_t begin = str_offset(object.s, (uint32_t)start);
        uint32_t end = begin;
        if (str_ascii(object.s))
            end += (uint32_t)count;
        else
            for (int64_t i = 0; i < count; i++)
                str_next(object.s->ptr, &end);
        v = str_sub(r, object.s, begin, end);
        v.sub = object.sub;
        return v;
    }
    sink_init(&s, r);
    struct list *all = value_items(r, object);
    for (int64_t i = 0; i < count; i++)
        sink_str(&s, all->items[start + i * step].s);
    v = sink_value(&s);
    v.sub = object.sub;
    return v;
}

struct value value_slice(struct render *r, struct value object, struct value start,
                         struct value stop, struct value step)
{
    bool sliced = object.type == V_STR || object.type == V_LIST || object.type == V_TUPLE ||
                  object.type == V_RANGE;
    int64_t length, by, from, to, count;
    struct list *l;

    if (object.type == V_UNDEFINED) fail_undefined(r, object);
    if (!sliced)
        template_fail(r, TEMPLATE_RUNTIME, "'%s' object cannot be sliced", type_name(object));
    length = value_length(r, object);
    by = step.type == V_NONE ? 1 : arg_int(r, step, 1, "a slice step");
    if (by == 0) template_fail(r, TEMPLATE_RUNTIME, "slice step cannot be zero");
    if (by < -length - 1) by = -length - 1; /* no product below can overflow */
    if (by > length + 1) by = length + 1;
    from = by > 0 ? slice_bound(r, start, 0, 0, length, length)
                  : slice_bound(r, start, length - 1, -1, length - 1, length);
    to = by > 0 ? slice_bound(r, stop, length, 0, length, length)
                : slice_bound(r, stop, -1, -1, length - 1, length);
    count = by > 0 ? (to > from ? (to - from + by - 1) / by : 0)
                   : (from > to ? (from - to - by - 1) / -by : 0);
    render_step(r, 1 + (uint64_t)count / 8);
    if (object.type == V_STR) return slice_string(r, object, count ? from : 0, by, count);
    if (object.type == V_RANGE) {
        struct range *range = render_alloc(r, sizeof *range);
        *range = *object.range;
        range->start += from * range->step;
        range->stop = object.range->start + to * object.range->step;
        range->step *= by;
        range->count = (uint32_t)count;
        return (struct value){.type = V_RANGE, .range = range};
    }
    l = list_make(r, (uint32_t)count);
    for (int64_t i = 0; i < count; i++)
        list_push(r, l, object.l->items[from + i * by]);
    return object.type == V_LIST ? v_list(l) : v_tuple(l);
}

/* --- arithmetic --- */
static _Noreturn void too_large(struct render *r)
{
    template_fail(r, TEMPLATE_LIMIT, "an integer does not fit 64 bits");
}

static _Noreturn void bad_operands(struct render *r, const char *op, struct value a, struct value b)
{
    if (a.type == V_UNDEFINED) fail_undefined(r, a);
    if (b.type == V_UNDEFINED) fail_undefined(r, b);
    template_fail(r, TEMPLATE_RUNTIME, "unsupported operand type(s) for %s: '%s' and '%s'", op,
                  type_name(a), type_name(b));
}

static struct value list_concat(struct render *r, const struct list *a, const struct list *b)
{
    struct list *l = list_make(r, a->count + b->count);

    render_step(r, l->cap / 8);
    if (a->count) memcpy(l->items, a->items, a->count * sizeof *l->items);
    if (b->count) memcpy(l->items + a->count, b->items, b->count * sizeof *l->items);
    l->count = l->cap;
    return v_list(l);
}

struct value value_add(struct render *r, struct value a, struct value b)
{
    struct value v;

    if (is_str(a) && is_str(b)) {
        bool markup = a.sub || b.sub;
        if (markup) {
            a = value_escape(r, a);
            b = value_escape(r, b);
        }
        v = str_concat(r, a, b);
        v.sub = markup;
        return v;
    }
    if (is_number(a) && is_number(b)) {
        int64_t sum;
        if (!is_integer(a) || !is_integer(b)) return v_float(as_float(a) + as_float(b));
        if (__builtin_add_overflow(as_int(a), as_int(b), &sum)) too_large(r);
        return v_int(sum);
    }
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
        v = list_concat(r, a.l, b.l);
        v.type = a.type;
        return v;
    }
    bad_operands(r, "+", a, b);
}

static struct value repeat(struct render *r, struct value v, int64_t times)
{
    struct sink s;
    struct list *l;
    uint8_t sub = v.sub;

    if (times < 0) times = 0;
    if (is_str(v)) {
        sink_init(&s, r);
        sink_fill(&s, v.s, (uint64_t)times);
        v = sink_value(&s);
        v.sub = sub;
        return v;
    }
    if (v.l->count && times > (1 << 26) / v.l->count)
        template_fail(r, TEMPLATE_LIMIT, "a list is too long");
    l = list_make(r, (uint32_t)times * v.l->count);
    render_step(r, l->cap / 8);
    for (int64_t i = 0; v.l->count && i < times; i++) {
        memcpy(l->items + l->count, v.l->items, v.l->count * sizeof *l->items);
        l->count += v.l->count;
    }
    return v.type == V_LIST ? v_list(l) : v_tuple(l);
}

static bool is_sequence(struct value v)
{
    return v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE;
}

static struct value multiply(struct render *r, struct value a, struct value b)
{
    int64_t product;

    if (is_sequence(a) && is_integer(b)) return repeat(r, a, as_int(b));
    if (is_sequence(b) && is_integer(a)) return repeat(r, b, as_int(a));
    if (!is_number(a) || !is_number(b)) bad_operands(r, "*", a, b);
    if (!is_integer(a) || !is_integer(b)) return v_float(as_float(a) * as_float(b));
    if (__builtin_mul_overflow(as_int(a), as_int(b), &product)) too_large(r);
    return v_int(product);
}

/* Python's % on floats: the sign of the divisor. */
static double float_mod(double x, double y)
{
    double m = fmod(x, y);

    if (m == 0) return copysign(0, y);
    return (m < 0) != (y < 0) ? m + y : m;
}

static double float_floordiv(double x, double y)
{
    double m = fmod(x, y), d = (x - m) / y;

    if (m != 0 && (y < 0) != (m < 0)) d -= 1;
    if (d == 0) return copysign(0, x / y);
    return d - floor(d) > 0.5 ? floor(d) + 1 : floor(d);
}

static struct value divide(struct render *r, int op, struct value a, struct value b)
{
    static const char *const names[] = {[OP_DIV] = "/", [OP_FLOORDIV] = "//", [OP_MOD] = "%"};
    int64_t x, y, q;

    if (!is_number(a) || !is_number(b)) bad_operands(r, names[op], a, b);
    if (as_float(b) == 0) template_fail(r, TEMPLATE_RUNTIME, "division by zero");
    if (op == OP_DIV) return v_float(as_float(a) / as_float(b));
    if (!is_integer(a) || !is_integer(b))
        return v_float(op == OP_MOD ? float_mod(as_float(a), as_float(b))
                                    : float_floordiv(as_float(a), as_float(b)));
    x = as_int(a);
    y = as_int(b);
    if (y == -1) {
        if (op == OP_MOD) return v_int(0);
        if (x == INT64_MIN) too_large(r);
        return v_int(-x);
    }
    q = x / y;
    if (x % y != 0 && (x < 0) != (y < 0)) q--;
    return v_int(op == OP_MOD ? x - q * y : q);
}

static struct value power(struct render *r, struct value a, struct value b)
{
    int64_t base, exponent, result = 1;
    double f;

    if (!is_number(a) || !is_number(b)) bad_operands(r, "**", a, b);
    if (!is_integer(a) || !is_integer(b) || as_int(b) < 0) {
        if (as_float(a) == 0 && as_float(b) < 0)
            template_fail(r, TEMPLATE_RUNTIME, "0.0 cannot be raised to a negative power");
        f = pow(as_float(a), as_float(b));
        if (isnan(f) && !isnan(as_float(a)) && !isnan(as_float(b)))
            template_fail(r, TEMPLATE_RUNTIME, "complex numbers are not supported");
        if (isinf(f) && !isinf(as_float(a)) && !isinf(as_float(b)))
            template_fail(r, TEMPLATE_LIMIT, "numerical result out of range");
        return v_float(f);
    }
    base = as_int(a);
    exponent = as_int(b);
    if (base == 0 || base == 1) return v_int(exponent == 0 ? 1 : base);
    if (base == -1) return v_int(exponent % 2 ? -1 : 1);
    if (exponent > INT_SHIFT_MAX) too_large(r);
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(result, base, &result)) too_large(r);
    return v_int(result);
}

struct value binary_op(struct render *r, int op, struct value a, struct value b)
{
    int64_t difference;

    switch (op) {
    case OP_ADD: return value_add(r, a, b);
    case OP_SUB:
        if (!is_number(a) || !is_number(b)) bad_operands(r, "-", a, b);
        if (!is_integer(a) || !is_integer(b)) return v_float(as_float(a) - as_float(b));
        if (__builtin_sub_overflow(as_int(a), as_int(b), &difference)) too_large(r);
        return v_int(difference);
    case OP_MUL: return multiply(r, a, b);
    case OP_MOD:
        if (is_str(a)) return format_percent(r, a, b, NULL);
        return divide(r, op, a, b);
    case OP_POW: return power(r, a, b);
    default: return divide(r, op, a, b);
    }
}
