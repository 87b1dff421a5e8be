/* output.h - from the engine to the I/O thread that sends: a bounded ring per request and one bell per I/O thread.
 *
 * The ring holds ids and logprobs, no text. One producer (engine thread), one consumer (the request's I/O thread). When
 * it has no room for a choice's next token that choice is blocked: not scheduled, its KV kept. The engine never waits.
 * The bell: the engine lists requests with new outputs and writes the eventfd once per step; the I/O thread takes the list. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/step.h"

struct request;

enum output_kind {
    OUTPUT_TOKEN,         /* a sampled token of `choice` */
    OUTPUT_FINISHED,      /* the choice has ended, by `reason`; nothing of it follows */
    OUTPUT_PROMPT_SCORED, /* request->prompt_scores[choice / best_of] is complete */
    OUTPUT_ERROR,         /* the whole request has failed: `error`; nothing follows */
};
enum finish_reason {
    FINISH_NONE,
    FINISH_STOP_ID,   /* the last token sent is one of stop_ids */
    FINISH_LENGTH,    /* max_tokens or the end of the context */
    FINISH_ENDED,     /* engine_end_choice (stop text): the I/O thread knows the reason */
    FINISH_CANCELLED, /* engine_cancel, drain's end, or a stalled client */
};

struct output {
    enum output_kind kind;
    uint32_t choice;
    enum finish_reason reason;
    int32_t token;
    uint32_t index; /* 0-based place of the token in its choice */
    float logprob;
    uint32_t top_count;
    struct top_logprob tops[20]; /* top_count entries */
    const char *error;           /* static or in the request's arena */
    enum status status;
};

struct output_ring; /* opaque */
struct notify;
/* A ring for `capacity` outputs (rounded up to a power of two) with room for top_max entries each. NULL: no memory. Any capacity
 * above the number of scored prompts works; what does not fit waits. A few outputs per choice (16) keep a decoding sequence from
 * being blocked by a reader that is merely a step late. */
struct output_ring *output_ring_create(uint32_t capacity, uint32_t top_max);
void output_ring_destroy(struct output_ring *ring); /* takes NULL */
uint32_t output_ring_capacity(const struct output_ring *ring);
/* Engine: whom a pop wakes when the producer waits for room. Takes a reference of `wake`. */
void output_ring_attach(struct output_ring *ring, struct notify *wake);
/* Producer: it waits for room. The next pop after which half of the ring is free signals `wake`, once. */
void output_ring_want(struct output_ring *ring);
/* Producer. push is STATUS_FULL or OK; the free count is a lower bound. */
uint32_t output_ring_free(const struct output_ring *ring);
enum status output_ring_push(struct output_ring *ring, const struct output *output);
/* Consumer: will pop soon. Asks for what the producer has written, which lies in another processor's cache. */
void output_ring_fetch(const struct output_ring *ring);
/* Consumer. Copies the oldest into *out: STATUS_OK or STATUS_EMPTY. */
enum status output_ring_pop(struct output_ring *ring, struct output *out);

struct output_bell {
    int event_fd; /* non-blocking; owned by the I/O thread */
    _Atomic(struct request *) ready;
    bool rung;              /* engine thread: something was listed in this turn */
    _Atomic uint32_t users; /* requests that the engine has and may ring it for */
};
/* STATUS_IO when no eventfd is to be had. */
enum status output_bell_init(struct output_bell *bell);
/* Waits until the engine has let go of every request that it could ring this bell for: they have ended, or were cancelled, so it is a
 * step at most. An engine that hangs for 10 s is not waited for. */
void output_bell_fini(struct output_bell *bell);
/* Engine: lists the request (once, holding a reference to it until taken); output_bell_ring then wakes the I/O thread. */
void output_bell_list(struct output_bell *bell, struct request *request);
void output_bell_ring(struct output_bell *bell);
/* I/O thread: takes the whole list, newest first, or NULL; walk it with output_bell_next, which must be called before
 * anything of the request is read (it re-arms the listing) and drops nothing: the caller unrefs each. */
struct request *output_bell_take(struct output_bell *bell);
/* The one behind a request that output_bell_next has not been called for; NULL: it is the last. Asks the memory for it. */
struct request *output_bell_look(const struct request *request);
struct request *output_bell_next(struct request *request);
