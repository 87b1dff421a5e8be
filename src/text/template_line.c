#include "text/template_line.h"

#include "text/template.h"

static json_t *fault_answer(enum template_fault fault, const struct error *err,
                            const struct buf *out)
{
    if (fault == TEMPLATE_RAISE)
        return json_pack("{s:s, s:s%}", "error", "raise", "message", out->ptr ? out->ptr : "",
                         out->len);
    return json_pack("{s:s, s:s}", "error", template_fault_name(fault), "message", err->message);
}

static json_t *text_answer(const struct buf *out, const struct template_marks *marks,
                           bool with_marks)
{
    json_t *answer = json_pack("{s:s%}", "text", out->ptr ? out->ptr : "", out->len), *list;

    if (!answer || !with_marks) return answer;
    list = json_array();
    for (size_t i = 0; i < marks->count; i++)
        json_array_append_new(list, json_pack("[I,I]", (json_int_t)marks->ranges[i].begin,
                                              (json_int_t)marks->ranges[i].end));
    json_object_set_new(answer, "marks", list);
    return answer;
}

json_t *template_line(void *ctx, const json_t *request)
{
    const json_t *source = json_object_get(request, "template");
    const json_t *context = json_object_get(request, "context");
    struct template_marks marks = {0};
    struct template *t = NULL;
    struct buf out;
    struct error err = {0};
    enum template_fault fault;
    json_t *answer;

    (void)ctx;
    if (!json_is_string(source) || (context && !json_is_object(context)))
        return json_pack("{s:s, s:s}", "error", "invalid", "message",
                         "render takes \"template\", a string, and \"context\", an object");
    buf_init(&out, 0);
    fault =
        template_compile(slice_of(json_string_value(source), json_string_length(source)), &t, &err);
    if (!fault)
        fault = template_render(t, context, json_integer_value(json_object_get(request, "now")),
                                &template_limits_default, &out, &marks, &err);
    answer = fault ? fault_answer(fault, &err, &out)
                   : text_answer(&out, &marks, json_is_true(json_object_get(request, "marks")));
    template_marks_fini(&marks);
    template_free(t);
    buf_fini(&out);
    return answer;
}
