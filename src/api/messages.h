/* messages.h - a conversation as a client sends it: checked, and handed to the chat template. docs/api.md 10.1. */
#pragma once

#include <jansson.h>

#include "api/api.h"
#include "text/tokenizer.h"

struct messages {
    json_t *list; /* owned: a checked copy, refusal parts as text parts */
    const json_t *tools, *documents, *kwargs;
    json_t *extra; /* owned: reasoning_effort, where given */
    bool add_generation_prompt, continue_final, add_special;
    int64_t rendered_ns; /* by messages_encode: when the template's text was there */
};

/* Reads messages and what else the template sees. add_special: the default of add_special_tokens. False: *fault. */
bool messages_read(const json_t *body, bool add_special, struct messages *out,
                   struct api_fault *fault);
void messages_fini(struct messages *messages);
/* Renders and tokenises: appends ids. A template that refuses is a fault of `messages` in its own words. */
bool messages_encode(const struct api_model *model, struct messages *messages,
                     struct token_list *ids, struct api_fault *fault);
