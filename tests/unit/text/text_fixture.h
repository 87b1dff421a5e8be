/* text_fixture.h - tokenizers of tests/golden, and small ones written by a test, opened for a test.
 * */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "text/tokenizer.h"

/* Opens tests/golden/tokenizers/NAME (its tokenizer.json is unpacked into a temporary folder, which
 * is gone again when this returns), or "smollm2", which stands in the GGUF that INFERD_SMOLLM2
 * names or the cache has. NULL when it is not there: the test then calls skip(). */
struct tokenizer *fixture_tokenizer(const char *name);

/* Opens a packed file of tests/golden (its name ends with .xz), unpacked as `name` into a temporary folder: a
 * tokenizer.json, or a GGUF. NULL when it is not there. */
struct tokenizer *fixture_packed(const char *relative, const char *name);

/* A tokenizer.json written to a GGUF and opened from there; *status as below. */
struct tokenizer *fixture_gguf(const json_t *root, const char *pre, int bos, enum status *status,
                               struct error *err);
/* The same tokenizer written to a GGUF first (gguf_writer.h): pre and bos as there. */
struct tokenizer *fixture_tokenizer_as_gguf(const char *name, const char *pre, int bos);

/* Opens a tokenizer.json given as text, with the other files as text or NULL. *status: what
 * tokenizer_open said; NULL then. */
struct tokenizer *fixture_from_text(const char *tokenizer_json, const char *tokenizer_config,
                                    const char *generation_config, enum status *status,
                                    struct error *err);

/* Opens a .jsonl or .jsonl.xz of tests/golden for reading; NULL when it is not there. `pipe`: to be
 * closed by pclose. */
FILE *fixture_lines(const char *relative, int *pipe);
void fixture_close(FILE *file, int pipe);
