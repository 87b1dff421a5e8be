/* request.h - what a client asked for, as the engine sees it: token ids and numbers, no text.
 *
 * Life: api/ makes it on a text thread (request_create, then fills it), the frontend submits it (engine_submit), the engine
 * runs it and writes outputs to its ring, the frontend reads them. Two references: the maker's and, from a successful
 * submit, the engine's; freed with the last. All memory is the request's own arena. After engine_submit every field up to the
 * marked line is read-only.
 *
 * One request has `prompt_count` prompts and `best_of` sequences for each: choice c = prompt * best_of + candidate, seed
 * of candidate i: sampling.seed + i (mod 2^64). It is admitted whole or not at all. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "device/step.h"
#include "engine/stage_times.h"

struct output_ring;
struct output_bell;

struct request_prompt {
    const int32_t *ids; /* [count], in the arena */
    uint32_t count;     /* >= 1 */
};

struct request_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    float repetition_penalty, frequency_penalty, presence_penalty;
    uint64_t seed; /* always set: api/ draws one where the client gave none */
    const struct step_bias *biases;
    uint32_t bias_count;
};

/* Scores of prompt tokens, for echo with logprobs: filled by the engine, read after OUTPUT_PROMPT_SCORED. */
struct prompt_scores {
    struct step_output
        *outputs; /* [prompt count]: entry i is token i given those before; entry 0 unused */
    struct top_logprob *tops; /* [prompt count][top_logprobs] */
};

struct request {
    char id[64]; /* "chatcmpl-...", for logs */
    struct arena arena;
    _Atomic uint32_t refs;

    uint32_t prompt_count;
    const struct request_prompt *prompts; /* [prompt_count] */
    uint32_t best_of;                     /* sequences per prompt */
    struct request_sampling sampling;
    uint32_t max_tokens; /* per choice; 0: only score the prompt */
    uint32_t min_tokens; /* ban end tokens until then */
    const int32_t *
        stop_ids; /* tokens that end a choice: end-of-sequence ids (unless ignore_eos) and stop_token_ids */
    uint32_t stop_id_count;
    bool want_logprobs;                  /* of sampled tokens */
    uint32_t top_logprobs;               /* 0..20 */
    struct prompt_scores *prompt_scores; /* [prompt_count], or NULL: prompt tokens are not scored */
    uint32_t pin_tokens,
        pin_s; /* the first tokens of each prompt stay cached so many seconds after it; 0: as any other */
    int32_t priority; /* larger first; 0 */
    uint64_t tenant;  /* hash of the API key: fairness and prefix salt */
    uint64_t
        cache_salt; /* hash of a salt of the client's own: prefixes are shared within it; 0: none */
    int64_t deadline_ns; /* CLOCK_MONOTONIC, 0: none */

    struct output_ring *
        ring; /* engine -> one I/O thread; made by request_create's caller via output_ring_create */
    struct output_bell *bell; /* whom to ring; borrowed, outlives the request */
    void *frontend;           /* the frontend's connection state; the engine never touches it */

    /* --- written after submit, each by the thread named --- */
    struct stage_times times;   /* see there */
    _Atomic uint32_t cancelled; /* any thread, by engine_cancel: the client has gone */
    _Atomic uint32_t
        stalled; /* engine thread: cut, its ring had no room for client_stall_ms; the bell rings too */
    _Atomic(struct request *) bell_next; /* output_bell's list */
    _Atomic uint32_t bell_queued;
    _Atomic(struct request *)
        attention_next; /* the engine's list of requests that were cancelled or had a choice ended */
    _Atomic uint32_t attention_queued;
    bool
        in_engine; /* engine thread: it has taken the request from its inbox and not let go of it */
    void *engine;  /* the engine's own state of it, freed with the request */
};

/* A zeroed request with one reference and an arena of at most `memory_max` bytes; NULL: no memory. */
struct request *request_create(uint64_t memory_max);
void request_ref(struct request *request);
void request_unref(struct request *request); /* frees the ring too */
static inline uint32_t request_choices(const struct request *r)
{
    return r->prompt_count * r->best_of;
}
