/* json_page.h - the figures of a run as a JSON file, whole or not at all. Thread: any. */
#pragma once

#include <jansson.h>

#include "base/status.h"

/* Whether the file can be made (path "-": standard output, always): asked before a run, so that no hour's figures are lost.
 * What the file holds stays. Errors: STATUS_IO with what stands in the way. */
enum status json_page_check(const char *path, struct error *err);

/* Writes the page (NULL: there was no memory for it) to a file, or to standard output for "-". digits: of reals.
 * Errors: STATUS_IO, also where a full disk shows only when the file is closed. */
enum status json_page_write(const json_t *page, const char *path, int indent, int digits,
                            struct error *err);
