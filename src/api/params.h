/* params.h - the generation parameters of a body (docs/api.md section 8), read and checked once.
 *
 * A field is absent or null (its default), right, or the first fault: reading stops there. No coercion: a string is no
 * number, true is not 1. A number's range is checked before it is converted. Borrows from the JSON tree. */
#pragma once

#include <jansson.h>

#include "api/api.h"

struct params {
    /* lengths and counts; -1 where not given and there is no default */
    int64_t max_tokens;          /* of either name */
    const char *max_tokens_name; /* as the client sent it */
    int64_t min_tokens, n, best_of, top_k, truncate_prompt_tokens, seed;
    bool seed_given;
    int64_t prefix_ttl, prefix_tokens;
    int64_t priority; /* smaller first, as in vLLM */
    double temperature, top_p, min_p;
    double presence_penalty, frequency_penalty, repetition_penalty;
    bool stream, include_usage;
    bool include_stop, ignore_eos, skip_special;
    bool return_token_ids, tokens_as_ids, add_special, return_timings, timings_per_token,
        include_metrics;
    bool echo;
    bool logprobs;                                    /* wanted */
    int64_t top_logprobs;                             /* 0..20 */
    const json_t *stop, *stop_token_ids, *logit_bias; /* checked; NULL: none */
};

/* Reads everything that chat and completions share, and what is each one's own of it (max_tokens, logprobs, echo).
 * False: *fault is filled. */
bool params_read(const struct api_model *model, enum api_route route, const json_t *body,
                 struct params *out, struct api_fault *fault);

/* Holds what was read against the operator's limits. False: *fault names the field. */
bool params_limits(const struct api_limits *limits, const struct params *params,
                   struct api_fault *fault);

/* A path below a field ("messages[3].content"), cut to fit; returns out. */
enum { PARAM_PATH = 96 };
const char *params_path(char out[PARAM_PATH], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Building blocks for the fields of one route. Each leaves *out alone when the field is absent or null. */
const json_t *params_field(const json_t *body, const char *name); /* NULL: absent or null */
bool params_bool(const json_t *body, const char *name, bool *out, struct api_fault *fault);
bool params_int(const json_t *body, const char *name, int64_t low, int64_t high, int64_t *out,
                struct api_fault *fault);
bool params_number(const json_t *body, const char *name, double low, double high, double *out,
                   struct api_fault *fault);
/* Whether `value` is an integral number; *out is it when it lies within int64. Out of range: INT64_MAX or INT64_MIN. */
bool params_integral(const json_t *value, int64_t *out);
/* A token id of the vocabulary in `value`; else the fault, with `param` (a path below the field). */
bool params_token_id(const struct api_model *model, const json_t *value, const char *param,
                     int32_t *out, struct api_fault *fault);
/* Whether a text can fit the context at all, before it is tokenised: a token stands for at most the longest token's bytes
 * (times 4, for normalisers that shorten text). So a text of megabytes is refused in microseconds. */
bool params_text_fits(const struct api_model *model, uint64_t bytes, const char *param,
                      struct api_fault *fault);
/* The `model` field: absent, or one of the served names. 404 otherwise. */
bool params_model(const struct api_model *model, const json_t *body, struct api_fault *fault);
/* Whether `value` is the string `word`, all of it: a text with U+0000 behind the word is another. */
bool params_is_word(const json_t *value, const char *word);
/* "an object", "a string" ...: for messages. */
const char *params_type_name(const json_t *value);
