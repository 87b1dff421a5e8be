/* api_models.c - GET /v1/models: docs/api.md section 6. */
#include "api/api.h"
#include "api/json_out.h"
#include "text/tokenizer.h"

void api_model_prepare(struct api_model *model)
{
    model->token_bytes_max = 1;
    for (uint32_t id = 0; id < model->vocab_size; id++) {
        size_t len = tokenizer_token_bytes(model->tokenizer, (int32_t)id).len;

        if (len > model->token_bytes_max) model->token_bytes_max = (uint32_t)len;
    }
}

/* A name with a NUL byte would end there in the sentence, and might read like one that is served. */
bool api_unknown_model(const struct api_model *model, struct slice name, struct api_fault *fault)
{
    char shown[201];
    size_t len = name.len < 200 ? name.len : 200;

    for (size_t i = 0; i < len; i++)
        shown[i] = name.ptr[i] ? name.ptr[i] : '?';
    shown[len] = '\0';
    return api_refuse(fault, 404, "model_not_found", "model",
                      "The model '%s' is not served here; this server has '%s'.", shown,
                      model->names[0]);
}

static void put_model(const struct api_model *model, const char *name, struct buf *out)
{
    buf_append_str(out, "{\"id\":");
    json_out_string(out, slice_str(name));
    buf_printf(out,
               ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"inferd\","
               "\"max_model_len\":%u}",
               (long long)model->created, model->context_tokens);
}

void api_models_body(const struct api_model *model, struct buf *out)
{
    buf_append_str(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < model->name_count; i++) {
        if (i) buf_append_char(out, ',');
        put_model(model, model->names[i], out);
    }
    buf_append_str(out, "]}");
}

bool api_model_body(const struct api_model *model, struct slice name, struct buf *out,
                    struct api_fault *fault)
{
    for (uint32_t i = 0; i < model->name_count; i++)
        if (slice_eq(name, slice_str(model->names[i]))) {
            put_model(model, model->names[i], out);
            return true;
        }
    return api_unknown_model(model, name, fault);
}
