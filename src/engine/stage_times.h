/* stage_times.h - where a request's time went: one struct that feeds the answer, the log, the histograms, traces.
 *
 * Times are CLOCK_MONOTONIC nanoseconds; 0: not reached. Each field has one writer, named; a reader that comes after
 * the writer's release (submit, output ring, end) sees it. */
#pragma once

#include <stdint.h>

struct stage_times {
    /* the frontend */
    int64_t received_ns; /* the whole request has been read */
    /* the text thread */
    int64_t opened_ns;    /* it has taken the request up */
    int64_t parsed_ns;    /* JSON parsed and validated */
    int64_t rendered_ns;  /* chat template rendered; 0: a completion */
    int64_t tokenized_ns; /* prompt tokenised */
    /* the engine */
    int64_t submitted_ns; /* in the queue */
    int64_t
        scheduled_ns; /* first prompt row in a step; stored whole: others look at it while it runs */
    int64_t first_token_ns; /* of any choice */
    int64_t last_token_ns;
    int64_t ended_ns;
    uint32_t prompt_tokens;     /* sum over the prompts, each once */
    uint32_t cached_tokens;     /* of them, from the prefix index */
    uint32_t completion_tokens; /* sampled tokens that count, over all choices */
    uint32_t prefill_chunks, decode_steps;
    uint64_t batch_rows_sum; /* rows of the steps it took part in: mean batch = sum / steps */
    uint32_t preemptions;
    const char *
        queued_for; /* static: what its first sequence waited for (sched/sequence.h); NULL: not scheduled */
    /* the I/O thread */
    int64_t
        detokenize_ns; /* time making text and JSON, summed; lies within the stages decode and deliver */
    int64_t stall_ns; /* time in which its socket could not take bytes; within the same */
};

/* The engine's counters are stored whole by their one writer, so that others may look at a request that still runs. */
#define STAGE_ADD(counter, more) __atomic_store_n(&(counter), (counter) + (more), __ATOMIC_RELAXED)
#define STAGE_LOOK(counter)      __atomic_load_n(&(counter), __ATOMIC_RELAXED)

/* The same as a ledger: spans one behind the other, so that their sum is the time from received_ns to `now`, whatever was reached. A
 * stage that was never reached took nothing, and what came after the last one reached is its own. */
enum request_stage {
    STAGE_ACCEPT,   /* until a text thread takes it up */
    STAGE_PARSE,    /* JSON read and checked */
    STAGE_TEMPLATE, /* chat template */
    STAGE_TOKENIZE,
    STAGE_SUBMIT,  /* checks, the queue's door */
    STAGE_QUEUE,   /* until its first row is in a step */
    STAGE_PREFILL, /* until the first token */
    STAGE_DECODE,  /* until the last */
    STAGE_DELIVER, /* until `now`: text, socket */
    STAGES
};
struct stage_ledger {
    int64_t ns[STAGES], total_ns;
};
struct stage_ledger stage_ledger(const struct stage_times *times, int64_t now_ns);
const char *stage_name(enum request_stage stage);
