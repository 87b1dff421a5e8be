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

int64_t forecast_first_token(const struct forecast *f, uint32_t seqs_ahead, uint64_t tokens_ahead,
                             uint32_t prompt_tokens, double starts_per_s)
{
    double rows = (double)(f->rows_under_way + tokens_ahead + prompt_tokens);
    double a_step = rows_a_step(f), steps = rows / a_step, full = (double)(uint64_t)steps;
    double compute_ns = full * step_time(f, a_step) + step_time(f, rows - full * a_step) +
                        f->pair_ns * (double)cost_pairs(0, prompt_tokens);
    double slot_ns = 0;

    if (seqs_ahead >= f->free_slots && starts_per_s > 0)
        slot_ns = (seqs_ahead + 1 - f->free_slots) / starts_per_s * 1e9 +
                  step_time(f, prompt_tokens < a_step ? prompt_tokens : a_step);
    return (int64_t)((slot_ns > compute_ns ? slot_ns : compute_ns) + step_time(f, 0));
}
