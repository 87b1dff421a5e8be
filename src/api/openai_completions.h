/* openai_completions.h - the prompts of POST /v1/completions: docs/api.md section 9. */
#pragma once

#include "api/open.h"
#include "api/params.h"
#include "text/tokenizer.h"

struct prompts {
    struct token_list *lists; /* owned [count] */
    const json_t *
        *texts; /* owned array, borrowed strings [count]; NULL entry: the prompt came as ids */
    uint32_t count;
};

/* Reads `prompt` in its four forms and tokenises text. False: *fault. */
bool prompts_read(const struct api_model *model, const json_t *body, bool add_special,
                  struct prompts *out, struct api_fault *fault);
/* The same from lists of ids. */
bool prompts_take(const struct api_model *model, const struct open_ids *lists, size_t count,
                  struct prompts *out, struct api_fault *fault);
void prompts_fini(struct prompts *prompts);
