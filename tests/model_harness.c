#include "model_harness.h"

#include <math.h>
#include <stdlib.h>

#include "test.h"

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

static void shuffle(uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t k = test_rand_below(i), kept = ids[i - 1];
        ids[i - 1] = ids[k], ids[k] = kept;
    }
}

static void set_limits(struct harness *h, const struct harness_options *o)
{
    struct device_limits *l = &h->limits;

    l->slots_max = or_default(o->slots, 16);
    l->rows_max = or_default(o->rows_max, 512);
    l->logits_max = or_default(o->logits_max, l->rows_max);
    l->steps_inflight = or_default(o->steps_inflight, 2);
    l->context_tokens = or_default(o->context_tokens,
                                   h->plan->context_tokens < 2048 ? h->plan->context_tokens : 2048);
    l->top_logprobs_max = o->top_logprobs_max;
    l->bias_max = 64;
    l->banned_max = 16;
    for (uint32_t g = 0; g < h->plan->group_count; g++) {
        uint32_t tokens = h->plan->groups[g].block_tokens;
        h->per_slot[g] = (l->context_tokens + tokens - 1) / tokens;
        l->kv_blocks[g] = h->per_slot[g] * l->slots_max;
        h->blocks[g] = calloc(l->kv_blocks[g], sizeof(uint32_t));
        shuffle(h->blocks[g], l->kv_blocks[g]);
        if (o->kv_blocks) l->kv_blocks[g] = o->kv_blocks;
    }
}

void harness_open(struct harness *h, const char *path, const struct harness_options *options)
{
    struct error err = {0};

    *h = (struct harness){0};
    if (options->model.dummy) {
        EXPECT_OK_ERR(model_open_dummy(path, &options->model, &h->weights, &h->model, &err), &err);
    } else {
        EXPECT_OK_ERR(weights_open(path, 0, &h->weights, &err), &err);
        EXPECT_OK_ERR(model_open(h->weights, &options->model, &h->model, &err), &err);
    }
    h->plan = model_plan(h->model);
    set_limits(h, options);
    EXPECT_OK_ERR(device_open(&options->device, &h->device, &err), &err);
    EXPECT_OK_ERR(device_compile(h->device, h->plan, &h->limits, &err), &err);
    for (uint32_t i = 0; i < h->limits.steps_inflight; i++) {
        size_t bytes = step_bytes(h->plan, &h->limits);
        h->steps[i] = step_init(aligned_alloc(64, bytes), h->plan, &h->limits);
    }
}

void harness_close(struct harness *h)
{
    device_close(h->device);
    model_close(h->model);
    weights_close(h->weights);
    for (uint32_t i = 0; i < h->limits.steps_inflight; i++)
        free(h->steps[i]);
    for (uint32_t g = 0; g < PLAN_GROUPS_MAX; g++)
        free(h->blocks[g]);
}

struct step *harness_step(struct harness *h)
{
    struct step *step = h->steps[++h->seq_no % h->limits.steps_inflight];

    step_clear(step, h->seq_no);
    return step;
}

struct step_open harness_greedy_open(uint32_t slot)
{
    return (struct step_open){.slot = slot, .top_p = 1, .repetition_penalty = 1};
}

void harness_open_slot(struct harness *h, struct step *step, uint32_t slot,
                       const struct step_open *open, uint32_t tokens)
{
    struct step_open greedy = harness_greedy_open(slot);

    step_opens(step)[step->open_count++] = open ? *open : greedy;
    for (uint32_t g = 0; g < h->plan->group_count; g++) {
        uint32_t block_tokens = h->plan->groups[g].block_tokens;
        for (uint32_t i = 0; i < (tokens + block_tokens - 1) / block_tokens; i++)
            step_tables(step)[step->table_count++] =
                (struct step_table_change){slot, g, i, h->blocks[g][slot * h->per_slot[g] + i]};
    }
}

struct step_segment *harness_segment(struct step *step, uint32_t slot, const int32_t *tokens,
                                     uint32_t rows, uint32_t context_len, uint32_t logits_first,
                                     uint32_t logits_count)
{
    struct step_segment *s = &step_segments(step)[step->segment_count++];

    *s = (struct step_segment){.slot = slot,
                               .first_row = step->row_count,
                               .rows = rows,
                               .context_len = context_len,
                               .logits_first = logits_first,
                               .logits_count = logits_count,
                               .output_first = step->output_count};
    memcpy(step_tokens(step) + step->row_count, tokens, rows * sizeof *tokens);
    step->row_count += rows;
    for (uint32_t i = 0; i < logits_count; i++)
        step_targets(step)[step->output_count++] = TARGET_SAMPLE;
    return s;
}

void harness_submit(struct harness *h, struct step *step)
{
    EXPECT_OK(device_submit_body(h->device, step));
    EXPECT_OK(device_submit_sample(h->device, step, NULL));
}

const struct step_result *harness_wait(struct harness *h, uint64_t seq_no)
{
    const struct step_result *result = NULL;

    EXPECT_OK(device_wait(h->device, seq_no, (int64_t)300 * 1000000000, &result));
    if (result->status) fail_msg("step %d: %s", (int)seq_no, result->error.message);
    return result;
}

/* --- running sequences --- */

static uint32_t chunk_of(const struct harness *h, const struct step *step,
                         const struct harness_seq *seq, uint32_t done, struct harness_cut cut)
{
    uint32_t chunk = seq->count - done, rows = h->limits.rows_max - step->row_count;
    uint32_t outputs = h->limits.logits_max - step->output_count;
    uint32_t free_rows = seq->logits_from > done ? seq->logits_from - done : 0;

    if (cut.chunk_max && chunk > cut.chunk_max) chunk = cut.chunk_max;
    if (cut.random && chunk > 1) chunk = 1 + test_rand_below(chunk);
    if (chunk > rows) chunk = rows;
    if (chunk > free_rows + outputs) chunk = free_rows + outputs;
    return chunk;
}

static void add_chunk(struct harness *h, struct step *step, uint32_t slot,
                      const struct harness_seq *seq, uint32_t done, uint32_t chunk)
{
    uint32_t first = seq->logits_from > done ? seq->logits_from - done : 0;

    if (done == 0) harness_open_slot(h, step, slot, NULL, seq->count);
    if (first > chunk) first = chunk;
    harness_segment(step, slot, seq->tokens + done, chunk, done, first, chunk - first);
}

static void take_logits(const struct harness *h, const struct step *step,
                        const struct step_result *result, const struct harness_seq *seqs)
{
    uint32_t vocab = h->plan->vocab_rows;

    for (uint32_t i = 0; i < step->segment_count; i++) {
        const struct step_segment *s = &step_segments(step)[i];
        const struct harness_seq *seq = &seqs[s->slot];
        if (!s->logits_count) continue;
        memcpy(seq->logits + (size_t)(s->context_len + s->logits_first - seq->logits_from) * vocab,
               result->logits + (size_t)s->output_first * vocab,
               (size_t)s->logits_count * vocab * sizeof(float));
    }
}

void harness_run(struct harness *h, const struct harness_seq *seqs, uint32_t count,
                 struct harness_cut cut)
{
    uint32_t *done = calloc(count, sizeof *done), left = count;

    EXPECT_TRUE(count <= h->limits.slots_max);
    while (left) {
        struct step *step = harness_step(h);
        step->flags = STEP_KEEP_LOGITS;
        for (uint32_t s = 0; s < count; s++) {
            uint32_t chunk = 0;
            if (done[s] == seqs[s].count) continue;
            if (cut.random && step->segment_count && test_rand_below(4) == 0) continue;
            chunk = chunk_of(h, step, &seqs[s], done[s], cut);
            if (!chunk) continue;
            add_chunk(h, step, s, &seqs[s], done[s], chunk);
            done[s] += chunk;
            left -= done[s] == seqs[s].count;
        }
        harness_submit(h, step);
        take_logits(h, step, harness_wait(h, step->seq_no), seqs);
        device_release(h->device, step->seq_no);
    }
    free(done);
}

static void greedy_step(struct harness *h, uint32_t at, const int32_t *prompt,
                        uint32_t prompt_count, uint32_t count)
{
    struct step *step = harness_step(h);
    int32_t ref = TOKEN_OF(0, 0);

    if (at == 0) {
        harness_open_slot(h, step, 0, NULL, prompt_count + count);
        harness_segment(step, 0, prompt, prompt_count, 0, prompt_count - 1, 1);
    } else {
        harness_segment(step, 0, &ref, 1, prompt_count + at - 1, 0, 1);
    }
    harness_submit(h, step);
}

static void compare_logits(const struct harness *h, const struct step *step,
                           const struct step_result *result, const struct harness_seq *seqs,
                           struct harness_difference *d)
{
    const uint64_t vocab = h->plan->vocab_rows;

    for (uint32_t i = 0; i < step->segment_count; i++) {
        const struct step_segment *s = &step_segments(step)[i];
        const float *got = result->logits + s->output_first * vocab;
        const float *want =
            seqs[s->slot].logits + (s->context_len + (uint64_t)s->logits_first) * vocab;
        d->rows += s->logits_count;
        for (uint64_t k = 0; k < s->logits_count * vocab; k++) {
            d->scale = fmax(d->scale, fabs((double)want[k]));
            /* not a number is a difference, too */
            if (!(fabs((double)got[k] - want[k]) <= d->worst))
                d->worst = fabs((double)got[k] - want[k]);
        }
    }
}

struct harness_difference harness_compare_some(struct harness *h, const struct harness_seq *seqs,
                                               uint32_t count, uint32_t chunk_max)
{
    uint32_t *done = calloc(count, sizeof *done), left = count;
    struct harness_difference d = {0};

    while (left) {
        struct step *step = harness_step(h);
        step->flags = STEP_KEEP_LOGITS;
        for (uint32_t s = 0; s < count; s++) {
            uint32_t rows = 1 + test_rand_below(chunk_max), rest = seqs[s].count - done[s];
            if (rows > rest) rows = rest;
            if (!rows || test_rand_below(4) == 0) continue;
            uint32_t first = test_rand_below(rows + 1);
            if (!done[s]) harness_open_slot(h, step, s, NULL, seqs[s].count);
            harness_segment(step, s, seqs[s].tokens + done[s], rows, done[s], first,
                            test_rand_below(rows - first + 1));
            done[s] += rows;
            left -= done[s] == seqs[s].count;
        }
        harness_submit(h, step);
        compare_logits(h, step, harness_wait(h, step->seq_no), seqs, &d);
        device_release(h->device, step->seq_no);
    }
    free(done);
    return d;
}

void harness_greedy(struct harness *h, const int32_t *prompt, uint32_t prompt_count, uint32_t count,
                    int32_t *out)
{
    uint64_t first = h->seq_no + 1;
    uint32_t sent = 0;

    for (uint32_t got = 0; got < count; got++) {
        while (sent < count && sent - got < h->limits.steps_inflight)
            greedy_step(h, sent++, prompt, prompt_count, count);
        out[got] = harness_wait(h, first + got)->outputs[0].token;
        device_release(h->device, first + got);
    }
}
