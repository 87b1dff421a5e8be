/* shown.h - text from outside (a file's names, a server's words) as it may go to a terminal or into a line of a log.
 *
 * A terminal obeys control characters, so a model file could retitle its window, hide what was printed, or forge a line. Shown text has
 * none: \n, \r and \t as these two letters, other control bytes and bytes that are no UTF-8 as \x1b, control characters beyond ASCII
 * (C1, and those that turn the direction of text or break lines) as \u009b. All other text stays as it is. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/slice.h"
#include "base/status.h"

/* Writes the text in one line, cut at a whole character or escape where it does not fit, and NUL-terminated. Returns out. */
const char *shown(struct slice text, char *out, size_t size);
/* The same to a stream, whole. lines: line feeds and tabs are kept, for a text of several lines. */
void shown_put(struct slice text, bool lines, FILE *to);
/* "inferd: WHAT: SENTENCE" and a line feed on standard error; what may be NULL. */
void shown_error(const char *what, const struct error *err);

/* One character or one ill-formed byte off the front of a text that is not empty: *out receives it as it is shown (at most SHOWN_MAX
 * bytes, *out_len of them); returns the bytes that it was. */
enum { SHOWN_MAX = 8 };
size_t shown_next(struct slice text, char out[SHOWN_MAX], size_t *out_len);
/* Whether a code point is one that is not shown as it is. */
bool shown_is_control(uint32_t code_point);
