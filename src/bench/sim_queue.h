/* sim_queue.h - the bounds of the queue before a simulated scheduler: what engine/engine.c does with atomics at engine_submit, here in one
 * thread. Who would be late is refused first, then who finds no room; a queue that one client has filled has room for the others'
 * share still. tests/e2e/test_simulate.py lays both side by side. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sched/forecast.h"

enum { SIM_QUEUE_ACCOUNTS = 256 };
enum sim_verdict { SIM_TAKEN, SIM_FULL, SIM_LATE };

struct sim_queue {
    uint32_t seqs_max;
    uint64_t tokens_max;
    int64_t ttft_limit_ns; /* longest predicted time to a first token; 0: none */
    uint32_t seqs;         /* submitted and not started */
    uint64_t tokens;       /* of their prompts */
    uint32_t class_seqs[SEQ_CLASSES];
    uint64_t class_work[SEQ_CLASSES]; /* tokens to be computed */
    struct {
        uint32_t seqs;
        uint64_t tokens, work;
    } accounts[SIM_QUEUE_ACCOUNTS];
    uint32_t sharers; /* accounts that have something there */
    uint32_t starts;  /* since rate_since_ns */
    double starts_per_s;
    int64_t rate_since_ns;
    struct forecast_margin margin;
};

struct sim_entry { /* of the queue: what it knows of a sequence */
    uint32_t key;
    enum seq_class class;
    struct forecast_prompt prompt;
    uint64_t work; /* forecast.h; this and what follows: set by sim_queue_take */
    uint32_t kind;
    int64_t predicted_ns; /* -1: not known */
};

enum sim_verdict sim_queue_take(struct sim_queue *queue, const struct forecast *forecast,
                                struct sim_entry *entry);
/* The sequence has its first rows in a step. */
void sim_queue_leave(struct sim_queue *queue, const struct sim_entry *entry);
/* Its first token came so long after it was taken. */
void sim_queue_first_token(struct sim_queue *queue, const struct sim_entry *entry, int64_t took_ns);
/* Measures the pace of starts; called each turn. */
void sim_queue_pace(struct sim_queue *queue, int64_t now_ns, bool waiting);
