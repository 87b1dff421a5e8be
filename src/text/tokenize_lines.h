/* tokenize_lines.h - the line protocol of `inferd tokenize --jsonl`: one JSON object in, one out.
 *
 *   {"op":"encode","text","add_special","parse_special","added"}   {"ids":[...]}
 *   {"op":"decode","ids","skip_special"}                           {"text":"..."}
 *   {"op":"stream","ids","skip_special"}                           {"pieces":[...],"flush":"..."}
 *   {"op":"render","template","context","now"}                     {"text":"..."}
 * What cannot be answered gives {"error":KIND,"message"}: "unsupported" for an unknown op,
 * "invalid" for a line that is none of these. Thread: any. */
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "base/slice.h"
#include "base/status.h"
#include "text/tokenizer.h"

/* Makes the answer of a render: a new JSON object, or NULL when there is no memory. */
typedef json_t *tokenize_render_fn(void *ctx, const json_t *request);

/* Answers one line (without its line end): appends ASCII JSON and a line feed to out. tok NULL:
 * only render works; render NULL: render is unsupported. Errors: STATUS_NOMEM, STATUS_LIMIT (of
 * out). */
enum status tokenize_line(const struct tokenizer *tok, struct slice line,
                          tokenize_render_fn *render, void *ctx, struct buf *out);
