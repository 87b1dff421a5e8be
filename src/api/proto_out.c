#include "api/proto_out.h"

#include <stdio.h>

#include "api/api.h"
#include "base/utf8.h"

enum { BATCH_RESPONSES_TAG = 1 << 3 | 2 };

void proto_out(const Inferd__V1__Response *response, struct buf *out)
{
    size_t size = inferd__v1__response__get_packed_size(response), rest = size, n = 0;
    uint8_t *to = (uint8_t *)buf_reserve(out, size + 11);

    if (!to) return;
    to[n++] = BATCH_RESPONSES_TAG;
    for (; rest > 0x7f; rest >>= 7)
        to[n++] = (uint8_t)(rest | 0x80);
    to[n++] = (uint8_t)rest;
    n += inferd__v1__response__pack(response, to + n);
    out->len += n;
}

static Inferd__V1__Response response_of(uint64_t id, Inferd__V1__Response__BodyCase body)
{
    Inferd__V1__Response response = INFERD__V1__RESPONSE__INIT;

    response.has_id = true;
    response.id = id;
    response.body_case = body;
    return response;
}

void proto_out_ids(uint64_t id, const int32_t *ids, size_t count, uint32_t context_tokens,
                   struct buf *out)
{
    Inferd__V1__Response response = response_of(id, INFERD__V1__RESPONSE__BODY_TOKENIZE);
    Inferd__V1__TokenizeResult result = INFERD__V1__TOKENIZE_RESULT__INIT;

    result.ids = (int32_t *)(uintptr_t)ids;
    result.n_ids = count;
    result.has_max_model_len = true;
    result.max_model_len = context_tokens;
    response.tokenize = &result;
    proto_out(&response, out);
}

void proto_out_text(uint64_t id, struct slice text, struct buf *out)
{
    Inferd__V1__Response response = response_of(id, INFERD__V1__RESPONSE__BODY_DETOKENIZE);
    Inferd__V1__DetokenizeResult result = INFERD__V1__DETOKENIZE_RESULT__INIT;

    result.has_text = true;
    result.text = proto_bytes(text);
    response.detokenize = &result;
    proto_out(&response, out);
}

/* What was cut by a buffer's end, or quotes the request, may be ill-formed: only whole characters go out. */
static void repair(const char *text, char *out, size_t size)
{
    struct slice rest = slice_str(text);
    size_t at = 0;

    while (rest.len && at + 4 < size) {
        size_t good = utf8_valid_len(rest), room = size - 1 - at;

        if (good > room) {
            good = room;
            while (good && (rest.ptr[good] & 0xc0) == 0x80)
                good--;
            memcpy(out + at, rest.ptr, good);
            at += good;
            break;
        }
        memcpy(out + at, rest.ptr, good);
        at += good;
        if (good == rest.len) break;
        if (at + 4 < size) out[at++] = '?';
        rest = slice_of(rest.ptr + good + 1, rest.len - good - 1);
    }
    out[at] = 0;
}

void api_proto_error(uint64_t id, const struct api_fault *fault, struct buf *out)
{
    Inferd__V1__Response response = response_of(id, INFERD__V1__RESPONSE__BODY_ERROR);
    Inferd__V1__Error error = INFERD__V1__ERROR__INIT;
    char message[sizeof fault->message + 8], param[sizeof fault->param + 8];

    repair(fault->message, message, sizeof message);
    repair(fault->param, param, sizeof param);
    error.has_status = error.has_retry_after_s = true;
    error.status = fault->http_status;
    error.retry_after_s = fault->retry_after_s;
    error.code = proto_string(fault->code);
    error.message = message;
    error.param = param;
    response.error = &error;
    proto_out(&response, out);
}

void api_proto_cancel(uint64_t id, bool found, struct buf *out)
{
    Inferd__V1__Response response = response_of(id, INFERD__V1__RESPONSE__BODY_CANCEL);
    Inferd__V1__CancelResult result = INFERD__V1__CANCEL_RESULT__INIT;

    result.has_found = true;
    result.found = found;
    response.cancel = &result;
    proto_out(&response, out);
}

void api_proto_model(uint64_t id, const struct api_model *model, struct buf *out)
{
    Inferd__V1__Response response = response_of(id, INFERD__V1__RESPONSE__BODY_MODEL_INFO);
    Inferd__V1__ModelInfo info = INFERD__V1__MODEL_INFO__INIT;

    info.names = (char **)(uintptr_t)model->names;
    info.n_names = model->name_count;
    info.has_context_tokens = info.has_vocab_size = info.has_created = true;
    info.context_tokens = model->context_tokens;
    info.vocab_size = model->vocab_size;
    info.created = model->created;
    info.fingerprint = proto_string(model->fingerprint);
    response.model_info = &info;
    proto_out(&response, out);
}

void api_proto_health(uint64_t id, const struct api_health *health, struct buf *out)
{
    Inferd__V1__Response response = response_of(id, INFERD__V1__RESPONSE__BODY_HEALTH);
    Inferd__V1__Health message = INFERD__V1__HEALTH__INIT;

    message.has_state = true;
    message.state = (Inferd__V1__Health__State)health->state;
    message.reason = proto_string(health->reason);
    message.version = proto_string(health->version);
    response.health = &message;
    proto_out(&response, out);
}

void api_proto_load(uint64_t id, const struct api_load *load, struct buf *out)
{
    Inferd__V1__Response response = response_of(id, INFERD__V1__RESPONSE__BODY_LOAD_REPORT);
    Inferd__V1__LoadReport report = INFERD__V1__LOAD_REPORT__INIT;

#define PUT(field)             \
    report.has_##field = true; \
    report.field = load->field
    PUT(seqs_running);
    PUT(seqs_waiting);
    PUT(seqs_blocked);
    PUT(kv_blocks_total);
    PUT(kv_blocks_used);
    PUT(requests_open);
    PUT(prompt_tokens);
    PUT(generation_tokens);
    PUT(cached_tokens);
    PUT(requests_finished);
    PUT(requests_rejected);
    PUT(preemptions);
    PUT(steps);
#undef PUT
    response.load_report = &report;
    proto_out(&response, out);
}
