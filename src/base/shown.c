#include "base/shown.h"

#include "base/utf8.h"

bool shown_is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

static size_t escape(char out[SHOWN_MAX], uint32_t c, bool byte)
{
    const char *plain = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : NULL;
    char text[16]; /* \u and what %x may be at most, for the compiler */
    int n = snprintf(text, sizeof text, byte ? "\\x%02x" : "\\u%04x", c);

    if (plain) n = 2;
    memcpy(out, plain ? plain : text, (size_t)n);
    return (size_t)n;
}

size_t shown_next(struct slice text, char out[SHOWN_MAX], size_t *out_len)
{
    unsigned n = utf8_sequence_len(text.ptr, text.len), read;
    uint32_t c = n ? utf8_read((const uint8_t *)text.ptr, &read) : (uint8_t)text.ptr[0];

    if (!n || shown_is_control(c)) {
        *out_len = escape(out, c, n < 2);
        return n ? n : 1;
    }
    memcpy(out, text.ptr, n);
    *out_len = n;
    return n;
}

const char *shown(struct slice text, char *out, size_t size)
{
    char one[SHOWN_MAX];
    size_t at = 0, len;

    while (text.len) {
        size_t n = shown_next(text, one, &len);

        if (at + len >= size) break;
        memcpy(out + at, one, len);
        at += len;
        text = slice_of(text.ptr + n, text.len - n);
    }
    out[at] = '\0';
    return out;
}

void shown_put(struct slice text, bool lines, FILE *to)
{
    char one[SHOWN_MAX];
    size_t len;

    while (text.len) {
        size_t n = shown_next(text, one, &len);

        if (lines && (*text.ptr == '\n' || *text.ptr == '\t'))
            fputc(*text.ptr, to);
        else
            fwrite(one, 1, len, to);
        text = slice_of(text.ptr + n, text.len - n);
    }
}

void shown_error(const char *what, const struct error *err)
{
    char text[SHOWN_MAX * sizeof err->message];

    fprintf(stderr, "inferd: %s%s%s\n", what ? what : "", what ? ": " : "",
            shown(slice_str(err->message), text, sizeof text));
}
