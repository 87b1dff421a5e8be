#include "text/tokenize_lines.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_guard.h"
#include "text/detok.h"

enum { LINE_VALUES_MAX = 4 << 20 };

static json_t *fault(const char *kind, const char *message)
{
    return json_pack("{ssss}", "error", kind, "message", message);
}

static bool flag(const json_t *request, const char *name, bool missing)
{
    const json_t *value = json_object_get(request, name);

    return json_is_boolean(value) ? json_is_true(value) : missing;
}

/* A new JSON string of what stands in buf, which must be well-formed UTF-8. */
static json_t *string_of(const struct buf *buf)
{
    return json_stringn(buf->len ? buf->ptr : "", buf->len);
}

static json_t *encode(const struct tokenizer *tok, const json_t *request)
{
    const json_t *text = json_object_get(request, "text");
    struct token_list ids = {0};
    unsigned flags = (flag(request, "add_special", false) ? TOKENIZE_ADD_SPECIAL : 0u) |
                     (flag(request, "parse_special", true) ? TOKENIZE_PARSE_SPECIAL : 0u) |
                     (flag(request, "added", true) ? 0u : TOKENIZE_NO_ADDED);

    if (!json_is_string(text)) return fault("invalid", "encode needs a text");
    enum status st = tokenizer_encode(
        tok, slice_of(json_string_value(text), json_string_length(text)), flags, NULL, 0, &ids);
    json_t *list = json_array();
    for (size_t i = 0; list && i < ids.count; i++)
        json_array_append_new(list, json_integer(ids.ids[i]));
    token_list_fini(&ids);
    if (!st) return json_pack("{so}", "ids", list);
    json_decref(list);
    return fault(status_name(st), "the text could not be tokenised");
}

/* The request's ids; false when they are no ids of this tokenizer. */
static bool read_ids(const struct tokenizer *tok, const json_t *request, struct token_list *ids)
{
    const json_t *list = json_object_get(request, "ids"), *item;
    size_t i;

    if (!json_is_array(list)) return false;
    json_array_foreach(list, i, item)
    {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= tokenizer_vocab_size(tok) ||
            token_list_push(ids, (int32_t)id))
            return false;
    }
    return true;
}

static json_t *decode(const struct tokenizer *tok, const json_t *request)
{
    struct token_list ids = {0};
    struct buf text;
    json_t *answer;

    buf_init(&text, 0);
    if (read_ids(tok, request, &ids) &&
        !tokenizer_decode(tok, ids.ids, ids.count, flag(request, "skip_special", false), &text))
        answer = json_pack("{so}", "text", string_of(&text));
    else
        answer = fault("invalid", "decode needs ids of this tokenizer");
    buf_fini(&text);
    token_list_fini(&ids);
    return answer;
}

static json_t *stream(const struct tokenizer *tok, const json_t *request)
{
    struct token_list ids = {0};
    struct buf text;
    struct detok d;
    json_t *answer, *pieces = json_array();

    buf_init(&text, 0);
    if (!read_ids(tok, request, &ids)) {
        json_decref(pieces);
        answer = fault("invalid", "stream needs ids of this tokenizer");
    } else {
        detok_init(&d, tok, flag(request, "skip_special", false));
        for (size_t i = 0; i < ids.count; i++, buf_clear(&text)) {
            detok_push(&d, ids.ids[i], &text);
            json_array_append_new(pieces, string_of(&text));
        }
        detok_flush(&d, &text);
        answer = json_pack("{soso}", "pieces", pieces, "flush", string_of(&text));
    }
    buf_fini(&text);
    token_list_fini(&ids);
    return answer;
}

static json_t *answer_of(const struct tokenizer *tok, const json_t *request,
                         tokenize_render_fn *render, void *ctx)
{
    const char *op = json_string_value(json_object_get(request, "op"));

    if (!op) return fault("invalid", "a request is an object with an op");
    if (strcmp(op, "render") == 0 && render) return render(ctx, request);
    if (tok && strcmp(op, "encode") == 0) return encode(tok, request);
    if (tok && strcmp(op, "decode") == 0) return decode(tok, request);
    if (tok && strcmp(op, "stream") == 0) return stream(tok, request);
    return fault("unsupported", "no such op here");
}

enum status tokenize_line(const struct tokenizer *tok, struct slice line,
                          tokenize_render_fn *render, void *ctx, struct buf *out)
{
    const struct json_limits limits = {.depth_max = 256, .values_max = LINE_VALUES_MAX};
    struct error err = {0};
    json_t *request = NULL, *answer;

    if (json_guard_parse(line, &limits, &request, &err))
        answer = fault("invalid", err.message);
    else
        answer = answer_of(tok, request, render, ctx);
    json_decref(request);
    char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(answer);
    if (!text) return STATUS_NOMEM;
    buf_append_str(out, text);
    buf_append_char(out, '\n');
    free(text);
    return buf_status(out);
}
