/* calibrate.c - a few steps before the first request, so that step times can be predicted from the start.
 *
 * Prompts of three lengths in slot 0, each followed by four decoding rows, as a scheduler would plan them; what they write lies in blocks that
 * are free again afterwards. The first step of each kind is not counted: it may pay for things that happen once. It ends when the cost model
 * has seen STEPS, some of each kind, or the time is over. */
#include <stdio.h>

#include "base/clock.h"
#include "engine/engine_state.h"

enum { DECODES = 4, KINDS = 3, ROUNDS_MAX = 12, STEPS = 32 };

static int64_t patience_ns(const struct engine *e)
{
    return e->options.step_timeout_ms ? (int64_t)e->options.step_timeout_ms * 1000000
                                      : INT64_C(60000000000);
}

/* The slot's sampling state and its blocks for so many tokens: the pools' first ones. */
static void put_open(const struct engine *e, struct step *step, uint32_t tokens)
{
    step_opens(step)[step->open_count++] =
        (struct step_open){.top_p = 1, .repetition_penalty = 1}; /* greedy */
    for (uint32_t g = 0; g < e->plan->group_count; g++) {
        uint32_t size = e->plan->groups[g].block_tokens;

        for (uint32_t i = 0; i < (tokens + size - 1) / size; i++)
            step_tables(step)[step->table_count++] = (struct step_table_change){0, g, i, i};
    }
}

static void put_rows(const struct engine *e, struct step *step, uint32_t context, uint32_t rows)
{
    step_segments(step)[step->segment_count++] = (struct step_segment){
        .rows = rows, .context_len = context, .logits_first = rows - 1, .logits_count = 1};
    for (uint32_t i = 0; i < rows; i++)
        step_tokens(step)[i] = (int32_t)((context + i) * 7 % e->plan->vocab_tokens);
    step_targets(step)[0] = TARGET_SAMPLE;
    step->row_count = rows;
    step->output_count = 1;
}

/* Runs the step; its time counts where `counts`. */
static enum status run_step(struct engine *e, struct step *step, bool counts, struct error *err)
{
    const struct step_segment *segment = step_segments(step);
    const struct step_result *result;
    enum status st = device_submit_body(e->device, step);

    if (!st) st = device_submit_sample(e->device, step, NULL);
    e->steps_submitted += st == STATUS_OK;
    if (!st) st = device_wait(e->device, step->seq_no, patience_ns(e), &result);
    if (st) return error_set(err, STATUS_DEVICE, "the device did not run a step on trial");
    if (result->status) {
        st = error_set(err, result->status, "the device failed a step on trial: %.200s",
                       result->error.message);
    } else if (counts && result->ended_ns > result->started_ns) {
        struct sched_step seen = {.row_count = segment->rows,
                                  .pairs = cost_pairs(segment->context_len, segment->rows)};

        sched_observe(e->sched, &seen, result->ended_ns - result->started_ns);
    }
    device_release(e->device, step->seq_no);
    e->done_seq_no = e->planned_seq_no = step->seq_no;
    sched_step_done(e->sched, step->seq_no);
    return st;
}

static struct step *next_step(struct engine *e)
{
    struct step *step = e->flights[0].step;

    step_clear(step, e->planned_seq_no + 1);
    return step;
}

/* A prompt of so many rows and the tokens after it. */
static enum status run_prompt(struct engine *e, uint32_t rows, bool counts, struct error *err)
{
    struct step *step = next_step(e);
    enum status st;

    put_open(e, step, rows + DECODES);
    put_rows(e, step, 0, rows);
    st = run_step(e, step, counts, err);
    for (uint32_t i = 0; i < DECODES && !st; i++) {
        step = next_step(e);
        put_rows(e, step, rows + i, 1);
        st = run_step(e, step, counts || i > 0, err);
    }
    return st;
}

/* The longest prompt that rows, context and the smallest pool allow; 0: none. */
static uint32_t most_rows(const struct engine *e)
{
    uint64_t most = e->options.max_num_batched_tokens;

    if (most + DECODES > e->options.context_tokens)
        most = e->options.context_tokens > DECODES ? e->options.context_tokens - DECODES : 0;
    for (uint32_t g = 0; g < e->plan->group_count; g++) {
        uint64_t tokens = (uint64_t)e->limits->kv_blocks[g] * e->plan->groups[g].block_tokens;

        if (most + DECODES > tokens) most = tokens > DECODES ? tokens - DECODES : 0;
    }
    return (uint32_t)most;
}

enum status calibrate(struct engine *e, struct error *err)
{
    int64_t end_ns = clock_mono_ns() + (int64_t)e->options.calibrate_ms * 1000000;
    uint32_t most = most_rows(e);
    enum status st = STATUS_OK;

    if (e->options.calibrate_ms == 0 || most < 4) return STATUS_OK;
    for (uint32_t round = 0; round < ROUNDS_MAX && !st; round++)
        for (uint32_t kind = 0; kind < KINDS && !st; kind++) {
            /* the shortest first, the very first a probe: on a slow device a long one takes all the time, and much more */
            uint32_t rows = kind == 0   ? (round ? most / 16 + 1 : 4)
                            : kind == 1 ? most / 4 + 1
                                        : most;

            if (clock_mono_ns() >= end_ns || sched_cost_model(e->sched)->observed >= STEPS)
                return STATUS_OK;
            st = run_prompt(e, rows, round > 0, err);
        }
    return st;
}
