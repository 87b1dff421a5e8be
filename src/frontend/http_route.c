#include "frontend/http_route.h"

#include <string.h>
#include <strings.h>

enum http_method http_method_of(const char *method)
{
    if (strcmp(method, "GET") == 0) return HTTP_GET;
    if (strcmp(method, "POST") == 0) return HTTP_POST;
    if (strcmp(method, "HEAD") == 0) return HTTP_HEAD;
    if (strcmp(method, "OPTIONS") == 0) return HTTP_OPTIONS;
    return HTTP_OTHER;
}

/* --- routes --- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Decodes up to the query; false when it does not fit. A malformed escape stands for itself. */
static bool decode_path(const char *target, char *out, size_t size, size_t *len)
{
    size_t n = 0;

    for (const char *p = target; *p && *p != '?' && *p != '#'; p++) {
        int high = *p == '%' ? hex_value(p[1]) : -1, low = high >= 0 ? hex_value(p[2]) : -1;

        if (n + 1 >= size) return false;
        out[n++] = low >= 0 ? (char)(high * 16 + low) : *p;
        if (low >= 0) p += 2;
    }
    out[n] = 0;
    *len = n;
    return true;
}

/* http://host/path is asked for as /path. */
static const char *skip_authority(const char *target)
{
    const char *scheme = strstr(target, "://"), *slash;

    if (target[0] == '/' || !scheme || scheme - target > 8) return target;
    slash = strchr(scheme + 3, '/');
    return slash ? slash : "/";
}

enum http_route http_route_of(const char *target, char *decoded, size_t decoded_size,
                              struct slice *id)
{
    static const struct slice models = {"/v1/models/", 11};
    size_t len;

    *id = (struct slice){0};
    if (!decode_path(skip_authority(target), decoded, decoded_size, &len)) return ROUTE_UNKNOWN;
    struct slice path = slice_of(decoded, len);

    for (int r = 0; r < ROUTE_UNKNOWN; r++)
        if (r != ROUTE_MODEL && slice_eq(path, slice_str(http_route_pattern((enum http_route)r))))
            return (enum http_route)r;
    if (!slice_starts(path, models) || path.len == models.len) return ROUTE_UNKNOWN;
    *id = slice_of(path.ptr + models.len, path.len - models.len);
    return ROUTE_MODEL;
}

static bool is_post_route(enum http_route route)
{
    return route >= ROUTE_CHAT && route <= ROUTE_DETOKENIZE;
}

const char *http_route_allow(enum http_route route)
{
    return is_post_route(route) ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

bool http_route_takes(enum http_route route, enum http_method method)
{
    if (method == HTTP_OPTIONS) return true;
    return is_post_route(route) ? method == HTTP_POST : method == HTTP_GET || method == HTTP_HEAD;
}

/* --- headers --- */

static bool is_token(const char *text, size_t len)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (!((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
              (c && strchr(marks, c))))
            return false;
    }
    return len > 0;
}

static void set_bad(struct http_head *head, const char *why)
{
    if (!head->bad) head->why = why;
    head->bad = true;
}

/* Plain decimal digits. More than 19 of them cannot be right: then the largest number, which is too large. */
static bool read_length(const char *value, uint64_t *out)
{
    size_t len = strlen(value);

    *out = 0;
    if (!len || strspn(value, "0123456789") != len) return false;
    if (len > 19) {
        *out = UINT64_MAX;
        return true;
    }
    for (size_t i = 0; i < len; i++)
        *out = *out * 10 + (uint64_t)(value[i] - '0');
    return true;
}

static void take_length(struct http_head *head, const char *value)
{
    uint64_t length;

    if (!read_length(value, &length)) {
        set_bad(head, "Content-Length must be a plain decimal number, with nothing behind it.");
        return;
    }
    if (head->has_length && head->length != length)
        set_bad(head, "The request has two Content-Length values that differ.");
    head->has_length = true;
    head->length = length;
}

static void take_coding(struct http_head *head, const char *value)
{
    if (head->chunked || strcasecmp(value, "chunked") != 0)
        set_bad(head,
                "The only transfer coding accepted is chunked, with nothing behind the word.");
    head->chunked = true;
}

bool http_timeout_read(const char *value, int64_t *out_ns)
{
    size_t whole = strspn(value, "0123456789"), dot = value[whole] == '.';
    size_t part = dot ? strspn(value + whole + 1, "0123456789") : 0;
    double seconds = 0, place = 1;

    if (whole + part == 0 || whole + dot + part > 20 || value[whole + dot + part]) return false;
    for (size_t i = 0; i < whole; i++)
        seconds = seconds * 10 + (value[i] - '0');
    for (size_t i = 0; i < part; i++)
        seconds += (value[whole + 1 + i] - '0') * (place /= 10);
    if (seconds < 1e-3 || seconds > 86400) return false;
    *out_ns = (int64_t)(seconds * 1e9);
    return true;
}

/* White space around a field's value is no part of it (RFC 9110, 5.5). libmicrohttpd skips what stands in front; what stands behind is
 * cut off where it stands, in the connection's own memory. */
static void cut_white_space(const char *value, size_t len)
{
    char *end = (char *)(uintptr_t)value + len;

    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
}

static enum MHD_Result take_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                   size_t name_len, const char *value, size_t value_len)
{
    struct http_head *head = cls;

    (void)kind;
    if (!value) {
        value = "";
        value_len = 0;
    }
    /* a blank before the colon, or a NUL: another reader of the same bytes may see another header */
    if (!is_token(name, name_len)) set_bad(head, "A header's name has characters that it may not.");
    if (strlen(value) != value_len) set_bad(head, "A header's value has a NUL byte.");
    /* libmicrohttpd has read these two as they came, and must not have seen another framing than we */
    if (strcasecmp(name, "Content-Length") != 0 && strcasecmp(name, "Transfer-Encoding") != 0)
        cut_white_space(value, value_len);
    if (strcasecmp(name, "Host") == 0) {
        if (head->has_host) set_bad(head, "The request has two Host headers.");
        head->has_host = true;
    } else if (strcasecmp(name, "Content-Length") == 0) {
        take_length(head, value);
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        take_coding(head, value);
    } else if (strcasecmp(name, "Origin") == 0) {
        head->has_origin = true;
    } else if (strcasecmp(name, "Expect") == 0) {
        head->expects_continue = strcasecmp(value, "100-continue") == 0;
    } else if (strcasecmp(name, "Authorization") == 0) {
        head->authorization = value;
        head->authorization_count++;
    } else if (strcasecmp(name, "Content-Type") == 0) {
        head->content_type = value;
    } else if (strcasecmp(name, "Content-Encoding") == 0) {
        head->content_encoding = value;
    } else if (strcasecmp(name, "X-Request-Id") == 0) {
        head->request_id = value;
    } else if (strcasecmp(name, "traceparent") == 0) {
        head->traceparent = head->traceparent ? "" : value; /* two are none */
    } else if (strcasecmp(name, "tracestate") == 0) {
        head->tracestate = head->tracestate ? "" : value; /* whoever splits it in two loses it */
    } else if (strcasecmp(name, "X-Request-Timeout") == 0) {
        if (!http_timeout_read(value, &head->timeout_ns))
            set_bad(head, "X-Request-Timeout must be a number of seconds, 0.001 to 86400.");
    } else if (strcasecmp(name, "Access-Control-Request-Headers") == 0) {
        head->request_headers = value;
    }
    return MHD_YES;
}

void http_head_read(struct MHD_Connection *connection, const char *version, struct http_head *out)
{
    *out = (struct http_head){.http11 = strcmp(version, "HTTP/1.1") == 0};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, take_header, out);
    if (out->http11 && !out->has_host) set_bad(out, "An HTTP/1.1 request must have a Host header.");
    if (out->has_length && out->chunked)
        set_bad(out, "A request may not have both Content-Length and Transfer-Encoding.");
    if (out->chunked && !out->http11) set_bad(out, "HTTP/1.0 has no transfer codings.");
}

/* Looks at every byte of the longer one, whatever differs. */
static bool same_secret(const char *a, const char *b)
{
    size_t a_len = strlen(a), b_len = strlen(b), len = a_len > b_len ? a_len : b_len;
    volatile unsigned char differs = a_len != b_len;

    for (size_t i = 0; i < len; i++)
        differs |= (unsigned char)(a[i < a_len ? i : a_len] ^ b[i < b_len ? i : b_len]);
    return !differs;
}

const char *http_auth_key(const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return NULL;
    return authorization + 7 + strspn(authorization + 7, " ");
}

bool http_auth_ok(const char *authorization, const char *const *keys, uint32_t key_count)
{
    const char *key = http_auth_key(authorization);
    bool ok = false;

    for (uint32_t i = 0; key && i < key_count; i++)
        ok |= same_secret(key, keys[i]);
    return ok;
}

static bool is_json_type(struct slice type)
{
    static const struct slice json = {"application/json", 16};

    if (type.len == json.len && strncasecmp(type.ptr, json.ptr, json.len) == 0) return true;
    return type.len > 5 && memchr(type.ptr, '/', type.len) &&
           strncasecmp(type.ptr + type.len - 5, "+json", 5) == 0;
}

/* The value of a charset parameter in "; charset=utf-8", ptr NULL without one. */
static struct slice charset_of(const char *parameters)
{
    const char *at = strcasestr(parameters, "charset");
    struct slice value;

    if (!at) return (struct slice){0};
    at += 7;
    at += strspn(at, " \t");
    if (*at != '=') return (struct slice){0};
    at++;
    at += strspn(at, " \t\"");
    value.ptr = at;
    value.len = strcspn(at, " \t\";");
    return value;
}

const char *http_media_fault(const struct http_head *head)
{
    const char *encoding = head->content_encoding, *type = head->content_type;

    if (encoding && *encoding && strcasecmp(encoding, "identity") != 0)
        return "The body must not be compressed: Content-Encoding may only be identity.";
    if (!type || !*type) return NULL;
    struct slice media = slice_of(type, strcspn(type, "; \t")),
                 charset = charset_of(type + media.len);

    if (!is_json_type(media)) return "The body's Content-Type must be application/json.";
    if (charset.ptr && !(charset.len == 5 && strncasecmp(charset.ptr, "utf-8", 5) == 0) &&
        !(charset.len == 4 && strncasecmp(charset.ptr, "utf8", 4) == 0))
        return "The body's charset must be UTF-8.";
    return NULL;
}

bool http_request_id_ok(const char *id)
{
    size_t len = strlen(id);

    return len >= 1 && len <= 128 &&
           strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == len;
}

bool http_header_list_ok(const char *list)
{
    size_t len = strlen(list);

    return len <= 1000 &&
           strspn(list, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                        "!#$%&'*+-.^_`|~, ") == len;
}
