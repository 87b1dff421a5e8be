/* template_tests.c - the tests of `is`. */
#include "text/template_ast.h"

#define TEST_FN(name, expression)                                                               \
    static struct value test_##name(struct render *r, struct value *a, const struct args *args) \
    {                                                                                           \
        (void)r;                                                                                \
        (void)args;                                                                             \
        return v_bool(expression);                                                              \
    }

static bool compares(struct render *r, struct value a, struct value b, const char *op, bool low,
                     bool same, bool high)
{
    bool ordered;
    int order = value_compare(r, a, b, op, &ordered);

    return ordered && (order < 0 ? low : order > 0 ? high : same);
}

static bool remainder_is(struct render *r, struct value v, struct value divisor, int64_t want)
{
    return value_equal(r, binary_op(r, OP_MOD, v, divisor), v_int(want));
}

static bool all_cased(struct render *r, struct value v, bool upper)
{
    struct str *s = value_display(r, v).s;
    bool cased = false;

    for (uint32_t at = 0; at < s->len;) {
        uint32_t code = str_next(s->ptr, &at);
        if (upper ? char_lower(code) || char_title(code) : char_upper(code) || char_title(code))
            return false;
        cased |= upper ? char_upper(code) : char_lower(code);
    }
    return cased;
}

static bool is_sequence_value(struct value v)
{
    return v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE || v.type == V_DICT ||
           v.type == V_RANGE || v.type == V_UNDEFINED;
}

static bool same_object(struct value a, struct value b)
{
    if (a.type != b.type) return false;
    if (a.type == V_BOOL) return a.b == b.b;
    if (a.type == V_NONE) return true;
    if (a.type == V_STR) return a.s->ptr == b.s->ptr && a.s->len == b.s->len;
    return a.i == b.i;
}

TEST_FN(defined, a[0].type != V_UNDEFINED)
TEST_FN(undefined, a[0].type == V_UNDEFINED)
TEST_FN(none, a[0].type == V_NONE)
TEST_FN(boolean, a[0].type == V_BOOL)
TEST_FN(true, a[0].type == V_BOOL && a[0].b)
TEST_FN(false, a[0].type == V_BOOL && !a[0].b)
TEST_FN(integer, a[0].type == V_INT)
TEST_FN(float, a[0].type == V_FLOAT)
TEST_FN(number, is_number(a[0]))
TEST_FN(string, is_str(a[0]))
TEST_FN(mapping, a[0].type == V_DICT)
TEST_FN(sequence, is_sequence_value(a[0]))
TEST_FN(iterable, value_iterable(a[0]))
TEST_FN(callable, value_callable(a[0]))
TEST_FN(escaped, is_str(a[0]) && a[0].sub)
TEST_FN(lower, all_cased(r, a[0], false))
TEST_FN(upper, all_cased(r, a[0], true))
TEST_FN(odd, remainder_is(r, a[0], v_int(2), 1))
TEST_FN(even, remainder_is(r, a[0], v_int(2), 0))
TEST_FN(divisibleby, remainder_is(r, a[0], a[1], 0))
TEST_FN(sameas, same_object(a[0], a[1]))
TEST_FN(in, value_contains(r, a[1], a[0]))
TEST_FN(eq, value_equal(r, a[0], a[1]))
TEST_FN(ne, !value_equal(r, a[0], a[1]))
TEST_FN(lt, compares(r, a[0], a[1], "<", true, false, false))
TEST_FN(le, compares(r, a[0], a[1], "<=", true, true, false))
TEST_FN(gt, compares(r, a[0], a[1], ">", false, false, true))
TEST_FN(ge, compares(r, a[0], a[1], ">=", false, true, true))
TEST_FN(filter, is_str(a[0]) && filter_find(slice_of(a[0].s->ptr, a[0].s->len)))
TEST_FN(test, is_str(a[0]) && test_find(slice_of(a[0].s->ptr, a[0].s->len)))

const struct builtin template_tests[] = {
    {"defined", test_defined, "", 0, 0},
    {"undefined", test_undefined, "", 0, 0},
    {"none", test_none, "", 0, 0},
    {"boolean", test_boolean, "", 0, 0},
    {"true", test_true, "", 0, 0},
    {"false", test_false, "", 0, 0},
    {"integer", test_integer, "", 0, 0},
    {"float", test_float, "", 0, 0},
    {"number", test_number, "", 0, 0},
    {"string", test_string, "", 0, 0},
    {"mapping", test_mapping, "", 0, 0},
    {"sequence", test_sequence, "", 0, 0},
    {"iterable", test_iterable, "", 0, 0},
    {"callable", test_callable, "", 0, 0},
    {"escaped", test_escaped, "", 0, 0},
    {"lower", test_lower, "", 0, 0},
    {"upper", test_upper, "", 0, 0},
    {"odd", test_odd, "", 0, 0},
    {"even", test_even, "", 0, 0},
    {"divisibleby", test_divisibleby, "num", 1, 0},
    {"sameas", test_sameas, "other", 1, 0},
    {"in", test_in, "seq", 1, 0},
    {"eq", test_eq, "b", 1, 0},
    {"==", test_eq, "b", 1, 0},
    {"equalto", test_eq, "b", 1, 0},
    {"ne", test_ne, "b", 1, 0},
    {"!=", test_ne, "b", 1, 0},
    {"lt", test_lt, "b", 1, 0},
    {"<", test_lt, "b", 1, 0},
    {"lessthan", test_lt, "b", 1, 0},
    {"le", test_le, "b", 1, 0},
    {"<=", test_le, "b", 1, 0},
    {"gt", test_gt, "b", 1, 0},
    {">", test_gt, "b", 1, 0},
    {"greaterthan", test_gt, "b", 1, 0},
    {"ge", test_ge, "b", 1, 0},
    {">=", test_ge, "b", 1, 0},
    {"filter", test_filter, "", 0, 0},
    {"test", test_test, "", 0, 0},
    {0},
};
