/* fuzz_template.c - any source with any context compiles and renders, or is refused.
 *
 * The input is a template, then a NUL, then the context as JSON (a fixed conversation when there is none that parses).
 * Checked: marks are sorted, disjoint and inside the text; the text is valid UTF-8; a fault has a sentence; a second render
 * gives the same. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include <jansson.h>

#include "text/template.h"

static const struct template_limits limits = {
    .steps_max = 50000, .memory_max = 4 << 20, .output_max = 1 << 20, .depth_max = 64};

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":"
    "\"U\\u00e9 \\ud83d\\ude00\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"abcdefgh1\",\"type\":"
    "\"function\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"q\":[1,2.5,null,true]}}}]},{\"role\":\"tool\",\"content\":"
    "\"r\",\"tool_call_id\":"
    "\"abcdefgh1\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
    "{\"type\":\"object\","
    "\"properties\":{\"q\":{\"type\":\"string\"}}}}}],\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
    "\"add_generation_prompt\":true,\"x\":5,\"s\":\"a b\",\"l\":[3,1,2],\"d\":{\"b\":2,\"a\":1}}";

static json_t *context_of(const uint8_t *data, size_t size)
{
    json_t *context = size ? json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL) : NULL;

    if (json_is_object(context)) return context;
    json_decref(context);
    return json_loads(conversation, 0, NULL);
}

static void check_text(const struct buf *text, const struct template_marks *marks)
{
    json_t *valid = json_stringn(text->len ? text->ptr : "", text->len);
    size_t before = 0;

    assert(valid); /* jansson refuses ill-formed UTF-8 */
    json_decref(valid);
    for (size_t i = 0; i < marks->count; i++) {
        assert(marks->ranges[i].begin < marks->ranges[i].end);
        assert(i == 0 || marks->ranges[i].begin > before);
        before = marks->ranges[i].end;
        assert(before <= text->len);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t source = nul ? (size_t)(nul - data) : size;
    struct template *t = NULL;
    struct error err = {0};
    enum template_fault fault = template_compile(slice_of(data, source), &t, &err), first = 0;
    struct buf texts[2];
    struct template_marks marks = {0};

    if (fault) {
        assert(!t && err.message[0]);
        return 0;
    }
    json_t *context = context_of(nul ? nul + 1 : data, nul ? size - source - 1 : 0);
    for (int i = 0; i < 2; i++) {
        buf_init(&texts[i], 0);
        fault = template_render(t, context, 1741529107, &limits, &texts[i], &marks, &err);
        if (i == 0) first = fault;
        assert(fault == first);
        if (!fault) check_text(&texts[i], &marks);
    }
    assert(slice_eq(buf_slice(&texts[0]), buf_slice(&texts[1])));
    buf_fini(&texts[0]);
    buf_fini(&texts[1]);
    template_marks_fini(&marks);
    template_free(t);
    json_decref(context);
    return 0;
}
