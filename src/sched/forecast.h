/* forecast.h - when a prompt that came now would have its first token.
 *
 * Two queues stand before it: for rows (prompt tokens ahead of it and its own, so many a step as decoding sequences leave room for, at the
 * step times of cost_model.h) and for slots (sequences ahead of it beyond the free slots, at the pace at which slots have come free, or sooner where
 * enough of those that run will have ended by then, whatever they sample). The longer one decides; the step under way comes first. Of its prompt, what is cached now is taken to be cached still when it starts, unless what waits
 * could take the place of it meanwhile. Pure numbers, any thread. */
#pragma once

#include "sched/cost_model.h"
#include "sched/sequence.h"

enum { FORECAST_STEPS = 32 };

/* A picture of the scheduler, as of its last step. */
struct forecast {
    bool ready;                      /* enough steps were seen */
    double step_ns, row_ns, pair_ns; /* cost_model.h */
    uint32_t decodes;                /* rows that every step carries */
    uint64_t decode_pairs;           /* and their pairs */
    uint64_t rows_under_way;         /* prompt tokens left of sequences that run */
    uint64_t rows_of_floods;         /* of them, of tenants that let others pass (flood.c) */
    uint32_t free_slots;
    uint32_t rows_max;   /* of a step */
    int64_t max_step_ns; /* 0: no bound */
    bool by_class;       /* shorter answers go first (sched_options.class_age_ns) */
    uint64_t kv_tokens;  /* places of KV that are free, or hold what nobody uses */
    uint16_t ends
        [FORECAST_STEPS]; /* sequences whose slots are free after i + 1 more steps, though they sample all that they may */
};

/* That came now. */
struct forecast_prompt {
    uint64_t tokens;
    uint64_t cached; /* of them, in the prefix index now (sched_guess_cached); fewer */
};

/* Nothing is computed, as far as is known. */
static inline bool forecast_is_idle(const struct forecast *f)
{
    return f->decodes == 0 && f->rows_under_way == 0;
}

/* What waits, as one sees it that comes now. Where shorter answers go first (sched.h), a class has before it what waits of its own and of those
 * before it; and tenants take turns, so that of all this no more is ahead than its tenant's own, once for each of them. */
struct forecast_queue {
    uint32_t seqs[SEQ_CLASSES];   /* by enum seq_class */
    uint64_t tokens[SEQ_CLASSES]; /* of their prompts, to be computed (forecast_work) */
    uint32_t own_seqs;            /* of its tenant, waiting */
    uint64_t own_tokens;
    uint64_t prompt_tokens; /* all that wait, what is cached included */
    uint32_t sharers;       /* tenants that wait, itself one of them */
    double starts_per_s;    /* pace of the waiting list, 0: not known */
};
/* Those alike in how well they are predicted: by class, and whether most of what waits is their own tenant's. */
enum { FORECAST_KINDS = 2 * SEQ_CLASSES };
uint32_t forecast_kind(const struct forecast_queue *queue, enum seq_class class);
/* Tokens of the prompt that will have to be computed: what is cached counts while all that waits, and the prompt, would take no more than half of the
 * places of which what nobody uses could be put out, the longest unused first. */
uint64_t forecast_work(const struct forecast *f, const struct forecast_queue *queue,
                       const struct forecast_prompt *prompt);
/* When the first token of the prompt would come, ns from now; -1: not known yet. */
int64_t forecast_queued(const struct forecast *f, const struct forecast_queue *queue,
                        enum seq_class class, const struct forecast_prompt *prompt);

/* How far predictions are to be trusted: they are multiplied by a factor for each kind, which grows with every first token that
 * came too late though it was promised in time, and falls with those that came in time, until LATE_SHARE of those that were admitted near their
 * limit are late. Those far from it teach nothing. */
struct forecast_margin {
    double factor[FORECAST_KINDS];
};
void forecast_margin_init(struct forecast_margin *margin);
bool forecast_in_time(const struct forecast_margin *margin, uint32_t kind, int64_t predicted_ns,
                      int64_t limit_ns);
/* It was admitted so, and its first token took so long. */
void forecast_margin_learn(struct forecast_margin *margin, uint32_t kind, int64_t predicted_ns,
                           int64_t limit_ns, int64_t took_ns);

/* ahead: what waits before it, in sequences and tokens to be computed. work, context: tokens of the prompt to be computed, and those before them.
 * starts_per_s: pace of the waiting list, 0: not known. ns from now. */
int64_t forecast_first_token(const struct forecast *f, uint32_t seqs_ahead, uint64_t tokens_ahead,
                             uint32_t work, uint32_t context, double starts_per_s);
