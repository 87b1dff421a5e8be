/* chat.h - a conversation to token ids, through the model's own template.
 *
 * Holds the model's chat template, its token variables, and which forms the template handles, found out once by
 * rendering a probe of each: whether it walks content that is a list of parts; whether `arguments` of an earlier tool
 * call is to be an object or a string; whether it knows the role `developer`.
 * Thread: immutable after chat_open, any number of renders at once. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "text/template.h"
#include "text/tokenizer.h"

struct chat; /* opaque */
struct weights;

/* The template: `override` when its ptr is not NULL (--chat-template), else the model's own: chat_template.jinja,
 * tokenizer_config.json (a string, or the list's entry "default"), GGUF tokenizer.chat_template. A model without one
 * or with one that does not compile gives a chat whose renders fail with a sentence that says so (text completions
 * need none); an override that does not compile is STATUS_INVALID. tok is borrowed until chat_close, weights for the
 * call. Errors: also what reading the files gives, STATUS_NOMEM. */
enum status chat_open(struct weights *weights, const struct tokenizer *tok, struct slice override,
                      struct chat **out, struct error *err);
void chat_close(struct chat *chat); /* takes NULL */
/* The plain template, for made-up weights that have none, as an override: every message as its role, ": ", its
 * content and a line feed; then "assistant: ". Neither tools nor calls are in it. */
extern const char chat_plain_template[];
/* Whether chat_open would take the source as its override: the same sentence where not. Errors: STATUS_INVALID. */
enum status chat_check_template(struct slice source, struct error *err);
/* The template's source, ptr NULL when the model has none. */
struct slice chat_template_source(const struct chat *chat);

struct chat_request {
    const json_t *messages;  /* validated array (api/); contents are strings, part lists or null */
    const json_t *tools;     /* array or NULL */
    const json_t *documents; /* array or NULL */
    const json_t *kwargs;    /* chat_template_kwargs: object or NULL */
    const json_t
        *extra; /* other members that the template sees (reasoning_effort): object or NULL */
    bool add_generation_prompt;
    bool continue_final_message; /* the last message's text is left open at its end */
    bool add_special_tokens;     /* as in /tokenize; a BOS that the template wrote is not doubled */
    bool trust_content;          /* operator's choice: added tokens are read inside user text too */
    int64_t now;                 /* unix seconds for strftime_now */
    int64_t *rendered_ns; /* NULL, or receives CLOCK_MONOTONIC between rendering and tokenising */
};

/* Renders and tokenises. text (may be NULL) receives the rendered text. Errors: STATUS_INVALID (the template
 * refused the conversation: err has the template's own words; or any other fault of rendering), STATUS_LIMIT,
 * STATUS_NOT_FOUND (no template), STATUS_NOMEM. */
enum status chat_encode(const struct chat *chat, const struct chat_request *request,
                        struct token_list *out, struct buf *text, struct error *err);
