/* render_lines.c - the template interpreter behind a line protocol, for tests/tools/jinja_differential.py.
 *
 * One JSON object per line of standard input: {"template", "context", "now"?}; one per line of output, in order:
 * {"text"} or {"error": KIND, "message"}. With "marks": true the answer also has "marks": [[begin, end], ...]. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/template.h"

static json_t *fault_answer(enum template_fault fault, const struct error *err,
                            const struct buf *out)
{
    if (fault == TEMPLATE_RAISE)
        return json_pack("{s:s, s:s%}", "error", "raise", "message", out->ptr ? out->ptr : "",
                         out->len);
    return json_pack("{s:s, s:s}", "error", template_fault_name(fault), "message", err->message);
}

static json_t *render(const json_t *request)
{
    const json_t *source = json_object_get(request, "template");
    struct template_marks marks = {0};
    struct template *t = NULL;
    struct buf out;
    struct error err = {0};
    json_t *answer, *ranges;
    enum template_fault fault =
        template_compile(slice_of(json_string_value(source), json_string_length(source)), &t, &err);

    buf_init(&out, 0);
    if (!fault)
        fault = template_render(t, json_object_get(request, "context"),
                                json_integer_value(json_object_get(request, "now")),
                                &template_limits_default, &out, &marks, &err);
    answer = fault ? fault_answer(fault, &err, &out)
                   : json_pack("{s:s%}", "text", out.ptr ? out.ptr : "", out.len);
    if (!fault && json_is_true(json_object_get(request, "marks"))) {
        ranges = json_array();
        for (size_t i = 0; i < marks.count; i++)
            json_array_append_new(
                ranges, json_pack("[i,i]", (int)marks.ranges[i].begin, (int)marks.ranges[i].end));
        json_object_set_new(answer, "marks", ranges);
    }
    template_marks_fini(&marks);
    template_free(t);
    buf_fini(&out);
    return answer;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t len;

    while ((len = getline(&line, &room, stdin)) >= 0) {
        json_t *request = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
        json_t *answer = request ? render(request) : json_pack("{s:s}", "error", "bad line");
        json_dumpf(answer, stdout, JSON_ENSURE_ASCII | JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(answer);
        json_decref(request);
    }
    free(line);
    return 0;
}
