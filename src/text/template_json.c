/* template_json.c - the `tojson` of transformers: json.dumps(value, ensure_ascii, indent, separators, sort_keys). */
#include "text/template_ast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void sink_json_str(struct sink *s, const struct str *text, bool ascii)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
    uint32_t hint = 0, from = 0;

    sink_put(s, "\"", 1, false);
    for (uint32_t at = 0, next = 0; at < text->len; at = next) {
        uint32_t code = str_next(text->ptr, &next);
        const char *simple = code && code < 0x80 ? strchr(plain, (int)code) : NULL;
        char escape[16];
        if (code >= 0x20 && code != '"' && code != '\\' && (!ascii || code < 0x7f)) continue;
        sink_sub(s, text, from, at);
        from = next;
        if (simple)
            snprintf(escape, sizeof escape, "\\%c", letter[simple - plain]);
        else if (code < 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x", code);
        else
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10),
                     0xdc00 + (code & 0x3ff));
        sink_put(s, escape, strlen(escape), str_marked_at(text, at, &hint));
    }
    sink_sub(s, text, from, text->len);
    sink_put(s, "\"", 1, false);
}

static void sink_json_number(struct sink *s, struct value v)
{
    if (v.type != V_FLOAT)
        sink_repr(s, v);
    else if (isnan(v.f))
        sink_text(s, "NaN");
    else if (isinf(v.f))
        sink_text(s, v.f > 0 ? "Infinity" : "-Infinity");
    else
        sink_float(s, v.f);
}

static void sink_json_key(struct sink *s, struct value key, const struct json_style *style)
{
    switch (key.type) {
    case V_STR: sink_json_str(s, key.s, style->ascii); return;
    case V_NONE: sink_text(s, "\"null\""); return;
    case V_BOOL: sink_text(s, key.b ? "\"true\"" : "\"false\""); return;
    case V_INT:
    case V_FLOAT:
        sink_text(s, "\"");
        sink_json_number(s, key);
        sink_text(s, "\"");
        return;
    default:
        template_fail(s->r, TEMPLATE_RUNTIME, "keys must be str, int, float, bool or None, not %s",
                      type_name(key));
    }
}

static void new_line(struct sink *s, const struct json_style *style, uint32_t level)
{
    if (!style->pretty) return;
    sink_put(s, "\n", 1, false);
    sink_fill(s, style->indent, level);
}

static void sink_json_list(struct sink *s, const struct list *l, const struct json_style *style,
                           uint32_t level)
{
    if (!l->count) {
        sink_text(s, "[]");
        return;
    }
    sink_put(s, "[", 1, false);
    for (uint32_t i = 0; i < l->count; i++) {
        if (i) sink_str(s, style->item_separator);
        new_line(s, style, level + 1);
        sink_json(s, l->items[i], style, level + 1);
    }
    new_line(s, style, level);
    sink_put(s, "]", 1, false);
}

/* The entries of d in the order of their keys; a fault where the keys cannot be compared. */
static const struct entry *sorted_entries(struct render *r, const struct dict *d)
{
    struct entry *sorted = render_alloc(r, d->count * sizeof *sorted);

    for (uint32_t i = 0; i < d->count;
         i++) { /* by insertion: objects are small, steps are counted */
        uint32_t at = i;
        bool ordered;
        for (; at > 0 && value_compare(r, d->entries[i].key, sorted[at - 1].key, "<", &ordered) < 0;
             at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = d->entries[i];
    }
    return sorted;
}

static void sink_json_dict(struct sink *s, const struct dict *d, const struct json_style *style,
                           uint32_t level)
{
    const struct entry *entries = style->sort_keys ? sorted_entries(s->r, d) : d->entries;

    if (!d->count) {
        sink_text(s, "{}");
        return;
    }
    sink_put(s, "{", 1, false);
    for (uint32_t i = 0; i < d->count; i++) {
        if (i) sink_str(s, style->item_separator);
        new_line(s, style, level + 1);
        sink_json_key(s, entries[i].key, style);
        sink_str(s, style->key_separator);
        sink_json(s, entries[i].value, style, level + 1);
    }
    new_line(s, style, level);
    sink_put(s, "}", 1, false);
}

void sink_json(struct sink *s, struct value v, const struct json_style *style, uint32_t level)
{
    render_step(s->r, 1);
    switch (v.type) {
    case V_NONE: sink_text(s, "null"); return;
    case V_BOOL: sink_text(s, v.b ? "true" : "false"); return;
    case V_INT:
    case V_FLOAT: sink_json_number(s, v); return;
    case V_STR: sink_json_str(s, v.s, style->ascii); return;
    default: break;
    }
    render_enter(s->r);
    if (v.type == V_LIST || v.type == V_TUPLE)
        sink_json_list(s, v.l, style, level);
    else if (v.type == V_DICT)
        sink_json_dict(s, v.d, style, level);
    else
        template_fail(s->r, TEMPLATE_RUNTIME, "Object of type %s is not JSON serializable",
                      type_name(v));
    render_leave(s->r);
}
