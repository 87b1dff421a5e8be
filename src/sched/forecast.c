#include "sched/forecast.h"

static double step_time(const struct forecast *f, double rows)
{
    return f->step_ns + f->row_ns * (f->decodes + rows) + f->pair_ns * (double)f->decode_pairs;
}

/* Prompt rows that a step takes beside those that decode. */
static double rows_a_step(const struct forecast *f)
{
    double rows = f->rows_max > f->decodes + 16 ? f->rows_max - f->decodes : 16;

    if (f->max_step_ns && f->decodes && f->row_ns > 0) {
        double fit = ((double)f->max_step_ns - step_time(f, 0)) / f->row_ns;

        if (fit < rows) rows = fit > 16 ? fit : 16;
    }
    return rows;
}

/* Steps until `count` slots have come free; 0: not in sight. */
static uint32_t steps_to_slots(const struct forecast *f, uint32_t count)
{
    for (uint32_t i = 0, ended = 0; i < FORECAST_STEPS; i++)
        if ((ended += f->ends[i]) >= count) return i + 1;
    return 0;
}

/* Until the slot that is `count` slots away is free: at the pace of late, or sooner, by what runs; 0: not known. */
static double slot_time(const struct forecast *f, uint32_t count, double rows_ahead,
                        double starts_per_s)
{
    double paced_ns = starts_per_s > 0 ? count / starts_per_s * 1e9 : 0;
    uint32_t steps = steps_to_slots(f, count);
    double ends_ns = steps * step_time(f, 0) + rows_ahead * f->row_ns;

    return steps && (paced_ns == 0 || ends_ns < paced_ns) ? ends_ns : paced_ns;
}

int64_t forecast_first_token(const struct forecast *f, uint32_t seqs_ahead, uint64_t tokens_ahead,
                             uint32_t work, uint32_t context, double starts_per_s)
{
    double rows = (double)(f->rows_under_way + tokens_ahead + work);
    double a_step = rows_a_step(f), steps = rows / a_step, full = (double)(uint64_t)steps;
    double compute_ns = full * step_time(f, a_step) + step_time(f, rows - full * a_step) +
                        f->pair_ns * (double)cost_pairs(context, work);
    double slot_ns = 0;

    if (seqs_ahead >= f->free_slots)
        slot_ns = slot_time(f, seqs_ahead + 1 - f->free_slots, rows - work, starts_per_s);
    if (slot_ns > 0) slot_ns += step_time(f, work < a_step ? work : a_step);
    return (int64_t)((slot_ns > compute_ns ? slot_ns : compute_ns) + step_time(f, 0));
}

static uint64_t all_tokens(const struct forecast_queue *q)
{
    uint64_t tokens = 0;

    for (int c = 0; c < SEQ_CLASSES; c++)
        tokens += q->tokens[c];
    return tokens;
}

uint32_t forecast_kind(const struct forecast_queue *q, enum seq_class class)
{
    return class + (2 * q->own_tokens > all_tokens(q) ? SEQ_CLASSES : 0);
}

uint64_t forecast_work(const struct forecast *f, const struct forecast_queue *q,
                       const struct forecast_prompt *prompt)
{
    bool stays = q->prompt_tokens + prompt->tokens <= f->kv_tokens / 2;

    return prompt->tokens - (stays ? prompt->cached : 0);
}

int64_t forecast_queued(const struct forecast *f, const struct forecast_queue *q,
                        enum seq_class class, const struct forecast_prompt *prompt)
{
    uint64_t seqs = 0, tokens = 0, turns = q->sharers, work = forecast_work(f, q, prompt);
    struct forecast felt = *f;

    if (!f->ready) return -1;
    if (forecast_kind(q, class) == class) felt.rows_under_way -= f->rows_of_floods;
    for (int c = CLASS_FAST; c <= (f->by_class ? (int)class : CLASS_SLOW); c++) {
        seqs += q->seqs[c];
        tokens += q->tokens[c];
    }
    if ((q->own_seqs + 1) * turns < seqs) seqs = (q->own_seqs + 1) * turns;
    if ((q->own_tokens + work) * turns < tokens) tokens = (q->own_tokens + work) * turns;
    return forecast_first_token(&felt, (uint32_t)seqs, tokens, (uint32_t)work,
                                (uint32_t)(prompt->tokens - work), q->starts_per_s);
}

/* --- margin ----------------------------------------------------------------------------------------------------- */

static const double LATE_SHARE = 0.02, LESSON = 0.05, FACTOR_MIN = 0.25, FACTOR_MAX = 16;

void forecast_margin_init(struct forecast_margin *m)
{
    for (int c = 0; c < FORECAST_KINDS; c++)
        m->factor[c] = 1;
}

bool forecast_in_time(const struct forecast_margin *m, uint32_t kind, int64_t predicted_ns,
                      int64_t limit_ns)
{
    return (double)predicted_ns * m->factor[kind] <= (double)limit_ns;
}

void forecast_margin_learn(struct forecast_margin *m, uint32_t kind, int64_t predicted_ns,
                           int64_t limit_ns, int64_t took_ns)
{
    double *factor = &m->factor[kind];

    if ((double)predicted_ns * *factor < 0.5 * (double)limit_ns && took_ns <= limit_ns) return;
    *factor *= took_ns > limit_ns ? 1 + LESSON : 1 - LESSON * LATE_SHARE / (1 - LATE_SHARE);
    if (*factor < FACTOR_MIN) *factor = FACTOR_MIN;
    if (*factor > FACTOR_MAX) *factor = FACTOR_MAX;
}
