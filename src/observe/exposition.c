#include "observe/exposition.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

void expo_family(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void expo_label(struct buf *out, const char *value)
{
    buf_append_char(out, '"');
    for (const char *c = value; *c; c++) {
        if (*c == '\n')
            buf_append_str(out, "\\n");
        else {
            if (*c == '"' || *c == '\\') buf_append_char(out, '\\');
            buf_append_char(out, *c);
        }
    }
    buf_append_char(out, '"');
}

void expo_pythonic(double value, char out[40])
{
    if (value == floor(value) && fabs(value) < 1e6)
        snprintf(out, 40, "%.1f", value);
    else if (value >= 1e6 && value == floor(value)) {
        double mantissa = value;
        int exponent = 0;

        while (mantissa >= 10) {
            mantissa /= 10;
            exponent++;
        }
        snprintf(out, 40, "%.15ge+%02d", mantissa, exponent);
    } else {
        snprintf(out, 40, "%.10g", value);
    }
}

static void put_number(struct buf *out, double value, int pythonic)
{
    char text[40];

    if (pythonic)
        expo_pythonic(value, text);
    else
        snprintf(text, sizeof text, "%.10g", value);
    buf_append_str(out, text);
}

static void put_bucket(struct buf *out, const char *name, const char *labels, const char *le,
                       uint64_t count, int pythonic)
{
    buf_printf(out, "%s_bucket{%s%sle=\"%s\"} ", name, labels, *labels ? "," : "", le);
    buf_printf(out, pythonic ? "%" PRIu64 ".0\n" : "%" PRIu64 "\n", count);
}

void expo_histogram(struct buf *out, const char *name, const char *labels,
                    const struct histogram *histogram, enum histogram_family family,
                    int64_t bound_max, int pythonic)
{
    struct histogram *h =
        (struct histogram *)(uintptr_t)histogram; /* C17: no atomic loads of const */
    uint32_t count;
    const int64_t *bounds = histogram_bounds(family, &count);
    double unit = histogram_unit(family);
    uint64_t total = 0;
    char le[40];

    for (uint32_t i = 0; i < count; i++) {
        total += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
        if (bound_max && bounds[i] > bound_max) continue;
        if (pythonic)
            expo_pythonic((double)bounds[i] / unit, le);
        else
            snprintf(le, sizeof le, "%.10g", (double)bounds[i] / unit);
        put_bucket(out, name, labels, le, total, pythonic);
    }
    total += atomic_load_explicit(&h->counts[HISTOGRAM_BUCKETS], memory_order_relaxed);
    put_bucket(out, name, labels, "+Inf", total, pythonic);
    const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    buf_printf(out, "%s_sum%s%s%s ", name, open, labels, close);
    put_number(out, (double)atomic_load_explicit(&h->sum, memory_order_relaxed) / unit, pythonic);
    buf_printf(out, "\n%s_count%s%s%s ", name, open, labels, close);
    buf_printf(out, pythonic ? "%" PRIu64 ".0\n" : "%" PRIu64 "\n", total);
}
