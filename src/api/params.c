/* params.c - docs/api.md sections 5, 8 and 14 as tables of fields, and the checks that need two fields. */
#include "api/params.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBER_TEXT = 32 };
/* Of repetition_penalty: a logit divided by the one or multiplied by the other, and then divided by the least temperature,
 * is still a float; beyond them a request could make the numbers infinite and so its own fault look like the model's. */
static const double REPETITION_MIN = 1e-10, REPETITION_MAX = 1e10;

const char *params_path(char out[PARAM_PATH], const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(out, PARAM_PATH, format, args);
    va_end(args);
    return out;
}

const char *params_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

const json_t *params_field(const json_t *body, const char *name)
{
    const json_t *value = json_object_get(body, name);

    return json_is_null(value) ? NULL : value;
}

bool params_is_word(const json_t *value, const char *word)
{
    return slice_eq(slice_of(json_string_value(value), json_string_length(value)), slice_str(word));
}

static bool wrong_type(struct api_fault *fault, const char *param, const char *wanted,
                       const json_t *value)
{
    return api_refuse(fault, 400, "invalid_type", param, "%s must be %s, not %s.", param, wanted,
                      params_type_name(value));
}

bool params_bool(const json_t *body, const char *name, bool *out, struct api_fault *fault)
{
    const json_t *value = params_field(body, name);

    if (!value) return true;
    if (!json_is_boolean(value)) return wrong_type(fault, name, "true or false", value);
    *out = json_is_true(value);
    return true;
}

bool params_integral(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double real = json_real_value(value);

    if (!json_is_real(value) || real != trunc(real)) return false;
    *out = real >= 0x1p63 ? INT64_MAX : real < -0x1p63 ? INT64_MIN : (int64_t)real;
    return true;
}

bool params_int(const json_t *body, const char *name, int64_t low, int64_t high, int64_t *out,
                struct api_fault *fault)
{
    const json_t *value = params_field(body, name);
    int64_t got;

    if (!value) return true;
    if (!json_is_number(value)) return wrong_type(fault, name, "an integer", value);
    /* a real beyond int64 saturates, and so would pass for a bound that is int64's own: seen before */
    if (!params_integral(value, &got) || got < low || got > high ||
        (json_is_real(value) &&
         (json_real_value(value) >= 0x1p63 || json_real_value(value) <= -0x1p63)))
        return high == INT64_MAX
                   ? api_refuse(fault, 400, "invalid_value", name,
                                "%s must be an integer from %lld on that fits 64 bits.", name,
                                (long long)low)
                   : api_refuse(fault, 400, "invalid_value", name,
                                "%s must be an integer from %lld to %lld.", name, (long long)low,
                                (long long)high);
    *out = got;
    return true;
}

/* The fewest digits that are this number, so that none beyond a bound reads as the bound. */
static const char *number_text(char out[NUMBER_TEXT], double value)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, NUMBER_TEXT, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    return out;
}

bool params_number(const json_t *body, const char *name, double low, double high, double *out,
                   struct api_fault *fault)
{
    const json_t *value = params_field(body, name);
    char text[NUMBER_TEXT];

    if (!value) return true;
    if (!json_is_number(value)) return wrong_type(fault, name, "a number", value);
    double got = json_number_value(value);

    if (!(got >= low && got <= high))
        return api_refuse(fault, 400, "invalid_value", name, "%s must be from %g to %g, not %s.",
                          name, low, high, number_text(text, got));
    *out = got;
    return true;
}

bool params_token_id(const struct api_model *model, const json_t *value, const char *param,
                     int32_t *out, struct api_fault *fault)
{
    int64_t id;

    if (!json_is_number(value)) return wrong_type(fault, param, "a token id", value);
    if (!params_integral(value, &id) || id < 0 || id >= model->vocab_size)
        return api_refuse(fault, 400, "invalid_value", param,
                          "%s must be a token id: an integer from 0 to %u.", param,
                          model->vocab_size - 1);
    *out = (int32_t)id;
    return true;
}

bool params_model(const struct api_model *model, const json_t *body, struct api_fault *fault)
{
    const json_t *value = params_field(body, "model");

    if (!value) return true;
    if (!json_is_string(value)) return wrong_type(fault, "model", "a string", value);
    struct slice name = slice_of(json_string_value(value), json_string_length(value));

    for (uint32_t i = 0; i < model->name_count; i++)
        if (slice_eq(name, slice_str(model->names[i]))) return true;
    return api_unknown_model(model, name, fault);
}

bool params_text_fits(const struct api_model *model, uint64_t bytes, const char *param,
                      struct api_fault *fault)
{
    uint64_t per_token = 4 * (uint64_t)model->token_bytes_max;

    if (!per_token || bytes / per_token <= model->context_tokens) return true;
    return api_refuse(fault, 400, "context_length_exceeded", param,
                      "This model's maximum context length is %u tokens. However, your prompt has "
                      "%llu bytes, which is more than %llu tokens. Please shorten it.",
                      model->context_tokens, (unsigned long long)bytes,
                      (unsigned long long)(bytes / per_token));
}

/* --- fields that this build lacks --- */

static bool is_default(const json_t *value, const char *as)
{
    json_t *wanted = json_loads(as, JSON_DECODE_ANY, NULL);
    bool same = json_is_number(value) && json_is_number(wanted)
                    ? json_number_value(value) == json_number_value(wanted)
                    : json_equal(value, wanted);

    json_decref(wanted);
    return same;
}

static const struct {
    const char *name;
    const char *value; /* accepted as JSON, beside null; NULL: none */
    unsigned routes;   /* bits of 1 << enum api_route */
} lacking[] = {
    {"bad_words", "[]", 3},
    {"allowed_token_ids", NULL, 3},
    {"prompt_logprobs", NULL, 3},
    {"structured_outputs", NULL, 3},
    {"use_beam_search", "false", 3},
    {"length_penalty", "1", 3},
    {"logprob_token_ids", NULL, 3},
    {"suffix", "\"\"", 1 << API_COMPLETIONS},
    {"tools", NULL, 1 << API_CHAT},
    {"tool_choice", "\"none\"", 1 << API_CHAT},
    {"parallel_tool_calls", "true", 1 << API_CHAT},
    {"echo", "false", 1 << API_CHAT},
    {"chat_template", NULL, 1 << API_CHAT},
    {"functions", NULL, 1 << API_CHAT},
    {"function_call", NULL, 1 << API_CHAT},
};

/* Those of them whose type the contract names. */
static bool check_lacking_types(const json_t *body, enum api_route route, struct api_fault *fault)
{
    const json_t *suffix = params_field(body, "suffix");
    bool parallel;

    if (route == API_CHAT) return params_bool(body, "parallel_tool_calls", &parallel, fault);
    return !suffix || json_is_string(suffix) || wrong_type(fault, "suffix", "a string", suffix);
}

static bool refuse_lacking(const json_t *body, enum api_route route, struct api_fault *fault)
{
    for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++) {
        const json_t *value = params_field(body, lacking[i].name);

        if (!value || !(lacking[i].routes & 1u << route)) continue;
        if (lacking[i].value && is_default(value, lacking[i].value)) continue;
        return api_refuse(fault, 400, "unsupported_parameter", lacking[i].name,
                          "%s is not supported by this server.", lacking[i].name);
    }
    return true;
}

static bool read_response_format(const json_t *body, struct api_fault *fault)
{
    const json_t *format = params_field(body, "response_format");
    const json_t *type = json_object_get(format, "type");

    if (!format) return true;
    if (!json_is_object(format)) return wrong_type(fault, "response_format", "an object", format);
    if (!json_is_string(type))
        return api_refuse(fault, 400, "invalid_value", "response_format",
                          "response_format must have a type, a string.");
    if (params_is_word(type, "text")) return true;
    if (params_is_word(type, "json_object") || params_is_word(type, "json_schema"))
        return api_refuse(fault, 400, "unsupported_parameter", "response_format",
                          "response_format of type %s is not supported by this server; "
                          "only text is.",
                          json_string_value(type));
    return api_refuse(fault, 400, "invalid_value", "response_format",
                      "response_format.type must be text, json_object or json_schema.");
}

static bool read_modalities(const json_t *body, struct api_fault *fault)
{
    const json_t *list = params_field(body, "modalities"), *item;
    size_t i;

    if (!list) return true;
    if (!json_is_array(list)) return wrong_type(fault, "modalities", "an array", list);
    json_array_foreach(list, i, item)
    {
        if (!params_is_word(item, "text"))
            return api_refuse(fault, 400, "invalid_value", "modalities",
                              "modalities may hold only \"text\" on this model.");
    }
    return true;
}

/* --- lists --- */

static bool check_stop_string(const json_t *value, const char *param, struct api_fault *fault)
{
    if (!json_is_string(value)) return wrong_type(fault, param, "a string", value);
    size_t len = json_string_length(value);

    if (len >= 1 && len <= 1024) return true;
    return api_refuse(fault, 400, "invalid_value", param,
                      "A stop string must have 1 to 1024 bytes; this one has %zu.", len);
}

static bool read_stop(const json_t *body, struct params *out, struct api_fault *fault)
{
    const json_t *stop = params_field(body, "stop"), *item;
    size_t i;
    char param[PARAM_PATH];

    if (!stop) return true;
    out->stop = stop;
    if (json_is_string(stop)) return check_stop_string(stop, "stop", fault);
    if (!json_is_array(stop))
        return wrong_type(fault, "stop", "a string or an array of strings", stop);
    if (json_array_size(stop) > 128)
        return api_refuse(fault, 400, "invalid_value", "stop",
                          "stop may have at most 128 strings; it has %zu.", json_array_size(stop));
    json_array_foreach(stop, i, item)
    {
        params_path(param, "stop[%zu]", i);
        if (!check_stop_string(item, param, fault)) return false;
    }
    return true;
}

static bool read_stop_token_ids(const struct api_model *model, const json_t *body,
                                struct params *out, struct api_fault *fault)
{
    const json_t *list = params_field(body, "stop_token_ids"), *item;
    size_t i;
    char param[PARAM_PATH];
    int32_t id;

    if (!list) return true;
    if (!json_is_array(list))
        return wrong_type(fault, "stop_token_ids", "an array of token ids", list);
    if (json_array_size(list) > 128)
        return api_refuse(fault, 400, "invalid_value", "stop_token_ids",
                          "stop_token_ids may have at most 128 ids; it has %zu.",
                          json_array_size(list));
    json_array_foreach(list, i, item)
    {
        params_path(param, "stop_token_ids[%zu]", i);
        if (!params_token_id(model, item, param, &id, fault)) return false;
    }
    out->stop_token_ids = list;
    return true;
}

/* A token id as a decimal string: no sign, no leading zero, so that no two keys are the same id. */
static bool bias_key(const char *key, uint32_t vocab_size)
{
    uint64_t id = 0;
    size_t len = strlen(key);

    if (len == 0 || len > 10 || (key[0] == '0' && len > 1)) return false;
    for (size_t i = 0; i < len; i++) {
        if (key[i] < '0' || key[i] > '9') return false;
        id = id * 10 + (uint64_t)(key[i] - '0');
    }
    return id < vocab_size;
}

static bool read_logit_bias(const struct api_model *model, const json_t *body, struct params *out,
                            struct api_fault *fault)
{
    const json_t *map = params_field(body, "logit_bias"), *value;
    const char *key;
    char text[NUMBER_TEXT];

    if (!map) return true;
    if (!json_is_object(map)) return wrong_type(fault, "logit_bias", "an object", map);
    if (json_object_size(map) > model->bias_max)
        return api_refuse(fault, 400, "invalid_value", "logit_bias",
                          "logit_bias may have at most %u entries; it has %zu.", model->bias_max,
                          json_object_size(map));
    json_object_foreach((json_t *)(uintptr_t)map, key, value)
    {
        if (!bias_key(key, model->vocab_size))
            return api_refuse(fault, 400, "invalid_value", "logit_bias",
                              "The names in logit_bias must be token ids from 0 to %u as decimal "
                              "strings; '%.40s' is not.",
                              model->vocab_size - 1, key);
        if (!json_is_number(value))
            return api_refuse(fault, 400, "invalid_type", "logit_bias",
                              "The values in logit_bias must be numbers, not %s.",
                              params_type_name(value));
        double bias = json_number_value(value);

        if (!(bias >= -100 && bias <= 100))
            return api_refuse(fault, 400, "invalid_value", "logit_bias",
                              "The values in logit_bias must be from -100 to 100, not %s.",
                              number_text(text, bias));
    }
    out->logit_bias = map;
    return true;
}

/* --- fields with rules of their own --- */

static bool read_stream(const json_t *body, struct params *out, struct api_fault *fault)
{
    const json_t *options = params_field(body, "stream_options");

    if (!params_bool(body, "stream", &out->stream, fault)) return false;
    if (!options) return true;
    if (!json_is_object(options)) return wrong_type(fault, "stream_options", "an object", options);
    if (!out->stream)
        return api_refuse(fault, 400, "invalid_value", "stream_options",
                          "stream_options is allowed only when stream is true.");
    const json_t *usage = params_field(options, "include_usage");

    if (usage && !json_is_boolean(usage))
        return wrong_type(fault, "stream_options.include_usage", "true or false", usage);
    out->include_usage = json_is_true(usage);
    return true;
}

/* Bounded by the context only with the prompt's length known: see api_open.c. */
static bool read_max_tokens(enum api_route route, const json_t *body, struct params *out,
                            struct api_fault *fault)
{
    int64_t low = route == API_CHAT ? 1 : 0, newer = -1;

    if (!params_int(body, "max_tokens", low, INT64_MAX, &out->max_tokens, fault)) return false;
    if (route == API_CHAT &&
        !params_int(body, "max_completion_tokens", low, INT64_MAX, &newer, fault))
        return false;
    if (newer >= 0) out->max_tokens = newer;
    out->max_tokens_name = newer >= 0 ? "max_completion_tokens" : "max_tokens";
    if (out->max_tokens == 0 && !out->echo)
        return api_refuse(fault, 400, "invalid_value", "max_tokens",
                          "max_tokens must be at least 1, or 0 together with echo.");
    return true;
}

static bool read_counts(const json_t *body, enum api_route route, struct params *out,
                        struct api_fault *fault)
{
    if (!params_int(body, "n", 1, 128, &out->n, fault)) return false;
    out->best_of = out->n;
    if (route != API_COMPLETIONS || !params_field(body, "best_of")) return true;
    if (!params_int(body, "best_of", out->n, out->n > 20 ? out->n : 20, &out->best_of, fault))
        return false;
    if (out->best_of > out->n && out->stream)
        return api_refuse(fault, 400, "invalid_value", "best_of",
                          "best_of must equal n when stream is true.");
    return true;
}

static bool read_logprobs(const json_t *body, enum api_route route, struct params *out,
                          struct api_fault *fault)
{
    int64_t count = -1;

    if (route == API_COMPLETIONS) {
        if (!params_int(body, "logprobs", 0, 20, &count, fault)) return false;
        out->logprobs = count >= 0;
        out->top_logprobs = count > 0 ? count : 0;
        return true;
    }
    if (!params_bool(body, "logprobs", &out->logprobs, fault) ||
        !params_int(body, "top_logprobs", 0, 20, &out->top_logprobs, fault))
        return false;
    if (out->top_logprobs && !out->logprobs)
        return api_refuse(fault, 400, "invalid_value", "top_logprobs",
                          "top_logprobs is allowed only when logprobs is true.");
    return true;
}

/* What the null device cannot do: it makes up tokens and has no logits. */
static bool refuse_without_logits(const struct api_model *model, const struct params *p,
                                  struct api_fault *fault)
{
    const char *name = p->logprobs         ? "logprobs"
                       : p->echo           ? "echo"
                       : p->best_of > p->n ? "best_of"
                                           : NULL;

    if (!model->no_logits || !name) return true;
    return api_refuse(fault, 400, "unsupported_parameter", name,
                      "%s needs a model's logits, which the null device does not have.", name);
}

static bool read_strings(const json_t *body, struct api_fault *fault)
{
    const json_t *user = params_field(body, "user");

    return !user || json_is_string(user) || wrong_type(fault, "user", "a string", user);
}

bool params_read(const struct api_model *model, enum api_route route, const json_t *body,
                 struct params *out, struct api_fault *fault)
{
    *out = (struct params){.max_tokens = -1,
                           .n = 1,
                           .best_of = 1,
                           .top_k = -1,
                           .truncate_prompt_tokens = -1,
                           .prefix_tokens = INT64_MAX,
                           .temperature = 1,
                           .top_p = 1,
                           .repetition_penalty = 1,
                           .skip_special = true,
                           .add_special = route == API_COMPLETIONS};
    out->seed_given = params_field(body, "seed") != NULL;
    return check_lacking_types(body, route, fault) && refuse_lacking(body, route, fault) &&
           read_response_format(body, fault) &&
           (route != API_CHAT || read_modalities(body, fault)) && read_strings(body, fault) &&
           read_stream(body, out, fault) &&
           (route == API_CHAT || params_bool(body, "echo", &out->echo, fault)) &&
           read_max_tokens(route, body, out, fault) &&
           params_int(body, "min_tokens", 0, INT64_MAX, &out->min_tokens, fault) &&
           read_counts(body, route, out, fault) && read_logprobs(body, route, out, fault) &&
           params_number(body, "temperature", 0, 2, &out->temperature, fault) &&
           params_number(body, "top_p", 0, 1, &out->top_p, fault) &&
           params_int(body, "top_k", -1, INT64_MAX, &out->top_k, fault) &&
           params_number(body, "min_p", 0, 1, &out->min_p, fault) &&
           params_number(body, "presence_penalty", -2, 2, &out->presence_penalty, fault) &&
           params_number(body, "frequency_penalty", -2, 2, &out->frequency_penalty, fault) &&
           params_number(body, "repetition_penalty", REPETITION_MIN, REPETITION_MAX,
                         &out->repetition_penalty, fault) &&
           read_logit_bias(model, body, out, fault) &&
           params_int(body, "seed", INT64_MIN, INT64_MAX, &out->seed, fault) &&
           read_stop(body, out, fault) && read_stop_token_ids(model, body, out, fault) &&
           params_bool(body, "include_stop_str_in_output", &out->include_stop, fault) &&
           params_bool(body, "ignore_eos", &out->ignore_eos, fault) &&
           params_bool(body, "skip_special_tokens", &out->skip_special, fault) &&
           params_bool(body, "return_token_ids", &out->return_token_ids, fault) &&
           params_bool(body, "return_timings", &out->return_timings, fault) &&
           params_int(body, "priority", -INT32_MAX, INT32_MAX, &out->priority, fault) &&
           params_int(body, "prefix_ttl", 0, 86400, &out->prefix_ttl, fault) &&
           params_int(body, "prefix_tokens", 1, INT64_MAX, &out->prefix_tokens, fault) &&
           params_bool(body, "timings_per_token", &out->timings_per_token, fault) &&
           params_bool(body, "include_metrics", &out->include_metrics, fault) &&
           params_bool(body, "return_tokens_as_token_ids", &out->tokens_as_ids, fault) &&
           params_bool(body, "add_special_tokens", &out->add_special, fault) &&
           params_int(body, "truncate_prompt_tokens", 1, INT64_MAX, &out->truncate_prompt_tokens,
                      fault) &&
           refuse_without_logits(model, out, fault);
}

/* --- the operator's limits --- */

static bool within(uint64_t count, uint32_t limit, const char *field, const char *one,
                   const char *many, struct api_fault *fault)
{
    return !limit || count <= limit ||
           api_refuse(fault, 400, "invalid_value", field,
                      "%s may have at most %u %s on this server; here it is %llu.", field, limit,
                      limit == 1 ? one : many, (unsigned long long)count);
}

bool params_limits(const struct api_limits *limits, const struct params *p, struct api_fault *fault)
{
    uint64_t stops = json_is_array(p->stop) ? json_array_size(p->stop) : p->stop != NULL;

    if (limits->choices && p->n > limits->choices)
        return api_refuse(fault, 400, "invalid_value", "n",
                          "n may be at most %u on this server; here it is %lld.", limits->choices,
                          (long long)p->n);
    if (limits->choices && p->best_of > limits->choices)
        return api_refuse(fault, 400, "invalid_value", "best_of",
                          "best_of may be at most %u on this server; here it is %lld.",
                          limits->choices, (long long)p->best_of);
    return within(stops, limits->stop_strings, "stop", "string", "strings", fault) &&
           within(json_object_size(p->logit_bias), limits->biases, "logit_bias", "entry", "entries",
                  fault);
}
