/* client.h - a C client of inferd over ZeroMQ (proto/inferd.proto): generate, cancel, tokenize, health, load.
 *
 *     struct inferd_client_options o = {.endpoint = "tcp://127.0.0.1:5555"};
 *     struct inferd_client *client;
 *     struct inferd_error error;
 *     if (inferd_client_open(&o, &client, &error)) ...
 *
 *     struct inferd_generate g;
 *     inferd_generate_init(&g);
 *     g.prompt = "Once upon a time";
 *     g.stream = true;
 *     inferd_client_generate(client, &g, on_event, NULL, 60000, &error);    (blocks; on_event prints)
 *
 * Many requests at once: inferd_client_submit them, then call inferd_client_poll until they have ended.
 *
 * Thread: a client belongs to one thread at a time; several clients are independent. Memory: what an event points to is
 * the library's and valid until on_event returns. Errors: functions return 0 or an enum inferd_status; *error (may be
 * NULL) has the rest. Link with -linferd-client -lzmq -lprotobuf-c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum inferd_status {
    INFERD_OK = 0,
    INFERD_INVALID, /* an argument, or the server found the request wrong (error->http_status 4xx) */
    INFERD_REFUSED, /* the server is full, loading or draining: 429, 503; error->retry_after_s */
    INFERD_TIMEOUT, /* nothing came in time; the request has been cancelled */
    INFERD_LOST, /* the connection ended, or its keys do not fit, as the message tells: open requests are over; the next one has another connection */
    INFERD_STOPPED,  /* on_event asked to stop */
    INFERD_FAILED,   /* a fault of the server's (500), or of the system here */
    INFERD_PROTOCOL, /* the server's message could not be read */
};
struct inferd_error {
    uint32_t http_status;   /* as in the Error message; 0: the fault is on this side */
    uint32_t retry_after_s; /* 0: not told */
    char code[64];          /* "rate_limit_exceeded" */
    char param[96];         /* the field at fault, or "" */
    char message[512];      /* a sentence */
};

struct inferd_client; /* opaque */

struct inferd_client_options {
    const char *endpoint; /* "tcp://host:port" or "ipc:///path" */
    const char *api_key;  /* NULL: none */
    const char
        *server_key; /* CURVE public key of the server, 40 characters of Z85; NULL: in the clear */
    const char *secret_key; /* CURVE secret key of this client; NULL: a fresh pair */
};
/* Connects in the background; a server that is not there is noticed by time limits. Strings are copied. */
int inferd_client_open(const struct inferd_client_options *options, struct inferd_client **out,
                       struct inferd_error *error);
/* Drops open requests (the server cancels them) without further events. Takes NULL. */
void inferd_client_close(struct inferd_client *client);

/* --- generate --- */

#define INFERD_UNSET INT64_MIN /* of the integers below; of the reals NAN: the server's default */

struct inferd_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t content_len; /* 0: up to its NUL */
};
struct inferd_bias {
    int32_t token;
    double bias;
};
/* Fields are those of inferd.v1.Generate, which tells their ranges. Everything is borrowed until the call returns. */
struct inferd_generate {
    const char *prompt; /* one of prompt, ids, messages */
    size_t prompt_len;  /* 0: up to its NUL */
    const int32_t *ids;
    size_t id_count;
    const struct inferd_message *messages;
    size_t message_count;
    const char *model; /* NULL: the served one */

    int64_t max_tokens, min_tokens, n, best_of, top_k, seed, top_logprobs, truncate_prompt_tokens,
        prefix_ttl, prefix_tokens;
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    const struct inferd_bias *biases;
    size_t bias_count;
    const char *const *stops; /* texts */
    size_t stop_count;
    const int32_t *stop_ids;
    size_t stop_id_count;
    bool include_stop, ignore_eos, keep_special_tokens, stream, echo, logprobs, return_token_ids,
        return_timings, continue_final_message;
    const char *chat_template_kwargs; /* JSON object; NULL: none */
    int32_t priority;
    double timeout_s;       /* 0: none */
    const char *cache_salt; /* NULL: none */
    const char *request_id; /* for the server's log; NULL: a fresh one */
};
void inferd_generate_init(struct inferd_generate *generate);

enum inferd_event_kind { INFERD_STARTED, INFERD_CHUNK, INFERD_DONE, INFERD_ERROR };
enum inferd_finish { INFERD_NOT_FINISHED, INFERD_STOP, INFERD_LENGTH };

struct inferd_token {
    int32_t id;
    const char *bytes;
    size_t byte_count;
    bool scored; /* false: the first token of an echoed prompt, whose logprob means nothing */
    float logprob;
    const struct inferd_top *tops; /* [top_count] likeliest first */
    size_t top_count;
};
struct inferd_top {
    int32_t id;
    const char *bytes;
    size_t byte_count;
    float logprob;
};

struct inferd_event {
    enum inferd_event_kind kind;
    uint64_t id; /* of the request */
    /* INFERD_STARTED */
    const char *completion_id, *request_id, *model;
    /* INFERD_CHUNK */
    uint32_t index;   /* of the choice */
    const char *text; /* UTF-8, [text_len], not NUL-terminated; never NULL */
    size_t text_len;
    const int32_t *token_ids; /* [token_id_count] */
    size_t token_id_count;
    const struct inferd_token *tokens; /* [token_count] with logprobs */
    size_t token_count;
    enum inferd_finish finish;
    /* INFERD_DONE: the last event */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    double queue_us, prefill_us, decode_us, total_us; /* with return_timings */
    /* INFERD_ERROR: the last event */
    const struct inferd_error *error;
    int status; /* enum inferd_status of it */
};
/* Return 0 to go on; anything else cancels the request, which then has no further events. It may submit and cancel, but
 * neither poll nor close. */
typedef int inferd_on_event(void *ctx, const struct inferd_event *event);

/* Sends the request and returns at once; events come in inferd_client_poll. *id (may be NULL) names it. */
int inferd_client_submit(struct inferd_client *client, const struct inferd_generate *generate,
                         inferd_on_event *on_event, void *ctx, uint64_t *id,
                         struct inferd_error *error);
/* Delivers the events that have come, after waiting up to timeout_ms for the first (-1: no limit). INFERD_OK, or
 * INFERD_TIMEOUT when nothing came, INFERD_PROTOCOL. */
int inferd_client_poll(struct inferd_client *client, int timeout_ms);
uint32_t
inferd_client_open_count(const struct inferd_client *client); /* requests without a last event */
/* Becomes readable when inferd_client_poll may have something: for an event loop. Edge-triggered, as libzmq's. */
int inferd_client_fd(const struct inferd_client *client);
/* Ends a request without waiting; it has no further events. An unknown id is no fault. */
void inferd_client_cancel(struct inferd_client *client, uint64_t id);

/* Submits and polls until the request has ended. timeout_ms bounds the whole (-1: no limit). */
int inferd_client_generate(struct inferd_client *client, const struct inferd_generate *generate,
                           inferd_on_event *on_event, void *ctx, int timeout_ms,
                           struct inferd_error *error);

/* --- questions with one answer; events of open requests are delivered meanwhile --- */

enum inferd_health {
    INFERD_HEALTH_UNKNOWN,
    INFERD_LOADING,
    INFERD_READY,
    INFERD_DRAINING,
    INFERD_DEAD
};
int inferd_client_health(struct inferd_client *client, int timeout_ms, enum inferd_health *out,
                         struct inferd_error *error);

struct inferd_load {
    uint32_t seqs_running, seqs_waiting, seqs_blocked, kv_blocks_total, kv_blocks_used,
        requests_open;
    uint64_t prompt_tokens, generation_tokens, cached_tokens, requests_finished, requests_rejected,
        preemptions, steps;
};
int inferd_client_load(struct inferd_client *client, int timeout_ms, struct inferd_load *out,
                       struct inferd_error *error);

struct inferd_model {
    char name[256];
    uint32_t context_tokens, vocab_size;
    char fingerprint[64];
};
int inferd_client_model(struct inferd_client *client, int timeout_ms, struct inferd_model *out,
                        struct inferd_error *error);

/* *ids: malloc'ed [*count], the caller frees it. len 0: up to the NUL. */
int inferd_client_tokenize(struct inferd_client *client, const char *text, size_t len,
                           int timeout_ms, int32_t **ids, size_t *count,
                           struct inferd_error *error);
/* The ids that this generation's prompt or messages would have (with its model, truncate_prompt_tokens, continue_final_message and
 * chat_template_kwargs; what is not of its prompt plays no part). Of one that has `ids` already: INFERD_INVALID. */
int inferd_client_tokenize_as(struct inferd_client *client, const struct inferd_generate *generate,
                              int timeout_ms, int32_t **ids, size_t *count,
                              struct inferd_error *error);
/* *text: malloc'ed with a NUL behind its *len bytes, the caller frees it. */
int inferd_client_detokenize(struct inferd_client *client, const int32_t *ids, size_t count,
                             int timeout_ms, char **text, size_t *len, struct inferd_error *error);

#ifdef __cplusplus
}
#endif
