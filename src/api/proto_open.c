/* proto_open.c - a Request of proto/inferd.proto to what api_open makes of a body: see open.h for how. */
#include <inferd.pb-c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/open.h"
#include "api/openai_tokenize.h"
#include "api/params.h"
#include "api/proto_out.h"
#include "api/proto_wire.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json_guard.h"

enum {
    MEMORY_MIN =
        64
        << 20, /* a message may take 16 times its size, up to this much in any case: as a body of JSON */
    TURN_BYTES = 640, /* of a ChatMessage or ToolCall as JSON, about */
    SALT_MAX = 1024,
    KWARGS_DEPTH = 64,
};

/* --- the outer fields --- */

static enum api_message kind_of(uint32_t field)
{
    static const enum api_message kinds[] = {
        API_MESSAGE_GENERATE, API_MESSAGE_TOKENIZE,   API_MESSAGE_DETOKENIZE, API_MESSAGE_CANCEL,
        API_MESSAGE_HEALTH,   API_MESSAGE_MODEL_INFO, API_MESSAGE_LOAD_REPORT};

    return field >= 10 && field < 10 + sizeof kinds / sizeof *kinds ? kinds[field - 10]
                                                                    : API_MESSAGE_NONE;
}

static bool read_cancel(struct slice body, uint64_t *id)
{
    struct wire wire = wire_of(body);
    struct wire_field field;
    enum wire_step step;

    *id = 0;
    while ((step = wire_next(&wire, &field)) == WIRE_FIELD)
        if (field.number == 1 && !field.is_bytes) *id = field.value;
    return step == WIRE_END;
}

/* Whether a Generate or Tokenize has a field `messages`. */
static bool has_messages(struct slice body, enum api_message kind)
{
    struct wire wire = wire_of(body);
    struct wire_field field;
    uint32_t number = kind == API_MESSAGE_GENERATE ? 3 : 2;

    if (kind == API_MESSAGE_DETOKENIZE) return false;
    while (wire_next(&wire, &field) == WIRE_FIELD)
        if (field.number == number && field.is_bytes) return true;
    return false;
}

bool api_proto_head(struct slice message, struct api_head *out)
{
    struct wire wire = wire_of(message);
    struct wire_field field;
    enum wire_step step;
    bool chat = false;

    *out = (struct api_head){0};
    while ((step = wire_next(&wire, &field)) == WIRE_FIELD) {
        enum api_message kind = kind_of(field.number);

        if (field.number == 1 && !field.is_bytes) out->id = field.value;
        if (field.number == 2 && field.is_bytes) out->api_key = field.bytes;
        if (field.number == 3 && field.is_bytes) out->request_id = field.bytes;
        if (field.number == 4 && field.is_bytes) out->traceparent = field.bytes;
        if (field.number == 5 && field.is_bytes) out->tracestate = field.bytes;
        if (kind == API_MESSAGE_NONE) continue;
        if (!field.is_bytes) return false;
        out->kind = kind;
        if (kind <= API_MESSAGE_DETOKENIZE) chat |= has_messages(field.bytes, kind);
        if (kind == API_MESSAGE_CANCEL && !read_cancel(field.bytes, &out->cancel_id)) return false;
    }
    out->plain = !chat;
    return step == WIRE_END;
}

/* --- unpacking: into an arena, so that memory is bounded --- */

static void *take(void *arena, size_t size)
{
    return arena_alloc(arena, size);
}

static void keep(void *arena, void *pointer)
{
    (void)arena;
    (void)pointer;
}

static bool unpack(struct slice message, struct arena *arena, Inferd__V1__Request **out,
                   struct api_fault *fault)
{
    ProtobufCAllocator allocator = {.alloc = take, .free = keep, .allocator_data = arena};

    *out = inferd__v1__request__unpack(&allocator, message.len, (const uint8_t *)message.ptr);
    return *out || api_refuse(fault, 400, "invalid_message", NULL,
                              "The message is no inferd.v1.Request, or has too many small parts.");
}

/* --- to JSON --- */

/* An object that is being filled; the first fault stays. */
struct draft_body {
    json_t *object;
    struct api_fault *fault;
    bool ok;
};

static void set(struct draft_body *b, const char *name, json_t *value)
{
    if (!b->ok) {
        json_decref(value);
        return;
    }
    b->ok = value && !json_object_set_new(b->object, name, value);
    if (!b->ok) api_submit_fault(STATUS_NOMEM, NULL, API_CHAT, 1, b->fault);
}

static json_t *text_of(struct draft_body *b, const char *param, const void *bytes, size_t len)
{
    json_t *text = json_stringn(len ? bytes : "", len);

    if (!text && b->ok)
        b->ok = api_refuse(b->fault, 400, "invalid_value", param, "%s is not valid UTF-8.", param);
    return text;
}

static void set_text(struct draft_body *b, const char *name, ProtobufCBinaryData text)
{
    json_t *value = text_of(b, name, text.data, text.len);

    if (value) set(b, name, value);
}

static void set_name(struct draft_body *b, const char *name, const char *text)
{
    json_t *value = text && *text ? text_of(b, name, text, strlen(text)) : NULL;

    if (value) set(b, name, value);
}

static void set_int(struct draft_body *b, const char *name, bool given, int64_t value)
{
    if (given) set(b, name, json_integer(value));
}

static void set_bool(struct draft_body *b, const char *name, bool given, bool value)
{
    if (given) set(b, name, json_boolean(value));
}

static void set_real(struct draft_body *b, const char *name, bool given, double value)
{
    if (!given || !b->ok) return;
    if (!isfinite(value))
        b->ok = api_refuse(b->fault, 400, "invalid_value", name, "%s must be finite.", name);
    else
        set(b, name, json_real(value));
}

static void set_json(struct draft_body *b, const char *name, ProtobufCBinaryData text)
{
    struct json_limits limits = {.depth_max = KWARGS_DEPTH, .memory_max = MEMORY_MIN};
    struct error err = {0};
    json_t *value;

    if (!text.len || !b->ok) return;
    if (json_guard_parse(slice_of(text.data, text.len), &limits, &value, &err))
        b->ok = api_refuse(b->fault, 400, "invalid_value", name, "%s is no JSON: %s", name,
                           err.message);
    else
        set(b, name, value);
}

static void push(struct draft_body *b, json_t *array, json_t *value)
{
    if (!b->ok) {
        json_decref(value);
        return;
    }
    b->ok = value && !json_array_append_new(array, value);
    if (!b->ok && !b->fault->http_status)
        api_submit_fault(STATUS_NOMEM, NULL, API_CHAT, 1, b->fault);
}

/* "name[i]" of each text; one alone stands without an array where `single` says so */
static void set_texts(struct draft_body *b, const char *name, const ProtobufCBinaryData *texts,
                      size_t count, size_t max, bool single)
{
    json_t *array;
    char param[PARAM_PATH];

    if (!count || !b->ok) return;
    if (count > max) {
        b->ok = api_refuse(b->fault, 400, "invalid_value", name,
                           "%s may have at most %zu; it has %zu.", name, max, count);
        return;
    }
    if (single && count == 1) {
        set_text(b, name, texts[0]);
        return;
    }
    array = json_array();
    for (size_t i = 0; array && b->ok && i < count; i++) {
        params_path(param, "%s[%zu]", name, i);
        push(b, array, text_of(b, param, texts[i].data, texts[i].len));
    }
    set(b, name, array);
}

/* --- conversations --- */

static json_t *call_object(struct draft_body *b, const Inferd__V1__ToolCall *call)
{
    struct draft_body function = {json_object(), b->fault, b->ok};
    struct draft_body out = {json_object(), b->fault, b->ok};

    set(&function, "name",
        text_of(&function, "name", call->name ? call->name : "",
                call->name ? strlen(call->name) : 0));
    set_text(&function, "arguments", call->arguments);
    out.ok = function.ok;
    set(&out, "id", text_of(&out, "id", call->id ? call->id : "", call->id ? strlen(call->id) : 0));
    set(&out, "type", json_string("function"));
    set(&out, "function", function.object);
    b->ok = out.ok;
    return out.object;
}

static json_t *message_object(struct draft_body *b, const Inferd__V1__ChatMessage *message)
{
    struct draft_body out = {json_object(), b->fault, b->ok};
    json_t *calls;

    set_name(&out, "role", message->role);
    if (message->has_content) set_text(&out, "content", message->content);
    if (message->has_name) set_text(&out, "name", message->name);
    set_name(&out, "tool_call_id", message->tool_call_id);
    if (message->n_tool_calls) {
        calls = json_array();
        for (size_t i = 0; out.ok && i < message->n_tool_calls; i++)
            push(&out, calls, call_object(&out, message->tool_calls[i]));
        set(&out, "tool_calls", calls);
    }
    b->ok = out.ok;
    return out.object;
}

static void set_messages(struct draft_body *b, Inferd__V1__ChatMessage *const *messages,
                         size_t count, size_t message_bytes)
{
    uint64_t turns = count, limit = 16 * (uint64_t)message_bytes;
    json_t *array;

    if (!count || !b->ok) return;
    for (size_t i = 0; i < count; i++)
        turns += messages[i]->n_tool_calls;
    if (turns * TURN_BYTES > (limit < MEMORY_MIN ? MEMORY_MIN : limit)) {
        b->ok = api_refuse(b->fault, 400, "invalid_value", "messages",
                           "messages has too many turns and tool calls, %llu.",
                           (unsigned long long)turns);
        return;
    }
    array = json_array();
    for (size_t i = 0; array && b->ok && i < count; i++)
        push(b, array, message_object(b, messages[i]));
    set(b, "messages", array);
}

/* --- Generate --- */

static void set_bias(struct draft_body *b, const Inferd__V1__Generate *g,
                     const struct api_model *model)
{
    json_t *map;
    char key[16];

    if (!g->n_logit_bias || !b->ok) return;
    if (g->n_logit_bias > model->bias_max) {
        b->ok = api_refuse(b->fault, 400, "invalid_value", "logit_bias",
                           "logit_bias may have at most %u entries; it has %zu.", model->bias_max,
                           g->n_logit_bias);
        return;
    }
    map = json_object();
    for (size_t i = 0; map && b->ok && i < g->n_logit_bias; i++) {
        struct draft_body entry = {map, b->fault, true};

        snprintf(key, sizeof key, "%d", g->logit_bias[i]->token);
        if (isfinite(g->logit_bias[i]->bias))
            set(&entry, key, json_real(g->logit_bias[i]->bias));
        else
            entry.ok = api_refuse(b->fault, 400, "invalid_value", "logit_bias",
                                  "The values in logit_bias must be from -100 to 100.");
        b->ok = entry.ok;
    }
    set(b, "logit_bias", map);
}

static void set_stop_ids(struct draft_body *b, const Inferd__V1__Generate *g)
{
    json_t *array;

    if (!g->n_stop_token_ids || !b->ok) return;
    if (g->n_stop_token_ids > 128) {
        b->ok =
            api_refuse(b->fault, 400, "invalid_value", "stop_token_ids",
                       "stop_token_ids may have at most 128 ids; it has %zu.", g->n_stop_token_ids);
        return;
    }
    array = json_array();
    for (size_t i = 0; array && b->ok && i < g->n_stop_token_ids; i++)
        push(b, array, json_integer(g->stop_token_ids[i]));
    set(b, "stop_token_ids", array);
}

/* HTTP's completions have a number in `logprobs`, chat has a switch and top_logprobs. */
static void set_logprobs(struct draft_body *b, const Inferd__V1__Generate *g, bool chat)
{
    int64_t tops = g->has_top_logprobs ? g->top_logprobs : 0;

    if (!b->ok) return;
    if (tops < 0 || tops > 20)
        b->ok = api_refuse(b->fault, 400, "invalid_value", "top_logprobs",
                           "top_logprobs must be an integer from 0 to 20.");
    else if (tops && !g->logprobs)
        b->ok = api_refuse(b->fault, 400, "invalid_value", "top_logprobs",
                           "top_logprobs is allowed only when logprobs is true.");
    else if (!chat)
        set_int(b, "logprobs", g->logprobs, tops);
    else
        set_bool(b, "logprobs", true, g->logprobs);
    if (chat && tops) set_int(b, "top_logprobs", true, tops);
}

static void set_lengths(struct draft_body *b, const Inferd__V1__Generate *g)
{
    set_int(b, "max_tokens", g->has_max_tokens, g->max_tokens);
    set_int(b, "min_tokens", g->has_min_tokens, g->min_tokens);
    set_int(b, "n", g->has_n, g->n);
    set_int(b, "best_of", g->has_best_of, g->best_of);
    set_int(b, "truncate_prompt_tokens", g->has_truncate_prompt_tokens, g->truncate_prompt_tokens);
    set_int(b, "prefix_ttl", g->has_prefix_ttl, g->prefix_ttl);
    set_int(b, "prefix_tokens", g->has_prefix_tokens, g->prefix_tokens);
}

static void set_sampling(struct draft_body *b, const Inferd__V1__Generate *g)
{
    set_real(b, "temperature", g->has_temperature, g->temperature);
    set_real(b, "top_p", g->has_top_p, g->top_p);
    set_int(b, "top_k", g->has_top_k, g->top_k);
    set_real(b, "min_p", g->has_min_p, g->min_p);
    set_real(b, "presence_penalty", g->has_presence_penalty, g->presence_penalty);
    set_real(b, "frequency_penalty", g->has_frequency_penalty, g->frequency_penalty);
    set_real(b, "repetition_penalty", g->has_repetition_penalty, g->repetition_penalty);
    set_int(b, "seed", g->has_seed, g->seed);
}

static void set_flags(struct draft_body *b, const Inferd__V1__Generate *g)
{
    set_bool(b, "include_stop_str_in_output", g->has_include_stop, g->include_stop);
    set_bool(b, "ignore_eos", g->has_ignore_eos, g->ignore_eos);
    set_bool(b, "skip_special_tokens", g->has_skip_special_tokens, g->skip_special_tokens);
    set_bool(b, "stream", g->has_stream, g->stream);
    set_bool(b, "echo", g->has_echo, g->echo);
    set_bool(b, "return_token_ids", g->has_return_token_ids, g->return_token_ids);
    set_bool(b, "return_timings", g->has_return_timings, g->return_timings);
    set_bool(b, "add_special_tokens", g->has_add_special_tokens, g->add_special_tokens);
}

static void set_chat(struct draft_body *b, const Inferd__V1__Generate *g, size_t message_bytes)
{
    set_messages(b, g->messages, g->n_messages, message_bytes);
    set_bool(b, "add_generation_prompt", g->has_add_generation_prompt, g->add_generation_prompt);
    set_bool(b, "continue_final_message", g->has_continue_final_message, g->continue_final_message);
    set_json(b, "chat_template_kwargs", g->chat_template_kwargs);
    set_json(b, "documents", g->documents);
    set_name(b, "reasoning_effort", g->reasoning_effort);
}

/* What has no field in JSON. */
static bool read_own(const Inferd__V1__Generate *g, struct open_message *out,
                     struct api_fault *fault)
{
    size_t forms = (g->n_prompts > 0) + (g->n_prompt_ids > 0) + (g->n_messages > 0);

    if (forms != 1)
        return api_refuse(fault, 400, forms ? "invalid_value" : "missing_required_parameter",
                          "prompts",
                          "Exactly one of prompts, prompt_ids and messages must be given.");
    if (g->n_messages && g->has_best_of)
        return api_refuse(fault, 400, "invalid_value", "best_of",
                          "best_of is not for messages; n is.");
    if (g->priority < -100 || g->priority > 100)
        return api_refuse(fault, 400, "invalid_value", "priority",
                          "priority must be an integer from -100 to 100.");
    if (g->timeout_s != 0 && !(g->timeout_s >= 1e-3 && g->timeout_s <= 86400))
        return api_refuse(fault, 400, "invalid_value", "timeout_s",
                          "timeout_s must be 0 (none) or from 0.001 to 86400.");
    if (g->cache_salt.len > SALT_MAX)
        return api_refuse(fault, 400, "invalid_value", "cache_salt",
                          "cache_salt may have at most %d bytes.", SALT_MAX);
    out->priority = g->priority;
    out->timeout_ns = (int64_t)(g->timeout_s * 1e9);
    if (g->cache_salt.len)
        out->cache_salt = hash_bytes(g->cache_salt.data, g->cache_salt.len, 1) | 1;
    return true;
}

static bool read_lists(const Inferd__V1__Generate *g, struct arena *arena, struct open_message *out,
                       struct api_fault *fault)
{
    struct open_ids *lists;

    if (!g->n_prompt_ids) return true;
    lists = arena_alloc(arena, g->n_prompt_ids * sizeof *lists);
    if (!lists) {
        api_submit_fault(STATUS_NOMEM, NULL, API_COMPLETIONS, 1, fault);
        return false;
    }
    for (size_t i = 0; i < g->n_prompt_ids; i++)
        lists[i] = (struct open_ids){g->prompt_ids[i]->ids, g->prompt_ids[i]->n_ids};
    out->lists = lists;
    out->list_count = g->n_prompt_ids;
    return true;
}

/* HTTP's field is `prompt`. */
static void name_field(struct api_fault *fault)
{
    char rest[sizeof fault->param];

    if (strncmp(fault->param, "prompt", 6) != 0 || (fault->param[6] && fault->param[6] != '['))
        return;
    memcpy(rest, fault->param + 6, sizeof rest - 6);
    rest[sizeof rest - 7] = 0;
    snprintf(fault->param, sizeof fault->param, "prompts%.80s", rest);
}

static void open_generate(const struct api_model *model, const Inferd__V1__Generate *g,
                          size_t message_bytes, struct arena *arena,
                          const struct api_client *client, struct api_answer *out)
{
    struct draft_body b = {json_object(), &out->fault, true};
    struct open_message message = {0};
    int64_t opened_ns = clock_mono_ns();
    bool chat = g->n_messages > 0;

    if (read_own(g, &message, &out->fault) && read_lists(g, arena, &message, &out->fault)) {
        set_name(&b, "model", g->model);
        set_texts(&b, "prompt", g->prompts, g->n_prompts, model->sequences_max, true);
        if (chat) set_chat(&b, g, message_bytes);
        set_lengths(&b, g);
        set_sampling(&b, g);
        set_flags(&b, g);
        set_logprobs(&b, g, chat);
        set_bias(&b, g, model);
        set_texts(&b, "stop", g->stop, g->n_stop, 128, false);
        set_stop_ids(&b, g);
        if (b.ok)
            open_generation(model, chat ? API_CHAT : API_COMPLETIONS, b.object, &message, client,
                            opened_ns, out);
    }
    json_decref(b.object);
    name_field(&out->fault);
}

/* --- Tokenize, Detokenize --- */

static void open_tokenize(const struct api_model *model, const Inferd__V1__Tokenize *t,
                          size_t message_bytes, const struct api_client *client,
                          struct api_answer *out)
{
    struct draft_body b = {json_object(), &out->fault, true};
    struct token_list ids = {0};

    set_name(&b, "model", t->model);
    if (t->has_prompt) set_text(&b, "prompt", t->prompt);
    set_messages(&b, t->messages, t->n_messages, message_bytes);
    set_bool(&b, "add_special_tokens", t->has_add_special_tokens, t->add_special_tokens);
    set_bool(&b, "add_generation_prompt", t->has_add_generation_prompt, t->add_generation_prompt);
    set_bool(&b, "continue_final_message", t->has_continue_final_message,
             t->continue_final_message);
    set_int(&b, "truncate_prompt_tokens", t->has_truncate_prompt_tokens, t->truncate_prompt_tokens);
    set_json(&b, "chat_template_kwargs", t->chat_template_kwargs);
    set_json(&b, "documents", t->documents);
    set_name(&b, "reasoning_effort", t->reasoning_effort);
    if (b.ok && tokenize_ids(model, b.object, &ids, &out->fault)) {
        out->kind = API_BODY;
        proto_out_ids(client->message_id, ids.ids, ids.count, model->context_tokens, &out->body);
    }
    token_list_fini(&ids);
    json_decref(b.object);
}

static void open_detokenize(const struct api_model *model, const Inferd__V1__Detokenize *d,
                            const struct api_client *client, struct api_answer *out)
{
    struct draft_body b = {json_object(), &out->fault, true};
    struct buf text;

    buf_init(&text, 0);
    set_name(&b, "model", d->model);
    for (size_t i = 0; b.ok && i < d->n_ids; i++)
        if (d->ids[i] < 0 || (uint32_t)d->ids[i] >= model->vocab_size)
            b.ok = api_refuse(&out->fault, 400, "invalid_value", "ids",
                              "ids[%zu] must be a token id: an integer from 0 to %u.", i,
                              model->vocab_size - 1);
    if (b.ok && params_model(model, b.object, &out->fault) &&
        detokenize_ids(model, d->ids, d->n_ids, "ids", &text, &out->fault)) {
        out->kind = API_BODY;
        proto_out_text(client->message_id, buf_slice(&text), &out->body);
    }
    buf_fini(&text);
    json_decref(b.object);
}

void api_proto_open(const struct api_model *model, enum api_state state, struct slice message,
                    const struct api_client *client, struct api_answer *out)
{
    uint64_t limit = 16 * (uint64_t)message.len;
    Inferd__V1__Request *request;
    struct arena arena;

    *out = (struct api_answer){.kind = API_FAULT};
    buf_init(&out->body, 0);
    arena_init(&arena, (size_t)(limit < MEMORY_MIN ? MEMORY_MIN : limit));
    if (unpack(message, &arena, &request, &out->fault)) {
        bool generate = request->body_case == INFERD__V1__REQUEST__BODY_GENERATE;

        if (!open_state(state, generate ? API_CHAT : API_TOKENIZE, &out->fault))
            ;
        else if (generate)
            open_generate(model, request->generate, message.len, &arena, client, out);
        else if (request->body_case == INFERD__V1__REQUEST__BODY_TOKENIZE)
            open_tokenize(model, request->tokenize, message.len, client, out);
        else if (request->body_case == INFERD__V1__REQUEST__BODY_DETOKENIZE)
            open_detokenize(model, request->detokenize, client, out);
        else
            api_refuse(&out->fault, 400, "invalid_message", NULL,
                       "The message's parts contradict each other.");
    }
    arena_fini(&arena);
    if (out->kind == API_BODY && buf_status(&out->body)) {
        out->kind = API_FAULT;
        api_submit_fault(STATUS_NOMEM, NULL, API_TOKENIZE, 1, &out->fault);
    }
}
