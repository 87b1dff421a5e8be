/* api_open.c - from a body to a request: parse, check, tokenise, bound by the context, fill in. */
#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/random.h>

#include "api/api.h"
#include "api/messages.h"
#include "api/open.h"
#include "api/openai_completions.h"
#include "api/openai_tokenize.h"
#include "api/stream.h"
#include "base/clock.h"
#include "base/json_guard.h"

enum {
    JSON_DEPTH_MAX = 256,      /* 64 must work, 512 must fail */
    JSON_VALUES_MAX = 4 << 20, /* a million ids of a long prompt must work */
    JSON_MEMORY_MIN =
        64 << 20, /* a small body of tiny values may take more than 16 times its size, up to this */
    REQUEST_SLACK = 64 << 10, /* of a request's arena, beside what grows with the prompt */
    RING_MIN = 64, /* outputs: a client may lag so many tokens before its sequence waits */
    RING_PER_CHOICE = 16,
};

/* One generation request while it is being made. */
struct draft {
    const struct api_model *model;
    enum api_route route;
    const json_t *body;
    const struct open_message *message; /* NULL: HTTP */
    const struct api_client *client;
    struct params params;
    struct messages messages;
    struct prompts prompts; /* of chat too: one list */
    struct api_fault *fault;
    int64_t opened_ns; /* when a text thread took it up */
};

static bool no_memory(struct api_fault *fault)
{
    api_submit_fault(STATUS_NOMEM, NULL, API_CHAT, 1, fault);
    return false;
}

static bool parse_body(struct slice text, json_t **out, struct api_fault *fault)
{
    struct json_limits limits = {.depth_max = JSON_DEPTH_MAX,
                                 .values_max = JSON_VALUES_MAX,
                                 .memory_max = 16 * (uint64_t)text.len};
    struct error err = {0};

    if (limits.memory_max < JSON_MEMORY_MIN) limits.memory_max = JSON_MEMORY_MIN;
    enum status st = json_guard_parse(text, &limits, out, &err);

    if (st == STATUS_NOMEM) return no_memory(fault);
    if (st)
        return api_refuse(fault, 400, "invalid_json", NULL, "The body is not a JSON object: %s",
                          err.message);
    if (json_is_object(*out)) return true;
    return api_refuse(fault, 400, "invalid_json", NULL, "The body must be a JSON object; it is %s.",
                      params_type_name(*out));
}

bool open_state(enum api_state state, enum api_route route, struct api_fault *fault)
{
    if (state == API_LOADING)
        return api_refuse(fault, 503, "model_loading", NULL, "The model is still loading.");
    if (state == API_DRAINING && (route == API_CHAT || route == API_COMPLETIONS))
        return api_refuse(fault, 503, "server_draining", NULL,
                          "The server is shutting down and takes no new requests.");
    return true;
}

/* --- prompts --- */

static bool encode_chat(struct draft *d)
{
    d->prompts.lists = calloc(1, sizeof *d->prompts.lists);
    if (!d->prompts.lists) return no_memory(d->fault);
    d->prompts.count = 1;
    if (!messages_encode(d->model, &d->messages, d->prompts.lists, d->fault)) return false;
    return d->prompts.lists->count ||
           api_refuse(d->fault, 400, "invalid_value", "messages",
                      "The conversation gives an empty prompt with this model's template.");
}

static uint64_t text_bytes(const json_t *value)
{
    const json_t *item;
    uint64_t bytes = 0;
    size_t i;

    if (json_is_string(value)) return json_string_length(value);
    json_array_foreach(value, i, item)
    {
        const json_t *part = json_object_get(item, "text");

        bytes += json_string_length(part ? part : item);
    }
    return bytes;
}

/* What can never fit is not tokenised: a text thread would be held for seconds. The model's name is looked at first, as
 * 404 comes before the context. */
static bool check_text_size(struct draft *d)
{
    const json_t *prompt = params_field(d->body, "prompt"), *item;
    uint64_t largest = 0;
    size_t i;

    if (d->params.truncate_prompt_tokens > 0) return true;
    json_array_foreach(d->messages.list, i, item) largest +=
        text_bytes(json_object_get(item, "content"));
    if (d->route == API_COMPLETIONS && json_is_string(prompt)) largest = json_string_length(prompt);
    if (d->route == API_COMPLETIONS)
        json_array_foreach(prompt, i, item) if (json_string_length(item) > largest) largest =
            json_string_length(item);
    struct api_fault fault;

    if (params_text_fits(d->model, largest, d->route == API_CHAT ? "messages" : "prompt", &fault))
        return true;
    if (params_model(d->model, d->body, d->fault)) *d->fault = fault;
    return false;
}

/* Keeps the last truncate_prompt_tokens of each prompt; of a text that was cut an echo shows what was kept, as of ids. */
static void truncate_prompts(struct draft *d)
{
    int64_t keep = d->params.truncate_prompt_tokens;

    for (uint32_t p = 0; keep > 0 && p < d->prompts.count; p++) {
        bool cut = token_list_keep_last(&d->prompts.lists[p], (uint64_t)keep);

        if (cut && d->prompts.texts) d->prompts.texts[p] = NULL;
    }
}

static bool check_counts(struct draft *d)
{
    uint64_t sequences = (uint64_t)d->prompts.count * (uint64_t)d->params.best_of;

    if (sequences <= d->model->sequences_max) return true;
    const char *name = d->params.best_of > 1 ? "n" : "prompt";

    return api_refuse(
        d->fault, 400, "invalid_value", name,
        "%s asks for too much: the number of prompts times best_of may be at most %u; "
        "here it is %" PRIu64 ".",
        name, d->model->sequences_max, sequences);
}

/* --- the context: section 18.2 --- */

static size_t longest_prompt(const struct draft *d)
{
    size_t longest = 0;

    for (uint32_t p = 0; p < d->prompts.count; p++)
        if (d->prompts.lists[p].count > longest) longest = d->prompts.lists[p].count;
    return longest;
}

static bool check_context(struct draft *d)
{
    const uint64_t context = d->model->context_tokens, longest = longest_prompt(d);
    struct params *p = &d->params;
    bool scores_only = p->max_tokens == 0;
    uint32_t allowed = d->client->limits.prompt_tokens;

    if (allowed && longest > allowed)
        return api_refuse(d->fault, 400, "context_length_exceeded",
                          d->route == API_CHAT ? "messages" : "prompt",
                          "A prompt may have at most %u token%s on this server; yours has %" PRIu64
                          ". Please shorten it.",
                          allowed, plural(allowed), longest);
    if (longest > context || (longest == context && !scores_only))
        return api_refuse(d->fault, 400, "context_length_exceeded",
                          d->route == API_CHAT ? "messages" : "prompt",
                          "This model's maximum context length is %" PRIu64
                          " tokens. However, your prompt has %" PRIu64
                          " token%s, which leaves no room for an answer. Please shorten it.",
                          context, longest, plural(longest));
    if (p->max_tokens < 0) {
        uint64_t left = context - longest;

        p->max_tokens = d->route == API_COMPLETIONS && left > 16 ? 16 : (int64_t)left;
    } else if ((uint64_t)p->max_tokens > context - longest) {
        return api_refuse(d->fault, 400, "context_length_exceeded", p->max_tokens_name,
                          "This model's maximum context length is %" PRIu64
                          " tokens. However, you asked for %" PRIu64 " tokens (%" PRIu64
                          " in the prompt, %" PRId64 " in the answer). Please reduce either.",
                          context, longest + (uint64_t)p->max_tokens, longest, p->max_tokens);
    }
    if (p->min_tokens > p->max_tokens)
        return api_refuse(d->fault, 400, "invalid_value", "min_tokens",
                          "min_tokens must be at most max_tokens (%" PRId64 ").", p->max_tokens);
    return true;
}

/* --- the request --- */

static void make_id(enum api_route route, char out[64])
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        uint64_t now = (uint64_t)clock_mono_ns();

        memcpy(bytes, &now, sizeof now);
    }
    int at = snprintf(out, 64, "%s", route == API_CHAT ? "chatcmpl-" : "cmpl-");

    for (size_t i = 0; i < sizeof bytes; i++)
        at += snprintf(out + at, 64 - (size_t)at, "%02x", bytes[i]);
}

static uint64_t random_seed(void)
{
    uint64_t seed = (uint64_t)clock_mono_ns();

    (void)!getrandom(&seed, sizeof seed, 0);
    return seed;
}

/* Bytes that the request's arena will hold. */
static uint64_t request_bytes(const struct draft *d)
{
    uint64_t tokens = 0, sequences = d->prompts.count * (uint64_t)d->params.best_of;
    bool scores = d->params.echo && d->params.logprobs;
    uint64_t per_token = sizeof(int32_t);

    for (uint32_t p = 0; p < d->prompts.count; p++)
        tokens += d->prompts.lists[p].count;
    if (scores)
        per_token += sizeof(struct step_output) +
                     (uint64_t)d->params.top_logprobs * sizeof(struct top_logprob);
    return REQUEST_SLACK + tokens * per_token + d->prompts.count * 256 + sequences * 256 +
           json_object_size(d->params.logit_bias) * sizeof(struct step_bias) * 2;
}

static bool fill_prompts(struct request *r, const struct draft *d)
{
    struct request_prompt *prompts = arena_alloc(&r->arena, d->prompts.count * sizeof *prompts);

    if (!prompts) return false;
    for (uint32_t p = 0; p < d->prompts.count; p++) {
        const struct token_list *list = &d->prompts.lists[p];
        int32_t *ids = arena_alloc(&r->arena, list->count * sizeof *ids);

        if (!ids) return false;
        memcpy(ids, list->ids, list->count * sizeof *ids);
        prompts[p] = (struct request_prompt){ids, (uint32_t)list->count};
        r->times.prompt_tokens += (uint32_t)list->count;
    }
    r->prompts = prompts;
    r->prompt_count = d->prompts.count;
    return true;
}

static bool fill_scores(struct request *r, const struct draft *d)
{
    uint32_t tops = (uint32_t)d->params.top_logprobs;

    if (!d->params.echo || !d->params.logprobs) return true;
    r->prompt_scores = arena_alloc(&r->arena, r->prompt_count * sizeof *r->prompt_scores);
    for (uint32_t p = 0; r->prompt_scores && p < r->prompt_count; p++) {
        struct prompt_scores *scores = &r->prompt_scores[p];
        uint32_t count = r->prompts[p].count;

        scores->outputs = arena_alloc(&r->arena, count * sizeof *scores->outputs);
        scores->tops = arena_alloc(&r->arena, ((size_t)count * tops + 1) * sizeof *scores->tops);
        if (!scores->outputs || !scores->tops) return false;
    }
    return r->prompt_scores != NULL;
}

static bool fill_biases(struct request *r, const struct draft *d)
{
    json_t *map = (json_t *)(uintptr_t)d->params.logit_bias, *value;
    const char *key;
    uint32_t count = 0;

    if (!map) return true;
    struct step_bias *biases = arena_alloc(&r->arena, (json_object_size(map) + 1) * sizeof *biases);

    if (!biases) return false;
    json_object_foreach(map, key, value) biases[count++] =
        (struct step_bias){(int32_t)strtol(key, NULL, 10), (float)json_number_value(value)};
    r->sampling.biases = biases;
    r->sampling.bias_count = count;
    return true;
}

static bool holds(const int32_t *ids, uint32_t count, int32_t id)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

/* End-of-sequence ids (unless ignore_eos) and stop_token_ids, each once. */
static bool fill_stop_ids(struct request *r, const struct draft *d)
{
    uint32_t eos_count, count = 0;
    const int32_t *eos = tokenizer_eos_list(d->model->tokenizer, &eos_count);
    const json_t *item;
    size_t i, listed = json_array_size(d->params.stop_token_ids);
    int32_t *ids = arena_alloc(&r->arena, (eos_count + listed + 1) * sizeof *ids);

    if (!ids) return false;
    for (uint32_t e = 0; !d->params.ignore_eos && e < eos_count; e++)
        ids[count++] = eos[e];
    json_array_foreach(d->params.stop_token_ids, i, item)
    {
        int64_t id = 0;

        params_integral(item, &id);
        if (!holds(ids, count, (int32_t)id)) ids[count++] = (int32_t)id;
    }
    r->stop_ids = ids;
    r->stop_id_count = count;
    return true;
}

static bool check_stop_ids(const struct draft *d, const struct request *r)
{
    if (r->stop_id_count <= d->model->stop_ids_max) return true;
    return api_refuse(d->fault, 400, "invalid_value", "stop_token_ids",
                      "stop_token_ids and the model's own end tokens may be at most %u ids "
                      "together; here are %u.",
                      d->model->stop_ids_max, r->stop_id_count);
}

static bool fill_request(struct request *r, struct draft *d)
{
    const struct params *p = &d->params;

    make_id(d->route, r->id);
    r->best_of = (uint32_t)p->best_of;
    r->sampling = (struct request_sampling){
        .temperature = (float)p->temperature,
        /* 0 keeps the likeliest token only, as any tiny share does; steps take shares above 0 */
        .top_p = p->top_p < FLT_MIN ? FLT_MIN : (float)p->top_p,
        .min_p = (float)p->min_p,
        .top_k = p->top_k > INT32_MAX ? INT32_MAX : (int32_t)p->top_k,
        .repetition_penalty = (float)p->repetition_penalty,
        .frequency_penalty = (float)p->frequency_penalty,
        .presence_penalty = (float)p->presence_penalty,
        .seed = p->seed_given ? (uint64_t)p->seed : random_seed(),
    };
    r->max_tokens = (uint32_t)p->max_tokens;
    r->min_tokens = (uint32_t)p->min_tokens;
    r->want_logprobs = p->logprobs || p->best_of > p->n;
    r->top_logprobs = (uint32_t)p->top_logprobs;
    r->tenant = d->client->tenant;
    r->priority = (int32_t)-p->priority; /* the engine's: larger first */
    r->pin_s = (uint32_t)p->prefix_ttl;
    r->pin_tokens = p->prefix_tokens < UINT32_MAX ? (uint32_t)p->prefix_tokens : UINT32_MAX;
    r->times.received_ns = d->client->received_ns;
    if (d->message) {
        r->priority = d->message->priority;
        r->cache_salt = d->message->cache_salt;
        if (d->message->timeout_ns) r->deadline_ns = r->times.received_ns + d->message->timeout_ns;
    }
    if (!fill_prompts(r, d) || !fill_scores(r, d) || !fill_biases(r, d) || !fill_stop_ids(r, d))
        return no_memory(d->fault);
    if (!check_stop_ids(d, r)) return false;
    uint32_t ring = RING_PER_CHOICE * request_choices(r);

    r->ring = output_ring_create(ring < RING_MIN ? RING_MIN : ring, r->top_logprobs);
    return r->ring || no_memory(d->fault);
}

static bool fill_echoes(struct api_stream *s, const struct draft *d)
{
    for (uint32_t p = 0; d->params.echo && p < d->prompts.count; p++) {
        struct echo_text *echo = &s->echoes[p];
        const json_t *text = d->prompts.texts[p];
        const struct token_list *ids = &d->prompts.lists[p];

        echo->from_ids = !text;
        if (text)
            buf_append(&echo->text, json_string_value(text), json_string_length(text));
        else if (tokenizer_decode(d->model->tokenizer, ids->ids, ids->count, true, &echo->text))
            return false;
        if (buf_status(&echo->text)) return false;
    }
    return true;
}

static bool make_answer(struct draft *d, struct api_answer *out)
{
    bool continues = d->route == API_COMPLETIONS || d->messages.continue_final;

    out->request = request_create(request_bytes(d));
    if (!out->request) return no_memory(d->fault);
    if (!fill_request(out->request, d)) return false;
    out->stream = stream_create(d->model, d->route, &d->params, out->request, continues);
    if (out->stream && d->message) {
        out->stream->writer = &stream_proto_writer;
        out->stream->message_id = d->client->message_id;
        snprintf(out->stream->request_id, sizeof out->stream->request_id, "%s",
                 d->client->request_id ? d->client->request_id : "");
    }
    if (!out->stream || !fill_echoes(out->stream, d) || stream_start(out->stream))
        return no_memory(d->fault);
    out->request->times.tokenized_ns = clock_mono_ns();
    out->kind = API_GENERATE;
    return true;
}

static bool read_prompts(struct draft *d)
{
    if (d->route == API_CHAT) return encode_chat(d);
    if (d->message && d->message->list_count)
        return prompts_take(d->model, d->message->lists, d->message->list_count, &d->prompts,
                            d->fault);
    return prompts_read(d->model, d->body, d->params.add_special, &d->prompts, d->fault);
}

static bool generate(struct draft *d, struct api_answer *out)
{
    bool chat = d->route == API_CHAT;

    if (chat && !messages_read(d->body, false, &d->messages, d->fault)) return false;
    if (!params_read(d->model, d->route, d->body, &d->params, d->fault)) return false;
    if (!params_limits(&d->client->limits, &d->params, d->fault)) return false;
    if (!check_text_size(d)) return false;
    int64_t parsed_ns = clock_mono_ns();
    if (!read_prompts(d)) return false;
    if (!check_counts(d) || !params_model(d->model, d->body, d->fault)) return false;
    truncate_prompts(d);
    if (!check_context(d) || !make_answer(d, out)) return false;
    out->request->times.opened_ns = d->opened_ns;
    out->request->times.parsed_ns = parsed_ns;
    out->request->times.rendered_ns = d->messages.rendered_ns;
    return true;
}

void open_generation(const struct api_model *model, enum api_route route, const json_t *body,
                     const struct open_message *message, const struct api_client *client,
                     int64_t opened_ns, struct api_answer *out)
{
    struct draft d = {.model = model,
                      .route = route,
                      .body = body,
                      .message = message,
                      .client = client,
                      .fault = &out->fault,
                      .opened_ns = opened_ns};

    if (!generate(&d, out)) {
        api_stream_destroy(out->stream);
        if (out->request) request_unref(out->request);
        out->stream = NULL;
        out->request = NULL;
    }
    messages_fini(&d.messages);
    prompts_fini(&d.prompts);
}

void api_open(const struct api_model *model, enum api_route route, enum api_state state,
              struct slice body, const struct api_client *client, struct api_answer *out)
{
    int64_t opened_ns = clock_mono_ns();
    json_t *tree = NULL;

    *out = (struct api_answer){.kind = API_FAULT};
    buf_init(&out->body, 0);
    if (parse_body(body, &tree, &out->fault) && open_state(state, route, &out->fault)) {
        if (route == API_CHAT || route == API_COMPLETIONS)
            open_generation(model, route, tree, NULL, client, opened_ns, out);
        else if (route == API_TOKENIZE ? tokenize_answer(model, tree, &out->body, &out->fault)
                                       : detokenize_answer(model, tree, &out->body, &out->fault))
            out->kind = API_BODY;
    }
    json_decref(tree);
}
