/* openai_tokenize.h - POST /tokenize and /detokenize: docs/api.md section 7. */
#pragma once

#include "api/params.h"

/* Appends the JSON of a 200. False: *fault. */
bool tokenize_answer(const struct api_model *model, const json_t *body, struct buf *out,
                     struct api_fault *fault);
bool detokenize_answer(const struct api_model *model, const json_t *body, struct buf *out,
                       struct api_fault *fault);
