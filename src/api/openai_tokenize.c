#include "api/openai_tokenize.h"

#include "api/json_out.h"
#include "api/messages.h"
#include "text/detok.h"

enum { TEXT_BYTES_MAX = 64 << 20 };

static bool no_memory(struct api_fault *fault)
{
    api_submit_fault(STATUS_NOMEM, NULL, API_TOKENIZE, 1, fault);
    return false;
}

static bool encode_prompt(const struct api_model *model, const json_t *body, struct token_list *ids,
                          struct api_fault *fault)
{
    const json_t *prompt = params_field(body, "prompt");
    bool add_special = true;

    if (!json_is_string(prompt))
        return api_refuse(fault, 400, "invalid_type", "prompt", "prompt must be a string, not %s.",
                          params_type_name(prompt));
    if (!params_bool(body, "add_special_tokens", &add_special, fault)) return false;
    struct slice text = slice_of(json_string_value(prompt), json_string_length(prompt));
    unsigned flags = TOKENIZE_PARSE_SPECIAL | (add_special ? TOKENIZE_ADD_SPECIAL : 0);

    return !tokenizer_encode(model->tokenizer, text, flags, NULL, 0, ids) || no_memory(fault);
}

static bool encode_messages(const struct api_model *model, const json_t *body,
                            struct token_list *ids, struct api_fault *fault)
{
    static const char *const lacking[] = {"tools", "chat_template"};
    struct messages messages;

    for (size_t i = 0; i < 2; i++)
        if (params_field(body, lacking[i]))
            return api_refuse(fault, 400, "unsupported_parameter", lacking[i],
                              "%s is not supported by this server.", lacking[i]);
    bool ok = messages_read(body, false, &messages, fault) &&
              messages_encode(model, &messages, ids, fault);

    messages_fini(&messages);
    return ok;
}

static void put_token_strings(const struct api_model *model, const struct token_list *ids,
                              struct buf *out)
{
    struct buf text;

    buf_init(&text, 0);
    for (size_t i = 0; i < ids->count; i++) {
        struct detok repair = {0};

        buf_clear(&text);
        detok_push_bytes(&repair, tokenizer_token_bytes(model->tokenizer, ids->ids[i]), &text);
        detok_flush(&repair, &text);
        buf_append_char(out, i ? ',' : '[');
        json_out_string(out, buf_slice(&text));
    }
    buf_append_str(out, ids->count ? "]" : "[]");
    buf_fini(&text);
}

bool tokenize_ids(const struct api_model *model, const json_t *body, struct token_list *ids,
                  struct api_fault *fault)
{
    bool has_prompt = params_field(body, "prompt") != NULL;
    bool has_messages = params_field(body, "messages") != NULL;
    int64_t keep = 0;

    if (has_prompt == has_messages)
        return api_refuse(fault, 400, has_prompt ? "invalid_value" : "missing_required_parameter",
                          "prompt", "Give either prompt or messages, and not both.");
    bool ok = params_int(body, "truncate_prompt_tokens", 1, INT64_MAX, &keep, fault) &&
              (has_prompt ? encode_prompt(model, body, ids, fault)
                          : encode_messages(model, body, ids, fault)) &&
              params_model(model, body, fault);

    if (ok && keep) token_list_keep_last(ids, (uint64_t)keep);
    return ok;
}

bool tokenize_answer(const struct api_model *model, const json_t *body, struct buf *out,
                     struct api_fault *fault)
{
    bool strings = false, ok;
    struct token_list ids = {0};

    ok = params_bool(body, "return_token_strs", &strings, fault) &&
         tokenize_ids(model, body, &ids, fault);
    if (ok) {
        buf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":", ids.count,
                   model->context_tokens);
        json_out_ids(out, ids.ids, ids.count);
        buf_append_str(out, ",\"token_strs\":");
        if (strings)
            put_token_strings(model, &ids, out);
        else
            buf_append_str(out, "null");
        buf_append_char(out, '}');
        ok = !buf_status(out) || no_memory(fault);
    }
    token_list_fini(&ids);
    return ok;
}

bool detokenize_ids(const struct api_model *model, const int32_t *ids, size_t count,
                    const char *param, struct buf *text, struct api_fault *fault)
{
    buf_init(text, TEXT_BYTES_MAX);
    enum status st = tokenizer_decode(model->tokenizer, ids, count, false, text);

    if (st == STATUS_LIMIT)
        return api_refuse(fault, 400, "invalid_value", param,
                          "The text of %s would have more than %d bytes.", param, TEXT_BYTES_MAX);
    return !st || no_memory(fault);
}

bool detokenize_answer(const struct api_model *model, const json_t *body, struct buf *out,
                       struct api_fault *fault)
{
    const json_t *tokens = params_field(body, "tokens"), *item;
    struct token_list ids = {0};
    struct buf text;
    int32_t id;
    size_t i;
    bool ok = true;

    if (!tokens)
        return api_refuse(fault, 400, "missing_required_parameter", "tokens", "tokens is missing.");
    if (!json_is_array(tokens))
        return api_refuse(fault, 400, "invalid_type", "tokens",
                          "tokens must be an array of token ids, not %s.",
                          params_type_name(tokens));
    buf_init(&text, 0);
    json_array_foreach(tokens, i, item)
    {
        ok = params_token_id(model, item, "tokens", &id, fault);
        if (ok && token_list_push(&ids, id)) ok = no_memory(fault);
        if (!ok) break;
    }
    ok = ok && params_model(model, body, fault);
    ok = ok && detokenize_ids(model, ids.ids, ids.count, "tokens", &text, fault);
    if (ok) {
        buf_append_str(out, "{\"prompt\":");
        json_out_string(out, buf_slice(&text));
        buf_append_char(out, '}');
        ok = !buf_status(out) || no_memory(fault);
    }
    buf_fini(&text);
    token_list_fini(&ids);
    return ok;
}
