/* api_fault.c - refusals: one sentence, a status, a code, the field. docs/api.md section 4. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "api/json_out.h"
#include "base/utf8.h"

static const char *type_of(unsigned http_status)
{
    if (http_status == 429) return "rate_limit_error";
    return http_status >= 500 ? "server_error" : "invalid_request_error";
}

bool api_refuse(struct api_fault *fault, unsigned http_status, const char *code, const char *param,
                const char *format, ...)
{
    va_list args;

    *fault =
        (struct api_fault){.http_status = http_status, .type = type_of(http_status), .code = code};
    fault->retry_after_s = http_status == 429 || http_status == 503;
    snprintf(fault->param, sizeof fault->param, "%s", param ? param : "");
    char message[sizeof fault->message];

    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    /* every message names its field */
    if (param && !strstr(message, param))
        snprintf(fault->message, sizeof fault->message, "%.95s: %.400s", param, message);
    else
        memcpy(fault->message, message, sizeof message);
    return false;
}

/* What was cut by a buffer's end, or quotes the request, may be ill-formed: only whole characters go out. */
static void put_repaired(struct buf *out, const char *text)
{
    struct slice rest = slice_str(text);

    buf_append_char(out, '"');
    while (rest.len) {
        size_t good = utf8_valid_len(rest);

        json_out_escaped(out, slice_of(rest.ptr, good));
        if (good == rest.len) break;
        buf_append_str(out, "\xef\xbf\xbd");
        rest.ptr += good + 1;
        rest.len -= good + 1;
    }
    buf_append_char(out, '"');
}

void api_fault_body(const struct api_fault *fault, struct buf *out)
{
    buf_append_str(out, "{\"error\":{\"message\":");
    put_repaired(out, fault->message);
    buf_printf(out, ",\"type\":\"%s\",\"param\":", fault->type);
    if (fault->param[0])
        put_repaired(out, fault->param);
    else
        buf_append_str(out, "null");
    if (fault->code)
        buf_printf(out, ",\"code\":\"%s\"}}", fault->code);
    else
        buf_append_str(out, ",\"code\":null}}");
}

void api_submit_fault(enum status status, const struct error *err, enum api_route route,
                      uint32_t retry_after_s, struct api_fault *fault)
{
    const char *prompt = route == API_CHAT ? "messages" : "prompt";

    switch (status) {
    case STATUS_FULL:
        api_refuse(fault, 429, "rate_limit_exceeded", NULL,
                   "The request was not taken: %s; try again in %u s.", err->message,
                   retry_after_s);
        fault->retry_after_s = retry_after_s ? retry_after_s : 1;
        break;
    case STATUS_INVALID:
    case STATUS_LIMIT: api_refuse(fault, 400, "invalid_value", prompt, "%s", err->message); break;
    case STATUS_CLOSED:
        api_refuse(fault, 503, "server_draining", NULL,
                   "The server is shutting down and takes no new requests.");
        break;
    case STATUS_NOMEM:
        api_refuse(fault, 503, "service_unavailable", NULL,
                   "The server has no memory for this request now; try again.");
        break;
    default:
        api_refuse(fault, 500, "internal_error", NULL, "The request failed inside the server (%s).",
                   status_name(status));
    }
}
