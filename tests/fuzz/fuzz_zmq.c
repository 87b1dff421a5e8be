/* fuzz_zmq.c - any bytes from a ZeroMQ client give a request that an engine can take, a whole answer or a refusal, each as
 * Responses that can be read; and the walk over the outer fields agrees with protobuf-c wherever both take the message. */
#include <inferd.pb-c.h>
#include <math.h>
#include <stdlib.h>

#include "../unit/api/tiny_model.h"
#include "fuzz_check.h"
#include "api/proto_out.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_batch(const struct buf *out, uint64_t id, size_t at_least)
{
    must(!buf_status(out));
    Inferd__V1__Batch *batch =
        inferd__v1__batch__unpack(NULL, out->len, (const uint8_t *)(out->len ? out->ptr : ""));

    must(batch && batch->n_responses >= at_least);
    for (size_t i = 0; i < batch->n_responses; i++)
        must(batch->responses[i]->id == id && batch->responses[i]->body_case);
    inferd__v1__batch__free_unpacked(batch, NULL);
}

/* A few tokens and the end of every choice, as an engine would send them. */
static void run_stream(struct api_answer *answer, struct buf *out)
{
    uint32_t choices = request_choices(answer->request);
    struct api_fault fault;
    struct api_ended ended;

    for (uint32_t c = 0; c < choices && c < 8; c++)
        for (uint32_t i = 0; i < 3 && i < answer->request->max_tokens; i++) {
            struct output output = {
                .kind = OUTPUT_TOKEN, .choice = c, .index = i, .token = (int32_t)(97 + i)};

            api_stream_push(answer->stream, &output, &ended);
        }
    for (uint32_t p = 0; answer->request->prompt_scores && p < answer->request->prompt_count; p++) {
        struct output output = {.kind = OUTPUT_PROMPT_SCORED,
                                .choice = p * answer->request->best_of};

        api_stream_push(answer->stream, &output, &ended);
    }
    for (uint32_t c = 0; c < choices; c++) {
        struct output output = {.kind = OUTPUT_FINISHED, .choice = c, .reason = FINISH_LENGTH};

        api_stream_push(answer->stream, &output, &ended);
    }
    api_stream_flush(answer->stream, out);
    must(api_stream_done(answer->stream));
    if (!api_stream_is_sse(answer->stream)) api_stream_answer(answer->stream, out, &fault);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tiny_model model;
    struct slice message = slice_of(data, size);
    struct api_client client = {.request_id = "fuzz"};
    struct api_answer answer;
    struct api_head head;
    struct buf out;

    if (!model.tok) tiny_model_open(&model, (const char *const[]){"hello", "\xf0\x9f"}, 2, false);
    if (!api_proto_head(message, &head)) return 0;
    client.message_id = head.id;
    Inferd__V1__Request *request = inferd__v1__request__unpack(NULL, size, data);

    if (request) {
        must(request->id == head.id);
        must(request->body_case == INFERD__V1__REQUEST__BODY__NOT_SET ||
             (int)request->body_case == (int)head.kind + 9);
        inferd__v1__request__free_unpacked(request, NULL);
    }
    if (head.kind < API_MESSAGE_GENERATE || head.kind > API_MESSAGE_DETOKENIZE) return 0;
    api_proto_open(&model.api, API_READY, message, &client, &answer);
    buf_init(&out, 0);
    if (answer.kind == API_BODY) {
        check_batch(&answer.body, head.id, 1);
    } else if (answer.kind == API_FAULT) {
        must(answer.fault.http_status >= 400 && answer.fault.http_status < 600);
        api_proto_error(head.id, &answer.fault, &out);
        check_batch(&out, head.id, 1);
    } else {
        check_request(answer.request, &model.api);
        api_stream_begin(answer.stream, &out);
        run_stream(&answer, &out);
        check_batch(&out, head.id, 2);
    }
    buf_fini(&out);
    buf_fini(&answer.body);
    api_stream_destroy(answer.stream);
    if (answer.request) request_unref(answer.request);
    return 0;
}
