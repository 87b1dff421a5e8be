/* template_value.c - making, comparing and asking values, with Python's meaning of it. */
#include "text/template_ast.h"

#include <math.h>
#include <stdio.h>

#include "base/hash.h"

enum { DICT_INDEX_FROM = 9, JSON_DEPTH_MAX = 1000, ELEMENTS_MAX = 1 << 26 };

/* --- making --- */
struct value v_str(struct render *r, const char *ptr, size_t len, bool marked)
{
    struct str *s;

    if (len > STR_BYTES_MAX) template_fail(r, TEMPLATE_LIMIT, "a string is too long");
    s = render_alloc(r, sizeof *s);
    s->ptr = ptr;
    s->len = (uint32_t)len;
    s->chars = STR_UNKNOWN;
    if (marked && len) {
        s->whole = (struct run){0, s->len};
        s->runs = &s->whole;
        s->run_count = 1;
    }
    return (struct value){.type = V_STR, .s = s};
}

struct value v_text(struct render *r, const char *literal)
{
    return v_str(r, literal, strlen(literal), false);
}

static struct value name_undefined(struct render *r, struct value object, struct value name,
                                   const char *format)
{
    struct sink text;
    struct value v = {.type = V_UNDEFINED};
    struct value shown = value_display(r, name);
    char line[200];
    int n = shown.s->len < 80 ? (int)shown.s->len : 80;

    snprintf(line, sizeof line, format, type_name(object), n, shown.s->ptr);
    sink_init(&text, r);
    sink_put(&text, line, strlen(line) + 1, false);
    v.hint = text.ptr;
    return v;
}

struct value v_undefined_attr(struct render *r, struct value object, struct value name)
{
    if (object.type == V_NONE)
        return name_undefined(r, object, name, "'%.0sNone' has no attribute '%.*s'");
    if (!is_str(name)) return name_undefined(r, object, name, "%s object has no element %.*s");
    return name_undefined(r, object, name, "'%s object' has no attribute '%.*s'");
}

struct value v_unsafe_attr(struct render *r, struct value object, struct value name)
{
    struct value v = name_undefined(r, object, name,
                                    "access to an attribute of a '%s' object is unsafe: '%.*s'");

    v.sub = UNDEFINED_UNSAFE;
    return v;
}

void fail_undefined(struct render *r, struct value v)
{
    template_fail(r, v.sub == UNDEFINED_UNSAFE ? TEMPLATE_SECURITY : TEMPLATE_UNDEFINED, "%s",
                  v.hint ? v.hint : "a value is undefined");
}

struct value v_iter(struct render *r, struct list *items, const char *name)
{
    struct iter *iter = render_alloc(r, sizeof *iter);

    *iter = (struct iter){.items = items, .name = name};
    return (struct value){.type = V_ITER, .iter = iter};
}

struct list *list_make(struct render *r, uint32_t cap)
{
    struct list *l = render_alloc(r, sizeof *l);

    render_step(r, cap / 8);
    if (cap) l->items = render_alloc(r, cap * sizeof *l->items);
    l->cap = cap;
    return l;
}

void list_push(struct render *r, struct list *l, struct value v)
{
    if (l->count == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        struct value *more;
        if (cap > ELEMENTS_MAX) template_fail(r, TEMPLATE_LIMIT, "a list is too long");
        more = render_alloc(r, cap * sizeof *more);
        if (l->count) memcpy(more, l->items, l->count * sizeof *more);
        l->items = more;
        l->cap = cap;
    }
    l->items[l->count++] = v;
}

/* --- dicts --- */
static uint32_t hash_value(struct render *r, struct value v)
{
    switch (v.type) {
    case V_STR: return str_hash(v.s);
    case V_BOOL:
    case V_INT: return (uint32_t)hash_mix64((uint64_t)as_int(v));
    case V_FLOAT:
        if (v.f == floor(v.f) && fabs(v.f) < 9e18)
            return (uint32_t)hash_mix64((uint64_t)(int64_t)v.f);
        return (uint32_t)hash_bytes(&v.f, sizeof v.f, 1);
    case V_TUPLE: {
        uint64_t h = 7;
        render_enter(r);
        render_step(r, v.l->count);
        for (uint32_t i = 0; i < v.l->count; i++)
            h = hash_mix64(h * 31 + hash_value(r, v.l->items[i]));
        render_leave(r);
        return (uint32_t)h;
    }
    case V_LIST:
    case V_DICT: template_fail(r, TEMPLATE_RUNTIME, "unhashable type: '%s'", type_name(v));
    default: return v.type;
    }
}

struct dict *dict_make(struct render *r, uint32_t cap)
{
    struct dict *d = render_alloc(r, sizeof *d);

    if (cap) d->entries = render_alloc(r, cap * sizeof *d->entries);
    d->cap = cap;
    return d;
}

static void dict_reindex(struct render *r, struct dict *d)
{
    d->mask = 31;
    while (d->mask < d->cap * 2)
        d->mask = d->mask * 2 + 1;
    d->index = render_alloc(r, (d->mask + (size_t)1) * sizeof *d->index);
    for (uint32_t i = 0; i < d->count; i++) {
        uint32_t at = hash_value(r, d->entries[i].key) & d->mask;
        while (d->index[at])
            at = (at + 1) & d->mask;
        d->index[at] = i + 1;
    }
}

static bool key_equal(struct render *r, struct value a, struct value b)
{
    if (a.type == V_STR && b.type == V_STR) return str_equal(a.s, b.s);
    return value_equal(r, a, b);
}

struct value *dict_find(struct render *r, const struct dict *d, struct value key)
{
    if (!d->index) {
        if (!is_str(key)) hash_value(r, key);
        for (uint32_t i = 0; i < d->count; i++)
            if (key_equal(r, d->entries[i].key, key)) return &d->entries[i].value;
        return NULL;
    }
    for (uint32_t at = hash_value(r, key) & d->mask; d->index[at]; at = (at + 1) & d->mask) {
        struct entry *e = &d->entries[d->index[at] - 1];
        if (key_equal(r, e->key, key)) return &e->value;
    }
    return NULL;
}

void dict_set(struct render *r, struct dict *d, struct value key, struct value value)
{
    struct value *there = dict_find(r, d, key);

    if (there) {
        *there = value;
        return;
    }
    if (d->count == d->cap) {
        uint32_t cap = d->cap ? d->cap * 2 : 4;
        struct entry *more;
        if (cap > ELEMENTS_MAX) template_fail(r, TEMPLATE_LIMIT, "a dict is too large");
        more = render_alloc(r, cap * sizeof *more);
        if (d->count) memcpy(more, d->entries, d->count * sizeof *more);
        d->entries = more;
        d->cap = cap;
        if (d->index) dict_reindex(r, d);
    }
    d->entries[d->count++] = (struct entry){key, value};
    if (d->index) {
        uint32_t at = hash_value(r, key) & d->mask;
        while (d->index[at])
            at = (at + 1) & d->mask;
        d->index[at] = d->count;
    } else if (d->count >= DICT_INDEX_FROM) {
        dict_reindex(r, d);
    }
}

/* --- from JSON --- */
static struct value object_from_json(struct render *r, const json_t *json, bool marked,
                                     uint32_t depth)
{
    struct dict *d = dict_make(r, (uint32_t)json_object_size(json));
    const char *name;
    size_t len;
    json_t *member;

    json_object_keylen_foreach((json_t *)json, name, len, member)
    {
        d->entries[d->count++] = (struct entry){v_str(r, name, len, marked),
                                                value_from_json(r, member, marked, depth + 1)};
    }
    if (d->count >= DICT_INDEX_FROM) dict_reindex(r, d);
    return v_dict(d);
}

struct value value_from_json(struct render *r, const json_t *json, bool marked, uint32_t depth)
{
    struct list *l;

    if (depth > JSON_DEPTH_MAX)
        template_fail(r, TEMPLATE_LIMIT, "the conversation is nested more than %d deep",
                      JSON_DEPTH_MAX);
    switch (json_typeof(json)) {
    case JSON_STRING: return v_str(r, json_string_value(json), json_string_length(json), marked);
    case JSON_INTEGER: return v_int(json_integer_value(json));
    case JSON_REAL: return v_float(json_real_value(json));
    case JSON_TRUE: return v_bool(true);
    case JSON_FALSE: return v_bool(false);
    case JSON_NULL: return v_none();
    case JSON_OBJECT: return object_from_json(r, json, marked, depth);
    case JSON_ARRAY: break;
    }
    l = list_make(r, (uint32_t)json_array_size(json));
    for (size_t i = 0; i < json_array_size(json); i++)
        l->items[l->count++] = value_from_json(r, json_array_get(json, i), marked, depth + 1);
    return v_list(l);
}

static bool is_word(const json_t *value, const char *word)
{
    return slice_eq(slice_of(json_string_value(value), json_string_length(value)), slice_str(word));
}

/* A message of a user or a tool: all of it is marked but the role, which is known to be one of those two words. */
static struct value message_from_json(struct render *r, const json_t *message)
{
    const json_t *role = json_object_get(message, "role");
    bool outside = is_word(role, "user") || is_word(role, "tool");
    struct value v = value_from_json(r, message, outside, 2), *kept;

    if (outside && (kept = dict_find(r, v.d, v_text(r, "role"))))
        *kept = v_str(r, json_string_value(role), json_string_length(role), false);
    return v;
}

struct dict *context_from_json(struct render *r, const json_t *context)
{
    struct dict *d = dict_make(r, (uint32_t)json_object_size(context));
    const char *name;
    size_t len;
    json_t *member;

    json_object_keylen_foreach((json_t *)context, name, len, member)
    {
        struct value key = v_str(r, name, len, false), v;
        if (strcmp(name, "messages") == 0 && json_is_array(member)) {
            struct list *l = list_make(r, (uint32_t)json_array_size(member));
            for (size_t i = 0; i < json_array_size(member); i++)
                l->items[l->count++] = message_from_json(r, json_array_get(member, i));
            v = v_list(l);
        } else {
            v = value_from_json(r, member, strcmp(name, "documents") == 0, 1);
        }
        dict_set(r, d, key, v);
    }
    return d;
}

/* --- asking --- */
double as_float(struct value v)
{
    return v.type == V_FLOAT ? v.f : (double)as_int(v);
}

const char *type_name(struct value v)
{
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};

    switch (v.type) {
    case V_UNDEFINED: return "Undefined";
    case V_NONE: return "NoneType";
    case V_BOOL: return "bool";
    case V_INT: return "int";
    case V_FLOAT: return "float";
    case V_STR: return v.sub ? "Markup" : "str";
    case V_LIST: return "list";
    case V_TUPLE: return v.sub ? "_GroupTuple" : "tuple";
    case V_DICT: return "dict";
    case V_VIEW: return views[v.sub];
    case V_RANGE: return "range";
    case V_ITER: return "generator";
    case V_NAMESPACE: return "Namespace";
    case V_MACRO: return "Macro";
    case V_LOOP: return "LoopContext";
    case V_BUILTIN: return "function";
    case V_METHOD: return "method";
    case V_CYCLER: return "Cycler";
    case V_JOINER: return "Joiner";
    default: return "object";
    }
}

bool value_true(struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STR: return v.s->len != 0;
    case V_LIST:
    case V_TUPLE: return v.l->count != 0;
    case V_DICT:
    case V_VIEW: return v.d->count != 0;
    case V_RANGE: return v.range->count != 0;
    case V_LOOP: return v.loop->items->count != 0;
    default: return true;
    }
}

static bool lists_equal(struct render *r, const struct list *a, const struct list *b)
{
    bool same = a->count == b->count;

    render_enter(r);
    for (uint32_t i = 0; same && a != b && i < a->count; i++)
        same = value_equal(r, a->items[i], b->items[i]);
    render_leave(r);
    return same;
}

static bool dicts_equal(struct render *r, const struct dict *a, const struct dict *b)
{
    bool same = a->count == b->count;

    render_enter(r);
    for (uint32_t i = 0; same && a != b && i < a->count; i++) {
        struct value *other = dict_find(r, b, a->entries[i].key);
        same = other && value_equal(r, a->entries[i].value, *other);
    }
    render_leave(r);
    return same;
}

bool value_equal(struct render *r, struct value a, struct value b)
{
    render_step(r, 1);
    if (is_number(a) && is_number(b)) {
        if (is_integer(a) && is_integer(b)) return as_int(a) == as_int(b);
        return as_float(a) == as_float(b);
    }
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_STR: return str_equal(a.s, b.s);
    case V_LIST:
    case V_TUPLE: return lists_equal(r, a.l, b.l);
    case V_DICT: return dicts_equal(r, a.d, b.d);
    case V_VIEW:
        if (a.sub != b.sub || a.sub == VIEW_VALUES) return false;
        return lists_equal(r, value_items(r, a), value_items(r, b));
    case V_RANGE: return lists_equal(r, value_items(r, a), value_items(r, b));
    case V_UNDEFINED:
    case V_NONE: return true;
    default: return a.l == b.l; /* identity */
    }
}

static int lists_compare(struct render *r, const struct list *a, const struct list *b,
                         const char *op, bool *ordered)
{
    uint32_t n = a->count < b->count ? a->count : b->count;
    int order = 0;

    *ordered = true;
    render_enter(r);
    for (uint32_t i = 0; i < n; i++) {
        if (value_equal(r, a->items[i], b->items[i])) continue;
        order = value_compare(r, a->items[i], b->items[i], op, ordered);
        render_leave(r);
        return order;
    }
    render_leave(r);
    return (a->count > b->count) - (a->count < b->count);
}

int value_compare(struct render *r, struct value a, struct value b, const char *op, bool *ordered)
{
    *ordered = true;
    render_step(r, 1);
    if (is_number(a) && is_number(b)) {
        double x, y;
        if (is_integer(a) && is_integer(b))
            return (as_int(a) > as_int(b)) - (as_int(a) < as_int(b));
        x = as_float(a);
        y = as_float(b);
        *ordered = x == x && y == y;
        return (x > y) - (x < y);
    }
    if (a.type == V_UNDEFINED) fail_undefined(r, a);
    if (b.type == V_UNDEFINED) fail_undefined(r, b);
    if (is_str(a) && is_str(b)) return str_compare(a.s, b.s);
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE))
        return lists_compare(r, a.l, b.l, op, ordered);
    template_fail(r, TEMPLATE_RUNTIME, "'%s' not supported between instances of '%s' and '%s'", op,
                  type_name(a), type_name(b));
}

static bool range_has(const struct range *range, struct value item)
{
    double at;

    if (!is_number(item) || !range->count) return false;
    at = (as_float(item) - (double)range->start) / (double)range->step;
    return at >= 0 && at < range->count && at == floor(at);
}

bool value_contains(struct render *r, struct value container, struct value item)
{
    struct list *items;

    switch (container.type) {
    case V_UNDEFINED:
        if (container.sub == UNDEFINED_UNSAFE) fail_undefined(r, container);
        return false;
    case V_STR:
        if (!is_str(item)) {
            if (item.type == V_UNDEFINED) fail_undefined(r, item);
            template_fail(r, TEMPLATE_RUNTIME,
                          "'in <string>' requires string as left operand, not %s", type_name(item));
        }
        return str_find(r, container.s, item.s, 0) != UINT32_MAX;
    case V_DICT: return dict_find(r, container.d, item) != NULL;
    case V_VIEW:
        if (container.sub == VIEW_KEYS) return dict_find(r, container.d, item) != NULL;
        break;
    case V_RANGE: return range_has(container.range, item);
    default: break;
    }
    if (!value_iterable(container))
        template_fail(r, TEMPLATE_RUNTIME, "argument of type '%s' is not iterable",
                      type_name(container));
    items = value_items(r, container);
    for (uint32_t i = 0; i < items->count; i++)
        if (value_equal(r, items->items[i], item)) return true;
    return false;
}

uint32_t value_length(struct render *r, struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
        if (v.sub == UNDEFINED_UNSAFE) fail_undefined(r, v);
        return 0;
    case V_STR: return str_chars(v.s);
    case V_LIST:
    case V_TUPLE: return v.l->count;
    case V_DICT:
    case V_VIEW: return v.d->count;
    case V_RANGE: return v.range->count;
    case V_LOOP: return v.loop->items->count;
    default: template_fail(r, TEMPLATE_RUNTIME, "object of type '%s' has no len()", type_name(v));
    }
}

bool value_iterable(struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
    case V_ITER:
    case V_LOOP: return true;
    default: return false;
    }
}

bool value_callable(struct value v)
{
    return v.type == V_MACRO || v.type == V_BUILTIN || v.type == V_METHOD || v.type == V_JOINER ||
           v.type == V_LOOP || v.type == V_UNDEFINED; /* Undefined has a __call__, which fails */
}

static struct list *dict_items(struct render *r, const struct dict *d, enum view_kind kind)
{
    struct list *l = list_make(r, d->count);

    render_step(r, d->count);
    for (uint32_t i = 0; i < d->count; i++) {
        struct value v = kind == VIEW_VALUES ? d->entries[i].value : d->entries[i].key;
        if (kind == VIEW_ITEMS) {
            struct list *pair = list_make(r, 2);
            list_push(r, pair, v);
            list_push(r, pair, d->entries[i].value);
            v = v_tuple(pair);
        }
        list_push(r, l, v);
    }
    return l;
}

static struct list *str_items(struct render *r, const struct str *s)
{
    struct list *l = list_make(r, str_chars(s));

    render_step(r, l->cap);
    for (uint32_t at = 0, next = 0; at < s->len; at = next) {
        str_next(s->ptr, &next);
        list_push(r, l, str_sub(r, s, at, next));
    }
    return l;
}

static struct list *range_items(struct render *r, const struct range *range)
{
    struct list *l = list_make(r, range->count);

    render_step(r, range->count);
    for (uint32_t i = 0; i < range->count; i++)
        list_push(r, l, v_int(range->start + (int64_t)i * range->step));
    return l;
}

static struct list *rest_of_iter(struct render *r, struct iter *iter)
{
    struct list *rest = list_make(r, 0);

    if (iter->fault) template_fail(r, TEMPLATE_RUNTIME, "%s", iter->fault);
    rest->items = iter->items->items + iter->at;
    rest->count = rest->cap = iter->items->count - iter->at;
    iter->at = iter->items->count;
    return rest;
}

struct list *value_items(struct render *r, struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
        if (v.sub == UNDEFINED_UNSAFE) fail_undefined(r, v);
        return list_make(r, 0);
    case V_STR: return str_items(r, v.s);
    case V_LIST:
    case V_TUPLE: return v.l;
    case V_DICT: return dict_items(r, v.d, VIEW_KEYS);
    case V_VIEW: return dict_items(r, v.d, v.sub);
    case V_RANGE: return range_items(r, v.range);
    case V_ITER: return rest_of_iter(r, v.iter);
    default: template_fail(r, TEMPLATE_RUNTIME, "'%s' object is not iterable", type_name(v));
    }
}

int64_t arg_int(struct render *r, struct value v, int64_t absent, const char *what)
{
    if (v.type == V_ABSENT) return absent;
    if (v.type == V_UNDEFINED) fail_undefined(r, v);
    if (!is_integer(v))
        template_fail(r, TEMPLATE_RUNTIME, "%s must be an integer, not %s", what, type_name(v));
    return as_int(v);
}

struct str *arg_str(struct render *r, struct value v, const char *what)
{
    if (v.type == V_UNDEFINED) fail_undefined(r, v);
    if (!is_str(v))
        template_fail(r, TEMPLATE_RUNTIME, "%s must be a string, not %s", what, type_name(v));
    return v.s;
}
