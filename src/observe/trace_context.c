#include "observe/trace_context.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* `bytes` bytes as lowercase hex; false where they are none. */
static bool read_hex(const char *text, uint8_t *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        int high = hex_value(text[2 * i]), low = high < 0 ? -1 : hex_value(text[2 * i + 1]);

        if (low < 0) return false;
        out[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}

static bool is_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

/* version "-" trace-id "-" parent-id "-" flags; a later version may go on behind another "-". */
static bool read_parent(const char *text, struct trace_context *out)
{
    uint8_t version, flags;
    size_t len = strlen(text);

    if (len < 55 || !read_hex(text, &version, 1) || version == 0xff) return false;
    if (version == 0 ? len != 55 : len > 55 && text[55] != '-') return false;
    if (text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
    if (!read_hex(text + 3, out->trace_id, 16) || !read_hex(text + 36, out->parent_id, 8) ||
        !read_hex(text + 53, &flags, 1))
        return false;
    out->parent_sampled = flags & 1;
    return !is_zero(out->trace_id, 16) && !is_zero(out->parent_id, 8);
}

static bool is_state(const char *text)
{
    size_t len = strlen(text);

    if (len > TRACE_STATE_MAX) return false;
    for (size_t i = 0; i < len; i++)
        if ((text[i] < 0x20 && text[i] != '\t') || (unsigned char)text[i] > 0x7e) return false;
    return true;
}

void trace_context_read(const char *traceparent, const char *tracestate, struct trace_context *out)
{
    *out = (struct trace_context){0};
    if (!traceparent) return;
    out->has_parent = read_parent(traceparent, out);
    if (!out->has_parent)
        *out = (struct trace_context){0};
    else if (tracestate && is_state(tracestate))
        snprintf(out->state, sizeof out->state, "%s", tracestate);
}

static void make_id(uint8_t *id, size_t bytes)
{
    if (getrandom(id, bytes, GRND_NONBLOCK) != (ssize_t)bytes || is_zero(id, bytes)) id[0] = 1;
}

void trace_context_begin(struct trace_context *context)
{
    if (!context->has_parent) make_id(context->trace_id, sizeof context->trace_id);
    make_id(context->span_id, sizeof context->span_id);
}

void trace_context_id(const struct trace_context *context, char out[33])
{
    out[0] = 0;
    if (is_zero(context->trace_id, 16)) return;
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", context->trace_id[i]);
}

bool trace_id_in_ratio(const uint8_t trace_id[16], double ratio)
{
    uint64_t low = 0;

    for (int i = 8; i < 16; i++)
        low = low << 8 | trace_id[i];
    if (ratio >= 1) return true;
    return (double)(low & INT64_MAX) < ratio * 0x1p63;
}
