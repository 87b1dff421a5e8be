/* fuzz_request.c - any body on any route gives a request that an engine can take, a whole answer, or a well-formed refusal.
 * The first byte chooses the route. A request's numbers are checked against what engine/request.h and device/step.h say. */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "../unit/api/tiny_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static void check_json(struct slice text)
{
    json_t *value = json_loadb(text.ptr, text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);

    must(json_is_object(value));
    json_decref(value);
}

static void check_request(const struct request *r, const struct api_model *model)
{
    const struct request_sampling *s = &r->sampling;

    must(r->prompt_count >= 1 && r->best_of >= 1 && request_choices(r) <= model->sequences_max);
    for (uint32_t p = 0; p < r->prompt_count; p++) {
        must(r->prompts[p].count >= 1 &&
             r->prompts[p].count + (uint64_t)r->max_tokens <= model->context_tokens);
        for (uint32_t i = 0; i < r->prompts[p].count; i++)
            must(r->prompts[p].ids[i] >= 0 && (uint32_t)r->prompts[p].ids[i] < model->vocab_size);
    }
    must(r->min_tokens <= r->max_tokens && r->top_logprobs <= 20 && r->ring);
    must(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1);
    must(s->min_p >= 0 && s->min_p <= 1 && s->repetition_penalty > 0 &&
         isfinite(s->repetition_penalty));
    must(r->stop_id_count <= model->stop_ids_max && s->bias_count <= model->bias_max);
    for (uint32_t i = 0; i < s->bias_count; i++)
        must(s->biases[i].id >= 0 && (uint32_t)s->biases[i].id < model->vocab_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tiny_model model;
    struct api_client client = {0};
    struct api_answer answer;
    struct buf out;

    if (!model.tok) tiny_model_open(&model, (const char *const[]){"hello", "\xf0\x9f"}, 2, false);
    if (!size) return 0;
    api_open(&model.api, (enum api_route)(data[0] % 4), API_READY, slice_of(data + 1, size - 1),
             &client, &answer);
    buf_init(&out, 0);
    if (answer.kind == API_BODY) {
        check_json(buf_slice(&answer.body));
    } else if (answer.kind == API_FAULT) {
        must(answer.fault.http_status >= 400 && answer.fault.http_status < 600);
        api_fault_body(&answer.fault, &out);
        check_json(buf_slice(&out));
    } else {
        check_request(answer.request, &model.api);
        api_stream_begin(answer.stream, &out);
    }
    buf_fini(&out);
    buf_fini(&answer.body);
    api_stream_destroy(answer.stream);
    if (answer.request) request_unref(answer.request);
    return 0;
}
