/* api.h - bytes of an HTTP body to a struct request, and struct outputs back to bytes. The door of src/api.
 *
 * Pure: no sockets, no threads, no engine calls. api_open() reads, validates, renders and tokenises a body on a text
 * thread; the struct api_stream it gives then turns each output of the engine into the bytes of the answer (server-sent
 * events, or one JSON body), in the I/O thread that sends it. docs/api.md is the contract that this folder keeps.
 *
 *     body --api_open--> API_BODY   a whole answer (tokenize, detokenize)
 *                        API_FAULT  a refusal: status and error body
 *                        API_GENERATE  request + stream --engine--> outputs --api_stream_push--> bytes
 *
 * Thread: any; one thread at a time holds a stream. struct api_model is immutable and borrowed by all streams. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"
#include "base/status.h"
#include "engine/output.h"
#include "engine/request.h"

struct tokenizer;
struct chat;

/* What is served. Filled by cli/serve.c; everything is borrowed and must outlive all requests. */
struct api_model {
    const char *const *names; /* [name_count]: the id that answers carry, then its aliases */
    uint32_t name_count;      /* >= 1 */
    int64_t created;          /* unix seconds */
    const struct tokenizer *tokenizer;
    const struct chat *chat; /* never NULL; a model without a template gives a chat that refuses */
    uint32_t context_tokens; /* longest sequence */
    uint32_t vocab_size;     /* token ids of a client are 0..vocab_size-1 */
    uint32_t stop_ids_max;   /* end and stop ids of a request: device_limits.banned_max */
    uint32_t bias_max;       /* logit_bias entries of a request: device_limits.bias_max */
    uint32_t sequences_max;  /* prompts times best_of of a request (512) */
    const char
        *fingerprint;     /* system_fingerprint: changes with model, quantisation, sampling code */
    bool no_logits;       /* the null device: logprobs, echo and best_of above n are refused */
    bool request_metrics; /* operator's choice: every answer has vLLM's `metrics` */
    bool trust_content;   /* operator's choice: special tokens are read inside user text too */
    uint32_t token_bytes_max; /* the longest token, by api_model_prepare; 0: not known */
};

/* Fills what follows from the rest (token_bytes_max). O(vocabulary); once, before the first request. */
void api_model_prepare(struct api_model *model);

/* --- faults --- */

struct api_fault {
    unsigned http_status; /* 0: no fault */
    const char *type;     /* static */
    const char *code;     /* static, or NULL */
    char param[96];       /* "" is written as null */
    char message[512];
    uint32_t retry_after_s; /* 0: no Retry-After */
};

/* Fills *fault and returns false, so that `return api_refuse(...)` reads as one thing. param may be NULL. The type
 * follows from the status. Texts of the request in the message must be cut by the caller ("%.*s", 200 at most). */
bool api_refuse(struct api_fault *fault, unsigned http_status, const char *code, const char *param,
                const char *format, ...) __attribute__((format(printf, 5, 6)));
/* {"error":{...}}, the four members of section 4.1. */
void api_fault_body(const struct api_fault *fault, struct buf *out);

/* 404 model_not_found for a name that is none of the served ones. */
bool api_unknown_model(const struct api_model *model, struct slice name, struct api_fault *fault);

/* --- opening a request --- */

enum api_route { API_CHAT, API_COMPLETIONS, API_TOKENIZE, API_DETOKENIZE };
enum api_state { API_READY, API_LOADING, API_DRAINING };
enum api_kind { API_BODY, API_FAULT, API_GENERATE };

/* What the operator allows of a request, below what the contract does. 0: the contract's own limit. */
struct api_limits {
    uint32_t prompt_tokens; /* of one prompt */
    uint32_t choices;       /* n and best_of */
    uint32_t stop_strings;
    uint32_t biases; /* logit_bias entries */
};

struct api_client {
    uint64_t tenant;     /* hash of the API key, 0 without */
    int64_t received_ns; /* CLOCK_MONOTONIC: the whole request had been read */
    struct api_limits limits;
    uint64_t message_id;    /* api_proto_open: the Request's id, which each Response carries */
    const char *request_id; /* api_proto_open: for Started; borrowed during the call */
};

struct api_stream; /* opaque: what an answer needs to be made; one request */

struct api_answer {
    enum api_kind kind;
    struct buf body;        /* API_BODY: JSON of a 200; the taker ends it */
    struct api_fault fault; /* API_FAULT */
    struct request
        *request; /* API_GENERATE: one reference, the taker's; bell and frontend not set yet */
    struct api_stream *stream; /* API_GENERATE: the taker ends it with api_stream_destroy */
};

/* Reads `body` (borrowed during the call). model may be NULL while loading. Never fails otherwise than by API_FAULT.
 * Refusals come in the order of section 1.11: JSON, state, validation, model, context. */
void api_open(const struct api_model *model, enum api_route route, enum api_state state,
              struct slice body, const struct api_client *client, struct api_answer *out);

/* Faults that others find: engine_submit's status (STATUS_FULL, STATUS_INVALID, STATUS_CLOSED, ...) as a refusal. */
void api_submit_fault(enum status status, const struct error *err, enum api_route route,
                      uint32_t retry_after_s, struct api_fault *fault);

/* --- making the answer --- */

/* Whether the answer is a stream of server-sent events. */
bool api_stream_is_sse(const struct api_stream *stream);
/* Server-sent events: appends what comes before the first token (roles, echoed prompts without log probabilities). */
void api_stream_begin(struct api_stream *stream, struct buf *out);

/* A choice that stop text has ended: the caller tells the engine (engine_end_choice). */
struct api_ended {
    uint32_t choice, kept_tokens;
};
/* Takes one output in the order of the ring. True: *ended is filled. Text becomes bytes in api_stream_flush. */
bool api_stream_push(struct api_stream *stream, const struct output *output,
                     struct api_ended *ended);
/* Server-sent events: appends a chunk for each choice that has something new, and when all choices have ended the
 * finish, usage and [DONE] events. Nothing in whole mode. Call after a run of pushes; tokens of one run share a chunk. */
void api_stream_flush(struct api_stream *stream, struct buf *out);
/* All choices have ended in the engine, or the request has failed: no more pushes are needed. */
bool api_stream_done(const struct api_stream *stream);
/* The whole answer, once done. Returns its HTTP status; *fault is filled when that is not 200 (and out has its body). */
unsigned api_stream_answer(struct api_stream *stream, struct buf *out, struct api_fault *fault);
/* Ends a stream from our side (end of the drain time): events: one with the error, then [DONE]. */
void api_stream_fail(struct api_stream *stream, const struct api_fault *fault, struct buf *out);
/* For the log and the counters, final once done: "stop", "length", "error" of the first choice; sampled tokens kept. */
const char *api_stream_outcome(const struct api_stream *stream);
uint32_t api_stream_completion_tokens(const struct api_stream *stream);
uint32_t
api_stream_longest_choice(const struct api_stream *stream); /* of them, the most of one choice */
uint32_t api_stream_n(const struct api_stream *stream); /* choices that each prompt's answer has */
const char *
api_stream_error_code(const struct api_stream *stream); /* of outcome "error"; NULL without */
void api_stream_destroy(struct api_stream *stream);     /* takes NULL */

/* Appends the text of a prompt as the model sees it, special tokens and all. For logs. */
enum status api_prompt_text(const struct api_model *model, const struct request *request,
                            uint32_t prompt, struct buf *out);

/* --- ZeroMQ's messages: proto/inferd.proto --- */

enum api_message {
    API_MESSAGE_NONE, /* a Request of a kind that this version does not know */
    API_MESSAGE_GENERATE,
    API_MESSAGE_TOKENIZE,
    API_MESSAGE_DETOKENIZE,
    API_MESSAGE_CANCEL,
    API_MESSAGE_HEALTH,
    API_MESSAGE_MODEL_INFO,
    API_MESSAGE_LOAD_REPORT,
    API_MESSAGES
};
/* The outer fields of a Request; slices are borrowed from the message. */
struct api_head {
    enum api_message kind;
    uint64_t id;
    struct slice api_key, request_id; /* ptr NULL: absent */
    uint64_t cancel_id;               /* API_MESSAGE_CANCEL: which request */
};
/* Walks the outer fields alone: O(fields), nothing is copied. False: no Request (*out holds what was read before). */
bool api_proto_head(struct slice message, struct api_head *out);
/* As api_open, of a Request of the first three kinds; bodies and events are Responses, each as a field of a Batch, so that
 * they may be put one behind the other. The stream of such a request says at once that it has begun (api_stream_begin). */
void api_proto_open(const struct api_model *model, enum api_state state, struct slice message,
                    const struct api_client *client, struct api_answer *out);
/* Appends the Response that ends request `id`. */
void api_proto_error(uint64_t id, const struct api_fault *fault, struct buf *out);
void api_proto_cancel(uint64_t id, bool found, struct buf *out);
void api_proto_model(uint64_t id, const struct api_model *model, struct buf *out);
struct api_health {
    enum { API_HEALTH_LOADING = 1, API_HEALTH_READY, API_HEALTH_DRAINING, API_HEALTH_FAILED } state;
    const char *reason, *version; /* reason: NULL but for API_HEALTH_FAILED */
};
void api_proto_health(uint64_t id, const struct api_health *health, struct buf *out);
struct api_load {
    uint32_t seqs_running, seqs_waiting, seqs_blocked, kv_blocks_total, kv_blocks_used,
        requests_open;
    uint64_t prompt_tokens, generation_tokens, cached_tokens, requests_finished, requests_rejected,
        preemptions, steps;
};
void api_proto_load(uint64_t id, const struct api_load *load, struct buf *out);

/* --- other bodies --- */

void api_models_body(const struct api_model *model, struct buf *out);
/* One MODEL, or false when `name` is none of the served ones (*fault: 404 model_not_found). */
bool api_model_body(const struct api_model *model, struct slice name, struct buf *out,
                    struct api_fault *fault);
