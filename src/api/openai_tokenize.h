/* openai_tokenize.h - POST /tokenize and /detokenize: docs/api.md section 7. */
#pragma once

#include "api/params.h"
#include "text/tokenizer.h"

/* Appends the JSON of a 200. False: *fault. */
bool tokenize_answer(const struct api_model *model, const json_t *body, struct buf *out,
                     struct api_fault *fault);
bool detokenize_answer(const struct api_model *model, const json_t *body, struct buf *out,
                       struct api_fault *fault);
/* Makes `text` the text of ids, special tokens included, 64 MiB at most: an id of two bytes may stand for a token of hundreds. `param` is
 * the ids' name in a fault. False: *fault. */
bool detokenize_ids(const struct api_model *model, const int32_t *ids, size_t count,
                    const char *param, struct buf *text, struct api_fault *fault);
/* The ids of a body's prompt or messages: what tokenize_answer answers. */
bool tokenize_ids(const struct api_model *model, const json_t *body, struct token_list *ids,
                  struct api_fault *fault);
