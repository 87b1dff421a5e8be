/* template_line.h - the `render` operation of the line protocol (text/tokenize_lines.h), with no tokenizer.
 *
 *   {"template", "context", "now"} -> {"text": ...} or {"error": KIND, "message": ...}
 * KIND is template_fault_name; the message of `raise` is whole. "now" is the unix time that strftime_now tells in UTC
 * (0 when missing). With "marks": true the answer also has "marks": [[begin, end], ...]. Thread: any. */
#pragma once

#include <jansson.h>

/* A new object, or NULL when there is no memory. ctx is not used: the function is a tokenize_render_fn. */
json_t *template_line(void *ctx, const json_t *request);
