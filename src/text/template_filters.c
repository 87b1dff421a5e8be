/* template_filters.c - filters on sequences and single values. Those on text stand in
 * template_text_filters.c. Generators (map, select, unique, batch ...) are worked out at once; what is lazy in
 * jinja2 and visible, being used up by reading and having no length, is kept. */
#include "text/template_filter_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* --- attribute paths: "a.b.0" --- */
struct value value_path(struct render *r, struct value item, struct value path,
                        struct value fallback)
{
    bool has_fallback = fallback.type != V_ABSENT && fallback.type != V_NONE;
    uint32_t begin = 0, end;

    if (path.type == V_ABSENT || path.type == V_NONE) return item;
    if (!is_str(path)) {
        item = get_item(r, item, path);
        return has_fallback && item.type == V_UNDEFINED ? fallback : item;
    }
    for (; begin <= path.s->len; begin = end + 1) {
        int64_t number = 0;
        bool digits = true;
        for (end = begin; end < path.s->len && path.s->ptr[end] != '.'; end++) {
            digits &= path.s->ptr[end] >= '0' && path.s->ptr[end] <= '9' && end - begin < 18;
            number = digits ? number * 10 + path.s->ptr[end] - '0' : 0;
        }
        item = get_item(r, item,
                        digits && end > begin ? v_int(number) : str_sub(r, path.s, begin, end));
        if (has_fallback && item.type == V_UNDEFINED) item = fallback;
    }
    return item;
}

static struct value ignore_case(struct render *r, struct value v)
{
    struct sink s;

    if (!is_str(v)) return v;
    sink_init(&s, r);
    sink_case(&s, v.s, 0, v.s->len, CASE_LOWER);
    return sink_value(&s);
}

static struct value sort_key(struct render *r, struct value item, struct value path,
                             bool case_sensitive)
{
    item = value_path(r, item, path, v_absent());
    return case_sensitive ? item : ignore_case(r, item);
}

/* --- sorting: a stable merge sort of (key, item) --- */
static bool less(struct render *r, struct value a, struct value b)
{
    bool ordered;
    int order = value_compare(r, a, b, "<", &ordered);

    return ordered && order < 0;
}

static void merge(struct render *r, struct entry *items, struct entry *spare, uint32_t count,
                  bool reverse)
{
    uint32_t half = count / 2, a = 0, b = half;

    if (count < 2) return;
    merge(r, items, spare, half, reverse);
    merge(r, items + half, spare + half, count - half, reverse);
    memcpy(spare, items, count * sizeof *spare);
    for (uint32_t i = 0; i < count; i++) {
        bool take_b = a == half || (b < count && (reverse ? less(r, spare[a].key, spare[b].key)
                                                          : less(r, spare[b].key, spare[a].key)));
        items[i] = spare[take_b ? b++ : a++];
    }
}

static struct entry *keyed(struct render *r, uint32_t count)
{
    return render_alloc(r, (count + (size_t)1) * sizeof(struct entry));
}

static struct list *sorted(struct render *r, struct entry *items, uint32_t count, bool reverse)
{
    struct list *l = list_make(r, count);

    merge(r, items, keyed(r, count), count, reverse);
    for (uint32_t i = 0; i < count; i++)
        list_push(r, l, items[i].value);
    return l;
}

/* value | sort(reverse, case_sensitive, attribute) */
static struct value filter_sort(struct render *r, struct value *a, const struct args *args)
{
    struct list *all = value_items(r, a[0]), *paths;
    struct entry *items = keyed(r, all->count);
    bool case_sensitive = arg_flag(a[2]);

    (void)args;
    paths = list_make(r, 1);
    for (uint32_t begin = 0, end; is_str(a[3]) && begin <= a[3].s->len; begin = end + 1) {
        for (end = begin; end < a[3].s->len && a[3].s->ptr[end] != ',';)
            end++;
        list_push(r, paths, str_sub(r, a[3].s, begin, end));
    }
    if (!is_str(a[3])) list_push(r, paths, a[3]);
    for (uint32_t i = 0; i < all->count; i++) {
        struct list *keys = list_make(r, paths->count); /* a list, whose < looks for equals first */
        for (uint32_t p = 0; p < paths->count; p++)
            list_push(r, keys, sort_key(r, all->items[i], paths->items[p], case_sensitive));
        items[i] = (struct entry){v_list(keys), all->items[i]};
    }
    return v_list(sorted(r, items, all->count, arg_flag(a[1])));
}

/* mapping | dictsort(case_sensitive, by, reverse) */
static struct value filter_dictsort(struct render *r, struct value *a, const struct args *args)
{
    struct value view = {.type = V_VIEW, .sub = VIEW_ITEMS};
    bool by_value = is_str(a[2]) && str_is(a[2].s, "value");
    struct list *pairs;
    struct entry *items;

    (void)args;
    if (a[2].type != V_ABSENT && !by_value && !(is_str(a[2]) && str_is(a[2].s, "key")))
        template_fail(r, TEMPLATE_RUNTIME, "you can only sort by either \"key\" or \"value\"");
    if (a[0].type == V_UNDEFINED) fail_undefined(r, a[0]);
    if (a[0].type != V_DICT)
        template_fail(r, TEMPLATE_RUNTIME, "dictsort needs a mapping, not %s", type_name(a[0]));
    view.d = a[0].d;
    pairs = value_items(r, view);
    items = keyed(r, pairs->count);
    for (uint32_t i = 0; i < pairs->count; i++) {
        struct value key = pairs->items[i].l->items[by_value];
        items[i] = (struct entry){arg_flag(a[1]) ? key : ignore_case(r, key), pairs->items[i]};
    }
    return v_list(sorted(r, items, pairs->count, arg_flag(a[3])));
}

/* value | groupby(attribute, default, case_sensitive) */
static struct value filter_groupby(struct render *r, struct value *a, const struct args *args)
{
    struct list *all = value_items(r, a[0]), *groups = list_make(r, 0), *order;
    struct entry *items = keyed(r, all->count);
    struct value last = v_absent();

    (void)args;
    for (uint32_t i = 0; i < all->count; i++) {
        struct value key = value_path(r, all->items[i], a[1], a[2]);
        items[i] = (struct entry){arg_flag(a[3]) ? key : ignore_case(r, key), all->items[i]};
    }
    order = sorted(r, items, all->count, false);
    for (uint32_t i = 0; i < order->count; i++) {
        if (last.type == V_ABSENT || !value_equal(r, last, items[i].key)) {
            struct list *pair = list_make(r, 2);
            struct value group = v_tuple(pair);
            group.sub = 1;
            list_push(r, pair, value_path(r, order->items[i], a[1], a[2]));
            list_push(r, pair, v_list(list_make(r, 0)));
            list_push(r, groups, group);
            last = items[i].key;
        }
        list_push(r, groups->items[groups->count - 1].l->items[1].l, order->items[i]);
    }
    return v_list(groups);
}

/* value | unique(case_sensitive, attribute) */
static struct value filter_unique(struct render *r, struct value *a, const struct args *args)
{
    struct list *all = value_items(r, a[0]), *kept = list_make(r, 0);
    struct dict *seen = dict_make(r, 0);

    (void)args;
    for (uint32_t i = 0; i < all->count; i++) {
        struct value key = sort_key(r, all->items[i], a[2], arg_flag(a[1]));
        if (dict_find(r, seen, key)) continue;
        dict_set(r, seen, key, v_none());
        list_push(r, kept, all->items[i]);
    }
    return v_iter(r, kept, "sync_do_unique");
}

static struct value extreme(struct render *r, struct value *a, bool max)
{
    struct list *all = value_items(r, a[0]);
    struct value best, key, best_key;

    if (!all->count) return v_undefined("no aggregated item, sequence was empty");
    best = all->items[0];
    best_key = sort_key(r, best, a[2], arg_flag(a[1]));
    for (uint32_t i = 1; i < all->count; i++) {
        key = sort_key(r, all->items[i], a[2], arg_flag(a[1]));
        if (!(max ? less(r, best_key, key) : less(r, key, best_key))) continue;
        best = all->items[i];
        best_key = key;
    }
    return best;
}

static struct value filter_min(struct render *r, struct value *a, const struct args *args)
{
    (void)args;
    return extreme(r, a, false);
}

static struct value filter_max(struct render *r, struct value *a, const struct args *args)
{
    (void)args;
    return extreme(r, a, true);
}

/* value | sum(attribute, start) */
static struct value filter_sum(struct render *r, struct value *a, const struct args *args)
{
    struct list *all = value_items(r, a[0]);
    struct value sum = a[2].type == V_ABSENT ? v_int(0) : a[2];

    (void)args;
    if (is_str(sum)) template_fail(r, TEMPLATE_RUNTIME, "sum() can't sum strings");
    for (uint32_t i = 0; i < all->count; i++)
        sum = value_add(r, sum, value_path(r, all->items[i], a[1], v_absent()));
    return sum;
}

/* --- map, select and their kin --- */
static const struct builtin *named_builtin(struct render *r, struct value name, bool test)
{
    struct str *s = arg_str(r, name, test ? "the name of a test" : "the name of a filter");
    const struct builtin *b =
        test ? test_find(slice_of(s->ptr, s->len)) : filter_find(slice_of(s->ptr, s->len));

    if (!b)
        template_fail(r, TEMPLATE_RUNTIME, "no %s named '%.*s'", test ? "test" : "filter",
                      (int)(s->len < 80 ? s->len : 80), s->ptr);
    return b;
}

static struct args args_after(const struct args *args, uint32_t skip)
{
    struct args rest = *args;

    rest.pos += skip;
    rest.count -= skip;
    return rest;
}

static struct value named_arg(const struct args *args, const char *name)
{
    for (uint32_t i = 0; i < args->named_count; i++)
        if (str_is(args->names[i].s, name)) return args->named[i];
    return v_absent();
}

static struct value filter_map(struct render *r, struct value *a, const struct args *args)
{
    struct list *out = list_make(r, 0), *all;
    struct value path = named_arg(args, "attribute"), fallback = named_arg(args, "default");
    bool by_path = !args->count && path.type != V_ABSENT;
    const struct builtin *filter = NULL;
    struct args rest;

    if (!value_true(a[0])) return v_iter(r, out, "sync_do_map");
    if (!by_path) {
        if (!args->count) template_fail(r, TEMPLATE_RUNTIME, "map requires a filter argument");
        filter = named_builtin(r, args->pos[0], false);
        rest = args_after(args, 1);
    } else if (args->named_count != (fallback.type == V_ABSENT ? 1u : 2u)) {
        template_fail(r, TEMPLATE_RUNTIME, "map: unexpected keyword argument");
    }
    all = value_items(r, a[0]);
    for (uint32_t i = 0; i < all->count; i++) {
        struct value item = all->items[i];
        list_push(r, out,
                  by_path ? value_path(r, item, path, fallback)
                          : call_builtin(r, filter, &item, &rest));
    }
    return v_iter(r, out, "sync_do_map");
}

static struct value choose(struct render *r, struct value *a, const struct args *args, bool wanted,
                           bool by_attr)
{
    struct list *out = list_make(r, 0), *all;
    const struct builtin *test = NULL;
    struct args rest = {0};

    if (!value_true(a[0])) return v_iter(r, out, "select_or_reject");
    if (by_attr && !args->count)
        template_fail(r, TEMPLATE_RUNTIME, "missing parameter for attribute name");
    if (args->count > by_attr) {
        test = named_builtin(r, args->pos[by_attr], true);
        rest = args_after(args, 1u + by_attr);
    }
    all = value_items(r, a[0]);
    for (uint32_t i = 0; i < all->count; i++) {
        struct value v = all->items[i];
        if (by_attr) v = value_path(r, v, args->pos[0], v_absent());
        if (test) v = call_builtin(r, test, &v, &rest);
        if (value_true(v) == wanted) list_push(r, out, all->items[i]);
    }
    return v_iter(r, out, "select_or_reject");
}

static struct value filter_select(struct render *r, struct value *a, const struct args *args)
{
    return choose(r, a, args, true, false);
}

static struct value filter_reject(struct render *r, struct value *a, const struct args *args)
{
    return choose(r, a, args, false, false);
}

static struct value filter_selectattr(struct render *r, struct value *a, const struct args *args)
{
    return choose(r, a, args, true, true);
}

static struct value filter_rejectattr(struct render *r, struct value *a, const struct args *args)
{
    return choose(r, a, args, false, true);
}

/* --- parts of sequences --- */
static struct value filter_first(struct render *r, struct value *a, const struct args *args)
{
    struct list *all;

    (void)args;
    if (a[0].type == V_ITER) { /* takes one, leaves the rest */
        struct iter *iter = a[0].iter;
        if (iter->fault) template_fail(r, TEMPLATE_RUNTIME, "%s", iter->fault);
        if (iter->at == iter->items->count) return v_undefined("no first item, sequence was empty");
        return iter->items->items[iter->at++];
    }
    all = value_items(r, a[0]);
    return all->count ? all->items[0] : v_undefined("no first item, sequence was empty");
}

static struct value filter_last(struct render *r, struct value *a, const struct args *args)
{
    struct list *all;

    (void)args;
    if (a[0].type == V_ITER)
        template_fail(r, TEMPLATE_RUNTIME, "'generator' object is not reversible");
    all = value_items(r, a[0]);
    return all->count ? all->items[all->count - 1]
                      : v_undefined("no last item, sequence was empty");
}

static struct value filter_list(struct render *r, struct value *a, const struct args *args)
{
    (void)args;
    return v_list(value_items(r, a[0]));
}

static struct value filter_reverse(struct render *r, struct value *a, const struct args *args)
{
    struct value minus = v_int(-1), v;
    struct list *all, *l;

    (void)args;
    if (is_str(a[0])) return value_slice(r, a[0], v_none(), v_none(), minus);
    all = value_items(r, a[0]);
    l = list_make(r, all->count);
    for (uint32_t i = all->count; i > 0; i--)
        list_push(r, l, all->items[i - 1]);
    if (a[0].type == V_ITER) return v_list(l);
    v = v_iter(r, l, "reversed");
    return v;
}

static struct value filter_length(struct render *r, struct value *a, const struct args *args)
{
    (void)args;
    return v_int(value_length(r, a[0]));
}

static struct value filter_items(struct render *r, struct value *a, const struct args *args)
{
    struct value view = {.type = V_VIEW, .sub = VIEW_ITEMS};

    (void)args;
    if (a[0].type == V_UNDEFINED) return v_iter(r, list_make(r, 0), "do_items");
    if (a[0].type != V_DICT) {
        struct value v = v_iter(r, list_make(r, 0), "do_items");
        v.iter->fault = "can only get item pairs from a mapping"; /* when it is read */
        return v;
    }
    view.d = a[0].d;
    return v_iter(r, value_items(r, view), "do_items");
}

/* value | batch(linecount, fill_with) */
static struct value filter_batch(struct render *r, struct value *a, const struct args *args)
{
    struct list *all = value_items(r, a[0]), *out = list_make(r, 0), *row = NULL;
    int64_t width = arg_int(r, a[1], 0, "batch's linecount");

    (void)args;
    for (uint32_t i = 0; i < all->count; i++) {
        if (!row || row->count == width) {
            row = list_make(r, 0);
            list_push(r, out, v_list(row));
        }
        list_push(r, row, all->items[i]);
    }
    if (row && a[2].type != V_ABSENT && a[2].type != V_NONE)
        while (row->count < width) {
            render_step(r, 1);
            list_push(r, row, a[2]);
        }
    return v_iter(r, out, "do_batch");
}

/* value | slice(slices, fill_with) */
static struct value filter_slice(struct render *r, struct value *a, const struct args *args)
{
    struct list *all = value_items(r, a[0]), *out = list_make(r, 0);
    int64_t slices = arg_int(r, a[1], 0, "slice's count"), extra, each, at = 0;
    bool fill = a[2].type != V_ABSENT && a[2].type != V_NONE;

    (void)args;
    if (slices == 0) template_fail(r, TEMPLATE_RUNTIME, "integer division or modulo by zero");
    if (slices < 0) return v_iter(r, out, "sync_do_slice");
    each = all->count / slices;
    extra = all->count % slices;
    for (int64_t i = 0; i < slices; i++) {
        struct list *part = list_make(r, 0);
        render_step(r, 1);
        for (int64_t n = each + (i < extra); n > 0; n--)
            list_push(r, part, all->items[at++]);
        if (fill && i >= extra) list_push(r, part, a[2]);
        list_push(r, out, v_list(part));
    }
    return v_iter(r, out, "sync_do_slice");
}

/* --- single values --- */
static struct value filter_default(struct render *r, struct value *a, const struct args *args)
{
    bool take = a[0].type == V_UNDEFINED || (arg_flag(a[2]) && !value_true(a[0]));

    (void)args;
    if (!take) return a[0];
    return a[1].type == V_ABSENT ? v_text(r, "") : a[1];
}

static struct value filter_attr(struct render *r, struct value *a, const struct args *args)
{
    struct value v;

    (void)args;
    arg_str(r, a[1], "the name of an attribute");
    if (a[0].type == V_UNDEFINED) fail_undefined(r, a[0]);
    if (find_attr(r, a[0], a[1], &v)) return v;
    return v_undefined_attr(r, a[0], a[1]);
}

static struct value filter_abs(struct render *r, struct value *a, const struct args *args)
{
    (void)args;
    if (!is_number(a[0]))
        template_fail(r, TEMPLATE_RUNTIME, "bad operand type for abs(): '%s'", type_name(a[0]));
    if (a[0].type == V_FLOAT) return v_float(fabs(a[0].f));
    if (as_int(a[0]) == INT64_MIN)
        template_fail(r, TEMPLATE_LIMIT, "an integer does not fit 64 bits");
    return v_int(as_int(a[0]) < 0 ? -as_int(a[0]) : as_int(a[0]));
}

static double round_half_even(double f, int64_t precision)
{
    char text[400];

    if (precision > 300 || isnan(f) || isinf(f)) return f;
    if (precision < 0) {
        double unit = pow(10, (double)-precision);
        return isinf(unit) ? copysign(0, f) : nearbyint(f / unit) * unit;
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, f); /* exact, so ties are true ties */
    return strtod(text, NULL);
}

static struct value round_int(struct render *r, int64_t i, int64_t precision)
{
    int64_t unit = 1, rest, down;

    if (precision >= 0) return v_int(i);
    if (precision < -18) return v_int(0);
    for (; precision < 0; precision++)
        unit *= 10;
    rest = i % unit;
    if (rest < 0) rest += unit;
    if (__builtin_sub_overflow(i, rest, &down))
        template_fail(r, TEMPLATE_LIMIT, "an integer does not fit 64 bits");
    if (rest * 2 > unit || (rest * 2 == unit && down / unit % 2 != 0)) down += unit;
    return v_int(down);
}

/* value | round(precision, method) */
static struct value filter_round(struct render *r, struct value *a, const struct args *args)
{
    int64_t precision = arg_int(r, a[1], 0, "round's precision");
    bool ceil_it = is_str(a[2]) && str_is(a[2].s, "ceil");
    bool floor_it = is_str(a[2]) && str_is(a[2].s, "floor");
    double scale, f;

    (void)args;
    if (a[2].type != V_ABSENT && !ceil_it && !floor_it &&
        !(is_str(a[2]) && str_is(a[2].s, "common")))
        template_fail(r, TEMPLATE_RUNTIME, "method must be common, ceil or floor");
    if (!is_number(a[0])) {
        if (a[0].type == V_UNDEFINED && (ceil_it || floor_it)) fail_undefined(r, a[0]);
        template_fail(r, TEMPLATE_RUNTIME, "type %s cannot be rounded", type_name(a[0]));
    }
    if (!ceil_it && !floor_it)
        return is_integer(a[0]) ? round_int(r, as_int(a[0]), precision)
                                : v_float(round_half_even(a[0].f, precision));
    if (precision > 300 || precision < -300)
        template_fail(r, TEMPLATE_LIMIT, "round's precision is out of range");
    scale = pow(10, (double)precision);
    f = as_float(a[0]) * scale;
    if (isnan(f) || isinf(f))
        template_fail(r, TEMPLATE_RUNTIME, "cannot convert float infinity or NaN to integer");
    f = ceil_it ? ceil(f) : floor(f);
    return v_float((f == 0 ? 0 : f) / scale); /* Python's ceil and floor give ints: no -0 */
}

const struct builtin template_list_filters[] = {
    {"abs", filter_abs, "", 0, 0},
    {"attr", filter_attr, "name", 1, 0},
    {"batch", filter_batch, "linecount fill_with", 1, 0},
    {"count", filter_length, "", 0, 0},
    {"d", filter_default, "default_value boolean", 0, 0},
    {"default", filter_default, "default_value boolean", 0, 0},
    {"dictsort", filter_dictsort, "case_sensitive by reverse", 0, 0},
    {"first", filter_first, "", 0, 0},
    {"groupby", filter_groupby, "attribute default case_sensitive", 1, 0},
    {"items", filter_items, "", 0, 0},
    {"last", filter_last, "", 0, 0},
    {"length", filter_length, "", 0, 0},
    {"list", filter_list, "", 0, 0},
    {"map", filter_map, NULL, 0, 0},
    {"max", filter_max, "case_sensitive attribute", 0, 0},
    {"min", filter_min, "case_sensitive attribute", 0, 0},
    {"reject", filter_reject, NULL, 0, 0},
    {"rejectattr", filter_rejectattr, NULL, 0, 0},
    {"reverse", filter_reverse, "", 0, 0},
    {"round", filter_round, "precision method", 0, 0},
    {"select", filter_select, NULL, 0, 0},
    {"selectattr", filter_selectattr, NULL, 0, 0},
    {"slice", filter_slice, "slices fill_with", 1, 0},
    {"sort", filter_sort, "reverse case_sensitive attribute", 0, 0},
    {"sum", filter_sum, "attribute start", 0, 0},
    {"unique", filter_unique, "case_sensitive attribute", 0, 0},
    {0},
};
