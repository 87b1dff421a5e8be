/* forecast.h - when a prompt that came now would have its first token.
 *
 * Two queues stand before it: for rows (prompt tokens ahead of it and its own, so many a step as decoding sequences leave room for, at the
 * step times of cost_model.h) and for slots (sequences ahead of it beyond the free slots, at the pace at which slots have come free). The
 * longer one decides; the step under way comes first. Of its prompt nothing is taken to be cached. Pure numbers, any thread. */
#pragma once

#include "sched/cost_model.h"

/* A picture of the scheduler, as of its last step. */
struct forecast {
    bool ready;                      /* enough steps were seen */
    double step_ns, row_ns, pair_ns; /* cost_model.h */
    uint32_t decodes;                /* rows that every step carries */
    uint64_t decode_pairs;           /* and their pairs */
    uint64_t rows_under_way;         /* prompt tokens left of sequences that run */
    uint32_t free_slots;
    uint32_t rows_max;   /* of a step */
    int64_t max_step_ns; /* 0: no bound */
};

/* ahead: what waits before it, in sequences and prompt tokens. starts_per_s: pace of the waiting list, 0: not known. ns from now. */
int64_t forecast_first_token(const struct forecast *f, uint32_t seqs_ahead, uint64_t tokens_ahead,
                             uint32_t prompt_tokens, double starts_per_s);
