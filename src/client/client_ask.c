/* client_ask.c - questions that have one answer: health, load, model, tokenize, detokenize. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_private.h"

struct answer {
    bool came;
    int status;
    struct inferd_error *error;
    Inferd__V1__Response__BodyCase wanted;
    int (*read)(void *out, const Inferd__V1__Response *response);
    void *out;
};

static void take(void *ctx, const Inferd__V1__Response *response)
{
    struct answer *a = ctx;

    a->came = true;
    if (response->body_case == INFERD__V1__RESPONSE__BODY_ERROR)
        a->status = client_error_of(response->error, a->error);
    else if (response->body_case == a->wanted)
        a->status = a->read(a->out, response);
    else
        a->status = client_fail(a->error, INFERD_PROTOCOL, "an answer of another kind");
}

static int ask(struct inferd_client *c, Inferd__V1__Request *request, int timeout_ms,
               struct answer *a)
{
    int64_t until = client_now_ms() + timeout_ms;
    uint64_t id;
    int status = client_send(c, request, NULL, NULL, &id, a->error);

    if (status) return status;
    while (!a->came) {
        int64_t left = timeout_ms < 0 ? -1 : until - client_now_ms();

        if (timeout_ms >= 0 && left <= 0)
            a->status = client_fail(a->error, INFERD_TIMEOUT, "no answer within %d ms", timeout_ms);
        else if (client_turn(c, (int)left, id, take, a) == INFERD_PROTOCOL)
            a->status =
                client_fail(a->error, INFERD_PROTOCOL, "the server sent what is no message");
        else if (!a->came && !client_is_open(c, id))
            a->status = client_fail(a->error, INFERD_LOST, "%s", c->why_lost);
        if (a->status) break;
    }
    client_forget(c, id);
    return a->status;
}

/* --- health, load, model --- */

static int read_health(void *out, const Inferd__V1__Response *r)
{
    *(enum inferd_health *)out = (enum inferd_health)r->health->state;
    return INFERD_OK;
}

int inferd_client_health(struct inferd_client *c, int timeout_ms, enum inferd_health *out,
                         struct inferd_error *error)
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    Inferd__V1__HealthQuery query = INFERD__V1__HEALTH_QUERY__INIT;
    struct answer a = {.error = error,
                       .wanted = INFERD__V1__RESPONSE__BODY_HEALTH,
                       .read = read_health,
                       .out = out};

    request.body_case = INFERD__V1__REQUEST__BODY_HEALTH;
    request.health = &query;
    return ask(c, &request, timeout_ms, &a);
}

static int read_load(void *out, const Inferd__V1__Response *r)
{
    const Inferd__V1__LoadReport *m = r->load_report;

    *(struct inferd_load *)out = (struct inferd_load){.seqs_running = m->seqs_running,
                                                      .seqs_waiting = m->seqs_waiting,
                                                      .seqs_blocked = m->seqs_blocked,
                                                      .kv_blocks_total = m->kv_blocks_total,
                                                      .kv_blocks_used = m->kv_blocks_used,
                                                      .requests_open = m->requests_open,
                                                      .prompt_tokens = m->prompt_tokens,
                                                      .generation_tokens = m->generation_tokens,
                                                      .cached_tokens = m->cached_tokens,
                                                      .requests_finished = m->requests_finished,
                                                      .requests_rejected = m->requests_rejected,
                                                      .preemptions = m->preemptions,
                                                      .steps = m->steps};
    return INFERD_OK;
}

int inferd_client_load(struct inferd_client *c, int timeout_ms, struct inferd_load *out,
                       struct inferd_error *error)
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    Inferd__V1__LoadReportQuery query = INFERD__V1__LOAD_REPORT_QUERY__INIT;
    struct answer a = {.error = error,
                       .wanted = INFERD__V1__RESPONSE__BODY_LOAD_REPORT,
                       .read = read_load,
                       .out = out};

    request.body_case = INFERD__V1__REQUEST__BODY_LOAD_REPORT;
    request.load_report = &query;
    return ask(c, &request, timeout_ms, &a);
}

static int read_model(void *out, const Inferd__V1__Response *r)
{
    const Inferd__V1__ModelInfo *m = r->model_info;
    struct inferd_model *model = out;

    *model =
        (struct inferd_model){.context_tokens = m->context_tokens, .vocab_size = m->vocab_size};
    snprintf(model->name, sizeof model->name, "%s", m->n_names ? m->names[0] : "");
    snprintf(model->fingerprint, sizeof model->fingerprint, "%s",
             m->fingerprint ? m->fingerprint : "");
    return INFERD_OK;
}

int inferd_client_model(struct inferd_client *c, int timeout_ms, struct inferd_model *out,
                        struct inferd_error *error)
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    Inferd__V1__ModelInfoQuery query = INFERD__V1__MODEL_INFO_QUERY__INIT;
    struct answer a = {.error = error,
                       .wanted = INFERD__V1__RESPONSE__BODY_MODEL_INFO,
                       .read = read_model,
                       .out = out};

    request.body_case = INFERD__V1__REQUEST__BODY_MODEL_INFO;
    request.model_info = &query;
    return ask(c, &request, timeout_ms, &a);
}

/* --- tokenize, detokenize --- */

struct ids_out {
    int32_t **ids;
    size_t *count;
};

static int read_ids(void *out, const Inferd__V1__Response *r)
{
    struct ids_out *o = out;
    size_t count = r->tokenize->n_ids;

    *o->ids = malloc((count + 1) * sizeof **o->ids);
    if (!*o->ids) return INFERD_FAILED;
    if (count) memcpy(*o->ids, r->tokenize->ids, count * sizeof **o->ids);
    *o->count = count;
    return INFERD_OK;
}

static int ask_ids(struct inferd_client *c, Inferd__V1__Tokenize *query, int timeout_ms,
                   int32_t **ids, size_t *count, struct inferd_error *error)
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    struct ids_out out = {ids, count};
    struct answer a = {.error = error,
                       .wanted = INFERD__V1__RESPONSE__BODY_TOKENIZE,
                       .read = read_ids,
                       .out = &out};

    request.body_case = INFERD__V1__REQUEST__BODY_TOKENIZE;
    request.tokenize = query;
    return ask(c, &request, timeout_ms, &a);
}

int inferd_client_tokenize(struct inferd_client *c, const char *text, size_t len, int timeout_ms,
                           int32_t **ids, size_t *count, struct inferd_error *error)
{
    Inferd__V1__Tokenize query = INFERD__V1__TOKENIZE__INIT;

    query.has_prompt = true;
    query.prompt = (ProtobufCBinaryData){len ? len : strlen(text), (uint8_t *)(uintptr_t)text};
    return ask_ids(c, &query, timeout_ms, ids, count, error);
}

int inferd_client_tokenize_as(struct inferd_client *c, const struct inferd_generate *generate,
                              int timeout_ms, int32_t **ids, size_t *count,
                              struct inferd_error *error)
{
    Inferd__V1__Tokenize query = INFERD__V1__TOKENIZE__INIT;
    Inferd__V1__Generate message;
    int st = client_message_of(generate, &message, error);

    if (st) return st;
    query.has_prompt = message.n_prompts > 0;
    if (query.has_prompt) query.prompt = message.prompts[0];
    query.messages = message.messages;
    query.n_messages = message.n_messages;
    query.model = message.model;
    query.has_truncate_prompt_tokens = message.has_truncate_prompt_tokens;
    query.truncate_prompt_tokens = message.truncate_prompt_tokens;
    query.has_continue_final_message = message.has_continue_final_message;
    query.continue_final_message = message.continue_final_message;
    query.has_chat_template_kwargs = message.has_chat_template_kwargs;
    query.chat_template_kwargs = message.chat_template_kwargs;
    st = message.n_prompt_ids
             ? client_fail(error, INFERD_INVALID, "ids are ids already: give a prompt or messages")
             : ask_ids(c, &query, timeout_ms, ids, count, error);
    client_message_fini(&message);
    return st;
}

struct text_out {
    char **text;
    size_t *len;
};

static int read_text(void *out, const Inferd__V1__Response *r)
{
    struct text_out *o = out;
    ProtobufCBinaryData text = r->detokenize->text;

    *o->text = malloc(text.len + 1);
    if (!*o->text) return INFERD_FAILED;
    if (text.len) memcpy(*o->text, text.data, text.len);
    (*o->text)[text.len] = 0;
    *o->len = text.len;
    return INFERD_OK;
}

int inferd_client_detokenize(struct inferd_client *c, const int32_t *ids, size_t count,
                             int timeout_ms, char **text, size_t *len, struct inferd_error *error)
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    Inferd__V1__Detokenize query = INFERD__V1__DETOKENIZE__INIT;
    struct text_out out = {text, len};
    struct answer a = {.error = error,
                       .wanted = INFERD__V1__RESPONSE__BODY_DETOKENIZE,
                       .read = read_text,
                       .out = &out};

    query.ids = (int32_t *)(uintptr_t)ids;
    query.n_ids = count;
    request.body_case = INFERD__V1__REQUEST__BODY_DETOKENIZE;
    request.detokenize = &query;
    return ask(c, &request, timeout_ms, &a);
}
