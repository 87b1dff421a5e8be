/* fuzz_request.c - any body on any route gives a request that an engine can take, a whole answer, or a well-formed refusal.
 * The first byte chooses the route. A request's numbers are checked against what engine/request.h and device/step.h say. */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "../unit/api/tiny_model.h"
#include "fuzz_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_json(struct slice text)
{
    json_t *value = json_loadb(text.ptr, text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);

    must(json_is_object(value));
    json_decref(value);
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
