/* client_message.c - from the structs of client.h to the messages, and back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_private.h"

void inferd_generate_init(struct inferd_generate *g)
{
    *g = (struct inferd_generate){.max_tokens = INFERD_UNSET,
                                  .min_tokens = INFERD_UNSET,
                                  .n = INFERD_UNSET,
                                  .best_of = INFERD_UNSET,
                                  .top_k = INFERD_UNSET,
                                  .seed = INFERD_UNSET,
                                  .top_logprobs = INFERD_UNSET,
                                  .truncate_prompt_tokens = INFERD_UNSET,
                                  .prefix_ttl = INFERD_UNSET,
                                  .prefix_tokens = INFERD_UNSET,
                                  .temperature = NAN,
                                  .top_p = NAN,
                                  .min_p = NAN,
                                  .presence_penalty = NAN,
                                  .frequency_penalty = NAN,
                                  .repetition_penalty = NAN};
}

static ProtobufCBinaryData bytes_of(const char *text, size_t len)
{
    return (ProtobufCBinaryData){text && !len ? strlen(text) : len, (uint8_t *)(uintptr_t)text};
}

/* --- to Generate --- */

static bool set_prompt(const struct inferd_generate *g, Inferd__V1__Generate *m)
{
    if (g->prompt) {
        m->prompts = calloc(1, sizeof *m->prompts);
        if (!m->prompts) return false;
        m->prompts[0] = bytes_of(g->prompt, g->prompt_len);
        m->n_prompts = 1;
    }
    if (g->ids) {
        m->prompt_ids = calloc(1, sizeof *m->prompt_ids);
        if (!m->prompt_ids || !(m->prompt_ids[0] = calloc(1, sizeof **m->prompt_ids))) return false;
        inferd__v1__token_ids__init(m->prompt_ids[0]);
        m->prompt_ids[0]->ids = (int32_t *)(uintptr_t)g->ids;
        m->prompt_ids[0]->n_ids = g->id_count;
        m->n_prompt_ids = 1;
    }
    return true;
}

static bool set_messages(const struct inferd_generate *g, Inferd__V1__Generate *m)
{
    if (!g->message_count) return true;
    m->messages = calloc(g->message_count, sizeof *m->messages);
    for (size_t i = 0; m->messages && i < g->message_count; i++) {
        Inferd__V1__ChatMessage *turn = calloc(1, sizeof *turn);

        if (!turn) return false;
        inferd__v1__chat_message__init(turn);
        turn->role = (char *)(uintptr_t)g->messages[i].role;
        turn->has_content = g->messages[i].content != NULL;
        turn->content = bytes_of(g->messages[i].content, g->messages[i].content_len);
        m->messages[m->n_messages++] = turn;
    }
    return m->messages != NULL;
}

static bool set_biases(const struct inferd_generate *g, Inferd__V1__Generate *m)
{
    if (!g->bias_count) return true;
    m->logit_bias = calloc(g->bias_count, sizeof *m->logit_bias);
    for (size_t i = 0; m->logit_bias && i < g->bias_count; i++) {
        Inferd__V1__LogitBias *bias = calloc(1, sizeof *bias);

        if (!bias) return false;
        inferd__v1__logit_bias__init(bias);
        bias->has_token = bias->has_bias = true;
        bias->token = g->biases[i].token;
        bias->bias = g->biases[i].bias;
        m->logit_bias[m->n_logit_bias++] = bias;
    }
    return m->logit_bias != NULL;
}

static bool set_stops(const struct inferd_generate *g, Inferd__V1__Generate *m)
{
    m->stop_token_ids = (int32_t *)(uintptr_t)g->stop_ids;
    m->n_stop_token_ids = g->stop_id_count;
    if (!g->stop_count) return true;
    m->stop = calloc(g->stop_count, sizeof *m->stop);
    for (size_t i = 0; m->stop && i < g->stop_count; i++)
        m->stop[m->n_stop++] = bytes_of(g->stops[i], 0);
    return m->stop != NULL;
}

#define INTEGER(name)                        \
    m->has_##name = g->name != INFERD_UNSET; \
    m->name = m->has_##name ? g->name : 0
#define REAL(name)                   \
    m->has_##name = !isnan(g->name); \
    m->name = m->has_##name ? g->name : 0
#define FLAG(name)           \
    m->has_##name = g->name; \
    m->name = g->name
static void set_numbers(const struct inferd_generate *g, Inferd__V1__Generate *m)
{
    INTEGER(max_tokens);
    INTEGER(min_tokens);
    INTEGER(n);
    INTEGER(best_of);
    INTEGER(top_k);
    INTEGER(seed);
    INTEGER(top_logprobs);
    INTEGER(truncate_prompt_tokens);
    INTEGER(prefix_ttl);
    INTEGER(prefix_tokens);
    REAL(temperature);
    REAL(top_p);
    REAL(min_p);
    REAL(presence_penalty);
    REAL(frequency_penalty);
    REAL(repetition_penalty);
    FLAG(include_stop);
    FLAG(ignore_eos);
    FLAG(stream);
    FLAG(echo);
    FLAG(logprobs);
    FLAG(return_token_ids);
    FLAG(return_timings);
    FLAG(continue_final_message);
    m->has_skip_special_tokens = g->keep_special_tokens;
    m->skip_special_tokens = false;
    m->has_priority = g->priority != 0;
    m->priority = g->priority;
    m->has_timeout_s = g->timeout_s != 0;
    m->timeout_s = g->timeout_s;
}
#undef INTEGER
#undef REAL
#undef FLAG

int client_message_of(const struct inferd_generate *g, Inferd__V1__Generate *m,
                      struct inferd_error *error)
{
    inferd__v1__generate__init(m);
    if (!set_prompt(g, m) || !set_messages(g, m) || !set_biases(g, m) || !set_stops(g, m)) {
        client_message_fini(m);
        return client_fail(error, INFERD_FAILED, "no memory for the request");
    }
    set_numbers(g, m);
    m->model = (char *)(uintptr_t)g->model;
    m->has_chat_template_kwargs = g->chat_template_kwargs != NULL;
    m->chat_template_kwargs = bytes_of(g->chat_template_kwargs, 0);
    m->has_cache_salt = g->cache_salt != NULL;
    m->cache_salt = bytes_of(g->cache_salt, 0);
    return INFERD_OK;
}

void client_message_fini(Inferd__V1__Generate *m)
{
    if (m->prompt_ids) free(m->prompt_ids[0]);
    for (size_t i = 0; i < m->n_messages; i++)
        free(m->messages[i]);
    for (size_t i = 0; i < m->n_logit_bias; i++)
        free(m->logit_bias[i]);
    free(m->prompts);
    free(m->prompt_ids);
    free(m->messages);
    free(m->logit_bias);
    free(m->stop);
}

/* --- from Responses --- */

static void copy_text(char *to, size_t size, const char *text)
{
    snprintf(to, size, "%s", text ? text : "");
}

int client_error_of(const Inferd__V1__Error *m, struct inferd_error *error)
{
    struct inferd_error own;

    if (!error) error = &own;
    *error = (struct inferd_error){.http_status = m->status, .retry_after_s = m->retry_after_s};
    copy_text(error->code, sizeof error->code, m->code);
    copy_text(error->param, sizeof error->param, m->param);
    copy_text(error->message, sizeof error->message, m->message);
    if (m->status == 429 || m->status == 503) return INFERD_REFUSED;
    return m->status >= 500 ? INFERD_FAILED : INFERD_INVALID;
}

static void fill_tops(const Inferd__V1__TokenLogprob *from, struct inferd_top *to)
{
    for (size_t i = 0; i < from->n_top; i++)
        to[i] = (struct inferd_top){from->top[i]->id, (const char *)from->top[i]->token.data,
                                    from->top[i]->token.len, from->top[i]->logprob};
}

/* One block: the tokens, then all of their tops. */
static struct inferd_token *tokens_of(const Inferd__V1__Chunk *chunk)
{
    size_t tops = 0;

    for (size_t i = 0; i < chunk->n_logprobs; i++)
        tops += chunk->logprobs[i]->n_top;
    struct inferd_token *tokens =
        malloc(chunk->n_logprobs * sizeof *tokens + tops * sizeof(struct inferd_top) + 1);
    struct inferd_top *top = (struct inferd_top *)(tokens + (tokens ? chunk->n_logprobs : 0));

    for (size_t i = 0; tokens && i < chunk->n_logprobs; i++) {
        const Inferd__V1__TokenLogprob *from = chunk->logprobs[i];

        fill_tops(from, top);
        tokens[i] = (struct inferd_token){.id = from->id,
                                          .bytes = (const char *)from->token.data,
                                          .byte_count = from->token.len,
                                          .scored = from->has_logprob,
                                          .logprob = from->logprob,
                                          .tops = top,
                                          .top_count = from->n_top};
        top += from->n_top;
    }
    return tokens;
}

static int deliver_chunk(const Inferd__V1__Chunk *chunk, struct inferd_event *event,
                         inferd_on_event *on_event, void *ctx)
{
    struct inferd_token *tokens = chunk->n_logprobs ? tokens_of(chunk) : NULL;

    event->kind = INFERD_CHUNK;
    event->index = chunk->index;
    event->text = chunk->text.len ? (const char *)chunk->text.data : ""; /* never NULL */
    event->text_len = chunk->text.len;
    event->token_ids = chunk->token_ids;
    event->token_id_count = chunk->n_token_ids;
    event->tokens = tokens;
    event->token_count = tokens ? chunk->n_logprobs : 0;
    event->finish = (enum inferd_finish)chunk->finish_reason;
    int result = on_event(ctx, event);

    free(tokens);
    return result;
}

int client_deliver(const Inferd__V1__Response *r, inferd_on_event *on_event, void *ctx)
{
    struct inferd_event event = {.id = r->id};
    struct inferd_error error;

    switch (r->body_case) {
    case INFERD__V1__RESPONSE__BODY_STARTED:
        event.kind = INFERD_STARTED;
        event.completion_id = r->started->completion_id;
        event.request_id = r->started->x_request_id;
        event.model = r->started->model;
        break;
    case INFERD__V1__RESPONSE__BODY_CHUNK: return deliver_chunk(r->chunk, &event, on_event, ctx);
    case INFERD__V1__RESPONSE__BODY_DONE:
        event.kind = INFERD_DONE;
        if (r->done->usage) {
            event.prompt_tokens = r->done->usage->prompt_tokens;
            event.completion_tokens = r->done->usage->completion_tokens;
            event.cached_tokens = r->done->usage->cached_tokens;
        }
        if (r->done->timings) {
            event.queue_us = r->done->timings->queue_us;
            event.prefill_us = r->done->timings->prefill_us;
            event.decode_us = r->done->timings->decode_us;
            event.total_us = r->done->timings->total_us;
        }
        break;
    case INFERD__V1__RESPONSE__BODY_ERROR:
        event.kind = INFERD_ERROR;
        event.status = client_error_of(r->error, &error);
        event.error = &error;
        break;
    default: return 0; /* of a newer server */
    }
    return on_event(ctx, &event);
}
