#include "api/json_out.h"

#include <math.h>

/* What stands for each byte below 0x60 in a string: 0 itself, 'u' \u00XX, else the letter after the backslash. */
static const char escapes[128] = {
    'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b',         't',           'n', 'u',
    'f', 'r', 'u', 'u', 'u', 'u', 'u', 'u', 'u',         'u',           'u', 'u',
    'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', ['"'] = '"', ['\\'] = '\\',
};

void json_out_escaped(struct buf *out, struct slice text)
{
    static const char hex[] = "0123456789abcdef";

    while (text.len) {
        size_t part = text.len < 4096 ? text.len : 4096; /* a reservation of at most 24 KiB */
        char *to = buf_reserve(out, part * 6), *start = to;

        if (!to) return;
        for (size_t i = 0; i < part; i++) {
            unsigned char c = (unsigned char)text.ptr[i];
            char escape = c < 128 ? escapes[c] : 0;

            if (!escape) {
                *to++ = (char)c;
                continue;
            }
            *to++ = '\\';
            *to++ = escape;
            if (escape == 'u') {
                *to++ = '0';
                *to++ = '0';
                *to++ = hex[c >> 4];
                *to++ = hex[c & 15];
            }
        }
        out->len += (size_t)(to - start);
        text.ptr += part;
        text.len -= part;
    }
}

void json_out_string(struct buf *out, struct slice text)
{
    buf_append_char(out, '"');
    json_out_escaped(out, text);
    buf_append_char(out, '"');
}

void json_out_u64(struct buf *out, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;

    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    buf_append(out, digits + at, sizeof digits - at);
}

void json_out_logprob(struct buf *out, float value)
{
    if (!isfinite(value) || value < -9999.0f) {
        buf_append_str(out, "-9999.0");
        return;
    }
    uint64_t scaled = value >= 0 ? 0 : (uint64_t)(-(double)value * 1e8 + 0.5);
    uint64_t fraction = scaled % 100000000u;
    char digits[9];

    if (scaled) buf_append_char(out, '-');
    json_out_u64(out, scaled / 100000000u);
    digits[0] = '.';
    for (int i = 8; i > 0; i--, fraction /= 10)
        digits[i] = (char)('0' + fraction % 10);
    buf_append(out, digits, sizeof digits);
}

void json_out_ids(struct buf *out, const int32_t *ids, size_t count)
{
    buf_append_char(out, '[');
    for (size_t i = 0; i < count; i++) {
        if (i) buf_append_char(out, ',');
        json_out_u64(out, (uint64_t)ids[i]);
    }
    buf_append_char(out, ']');
}
