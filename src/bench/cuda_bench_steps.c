/* cuda_bench_steps.c - whole steps of a made-up model through device.h, one step ahead of their tokens as the engine runs
 * them. Contexts are filled by real prefill of random tokens, blocks are given out shuffled. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/cuda_bench_parts.h"
#include "config/config.h"
#include "device/cuda/cuda_breakdown.h"
#include "device/device.h"
#include "model/model.h"

enum { AHEAD = 2 };

struct runner {
    const struct cuda_bench_options *o;
    struct weights *weights;
    struct model *model;
    const struct plan *plan;
    struct device *device;
    struct device_limits limits;
    char *cache_folder;
    struct step *steps[AHEAD];
    uint32_t *blocks[PLAN_GROUPS_MAX], per_slot[PLAN_GROUPS_MAX];
    uint64_t seq_no;
    double ready_s;
    int64_t host_ns; /* spent in submit calls */
};

static enum status make_steps(struct runner *r, struct error *err)
{
    for (uint32_t i = 0; i < AHEAD; i++) {
        size_t bytes = (step_bytes(r->plan, &r->limits) + 63) / 64 * 64;
        void *memory = aligned_alloc(64, bytes);
        if (!memory) return error_set(err, STATUS_NOMEM, "no memory for a step");
        r->steps[i] = step_init(memory, r->plan, &r->limits);
    }
    for (uint32_t g = 0; g < r->plan->group_count; g++) {
        uint32_t n = r->limits.kv_blocks[g], state = 12345;
        r->blocks[g] = malloc(n * sizeof(uint32_t));
        if (!r->blocks[g]) return error_set(err, STATUS_NOMEM, "no memory for block ids");
        for (uint32_t i = 0; i < n; i++)
            r->blocks[g][i] = i;
        for (uint32_t i = n; i > 1; i--) {
            state = state * 1664525u + 1013904223u;
            uint32_t k = (uint32_t)((uint64_t)state * i >> 32), kept = r->blocks[g][i - 1];
            r->blocks[g][i - 1] = r->blocks[g][k], r->blocks[g][k] = kept;
        }
    }
    return STATUS_OK;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* room: tokens that a slot has blocks for, and what the device is made for without --limit; cut where the model's context or the limit is
 * less, which the run's own tokens are not (cuda_bench_fits). */
static enum status open_runner(struct runner *r, uint32_t slots, uint32_t room, struct error *err)
{
    struct device_options device = {.kind = DEVICE_CUDA,
                                    .compute_dtype = r->o->f16 ? DTYPE_F16 : DTYPE_BF16,
                                    .enforce_eager = r->o->eager};
    struct model_options model = {
        .dummy = true, .dummy_dtype = device.compute_dtype, .dummy_seed = 1};
    int64_t begun = clock_mono_ns();

    device.cache_folder = r->cache_folder = config_cache_folder();
    enum status st = model_open_dummy(r->o->model, &model, &r->weights, &r->model, err);

    if (st) return st;
    r->plan = model_plan(r->model);
    const uint32_t limit = least(r->o->limit ? r->o->limit : room, r->plan->context_tokens);
    assert(cuda_bench_tokens(r->o) <= limit);
    room = least(room, limit);
    r->limits = (struct device_limits){.slots_max = slots,
                                       .rows_max = r->o->rows_max > slots ? r->o->rows_max : slots,
                                       .logits_max = slots,
                                       .steps_inflight = AHEAD,
                                       .context_tokens = limit};
    for (uint32_t g = 0; g < r->plan->group_count; g++) {
        uint32_t tokens = r->plan->groups[g].block_tokens;
        r->per_slot[g] = (room + tokens - 1) / tokens;
        r->limits.kv_blocks[g] = r->per_slot[g] * slots;
    }
    st = device_open(&device, &r->device, err);
    if (!st) st = device_compile(r->device, r->plan, &r->limits, err);
    if (!st && !r->o->chain) cuda_use_chain(r->device, false);
    r->ready_s = (double)(clock_mono_ns() - begun) * 1e-9;
    return st ? st : make_steps(r, err);
}

static void close_runner(struct runner *r)
{
    device_close(r->device);
    model_close(r->model);
    weights_close(r->weights);
    free(r->cache_folder);
    for (uint32_t i = 0; i < AHEAD; i++)
        free(r->steps[i]);
    for (uint32_t g = 0; g < PLAN_GROUPS_MAX; g++)
        free(r->blocks[g]);
}

static struct step *next_step(struct runner *r)
{
    struct step *s = r->steps[++r->seq_no % AHEAD];

    step_clear(s, r->seq_no);
    return s;
}

static void open_slot(struct runner *r, struct step *s, uint32_t slot)
{
    step_opens(s)[s->open_count++] =
        (struct step_open){.slot = slot, .top_p = 1, .repetition_penalty = 1};
    for (uint32_t g = 0; g < r->plan->group_count; g++)
        for (uint32_t i = 0; i < r->per_slot[g]; i++)
            step_tables(s)[s->table_count++] =
                (struct step_table_change){slot, g, i, r->blocks[g][slot * r->per_slot[g] + i]};
}

static void add_rows(struct runner *r, struct step *s, uint32_t slot, uint32_t context,
                     uint32_t rows, bool random, bool sample)
{
    step_segments(s)[s->segment_count++] = (struct step_segment){.slot = slot,
                                                                 .first_row = s->row_count,
                                                                 .rows = rows,
                                                                 .context_len = context,
                                                                 .logits_first = rows - sample,
                                                                 .logits_count = sample,
                                                                 .output_first = s->output_count};
    for (uint32_t i = 0; i < rows; i++)
        step_tokens(s)[s->row_count++] =
            random ? (int32_t)(((context + i) * 7919u + slot * 104729u) % r->plan->vocab_tokens)
                   : TOKEN_OF(slot, 0);
    if (sample) step_targets(s)[s->output_count++] = TARGET_SAMPLE;
}

static enum status submit(struct runner *r, struct step *s, struct error *err)
{
    int64_t begun = clock_mono_ns();
    enum status st = device_submit_body(r->device, s);

    if (!st) st = device_submit_sample(r->device, s, NULL);
    r->host_ns += clock_mono_ns() - begun;
    return st ? error_set(err, st, "submitting a step: %s", status_name(st)) : STATUS_OK;
}

static enum status finish(struct runner *r, uint64_t seq_no, struct error *err)
{
    const struct step_result *result;
    enum status st = device_wait(r->device, seq_no, -1, &result);

    if (st) return error_set(err, st, "waiting for a step: %s", status_name(st));
    if (result->status) {
        *err = result->error;
        return result->status;
    }
    device_release(r->device, seq_no);
    return STATUS_OK;
}

/* One prompt through slot `slot` in chunks; the last row's token is sampled. */
static enum status prefill(struct runner *r, uint32_t slot, uint32_t tokens, struct error *err)
{
    uint64_t first = r->seq_no + 1, waited = r->seq_no;
    enum status st = STATUS_OK;

    for (uint32_t done = 0; !st && done < tokens;) {
        uint32_t n = tokens - done < r->limits.rows_max ? tokens - done : r->limits.rows_max;
        if (r->seq_no - waited >= AHEAD) st = finish(r, ++waited, err);
        if (st) return st;
        struct step *s = next_step(r);
        if (r->seq_no == first) open_slot(r, s, slot);
        add_rows(r, s, slot, done, n, true, done + n == tokens);
        st = submit(r, s, err);
        done += n;
    }
    while (!st && waited < r->seq_no)
        st = finish(r, ++waited, err);
    return st;
}

static enum status decode_steps(struct runner *r, uint32_t batch, uint32_t context, uint32_t count,
                                struct error *err)
{
    uint64_t waited = r->seq_no;
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < count; i++) {
        if (r->seq_no - waited >= AHEAD) st = finish(r, ++waited, err);
        if (st) return st;
        struct step *s = next_step(r);
        for (uint32_t slot = 0; slot < batch; slot++)
            add_rows(r, s, slot, context + i, 1, false, true);
        st = submit(r, s, err);
    }
    while (!st && waited < r->seq_no)
        st = finish(r, ++waited, err);
    return st;
}

/* Bytes that a decode step must read: every weight but the embedding's rows, and the KV of the batch. */
static double step_bytes_read(const struct runner *r, uint32_t batch, uint32_t context)
{
    double weights = (double)model_parameters(r->model) * 2, kv = 0;
    const struct stage *embed = &r->plan->stages[0], *head = NULL;

    for (uint32_t i = 0; i < r->plan->stage_count; i++)
        if (r->plan->stages[i].kind == STAGE_HEAD) head = &r->plan->stages[i];
    if (head && embed->kind == STAGE_EMBED &&
        embed->embed.table.dummy_seed != head->head.weight.dummy_seed)
        weights -= (double)embed->embed.table.rows * embed->embed.table.cols * 2;
    for (uint32_t g = 0; g < r->plan->group_count; g++)
        kv += (double)r->plan->groups[g].layers * r->plan->groups[g].kv_heads *
              r->plan->groups[g].head_dim * 4;
    return weights + kv * batch * context;
}

/* What a step takes less when a kind's stages are left out, in µs; with and without in turns. -1: it can not be done. */
static enum status time_without(struct runner *r, uint32_t kind, double *us, struct error *err)
{
    enum { ROUNDS = 5 };
    double best[2] = {0, 0};

    *us = -1;
    for (uint32_t i = 0; i < 2 * ROUNDS; i++) {
        if (!cuda_leave_out(r->device, r->o->batch, i % 2 ? 1u << kind : 0)) return STATUS_OK;
        enum status st = decode_steps(r, r->o->batch, r->o->context, 3, err);
        int64_t begun = clock_mono_ns();
        if (!st) st = decode_steps(r, r->o->batch, r->o->context, r->o->steps, err);
        if (st) return st;
        double took = (double)(clock_mono_ns() - begun) * 1e-3 / r->o->steps;
        if (i < 2 || took < best[i % 2]) best[i % 2] = took;
    }
    if (cuda_leave_out(r->device, r->o->batch, 0)) *us = best[0] - best[1];
    return STATUS_OK;
}

/* µs by kind of stage: by itself, launched with an event behind each, and in its step. */
static enum status print_breakdown(struct runner *r, double step_ms, struct error *err)
{
    double us[CUDA_BREAKDOWN_KINDS], in_step[CUDA_BREAKDOWN_KINDS], sum = 0;
    enum status st = cuda_breakdown(r->device, r->o->batch, 15, us, err);

    for (uint32_t k = 0; !st && k < CUDA_BREAKDOWN_KINDS; k++) {
        in_step[k] = -1;
        if (k != STAGE_SAMPLE && k != STAGE_EMBED) st = time_without(r, k, &in_step[k], err);
    }
    if (st) return st;
    printf("{\"bench\": \"breakdown\", \"model\": \"%s\", \"batch\": %u, \"context\": %u",
           r->o->model, r->o->batch, r->o->context);
    for (uint32_t k = 0; k < CUDA_BREAKDOWN_KINDS; k++) {
        if (k == STAGE_SAMPLE) continue;
        sum += us[k];
        printf(", \"%s_us\": %.1f", stage_kind_name(k), us[k]);
        fprintf(stderr, "  %-8s %9.1f us", stage_kind_name(k), us[k]);
        if (in_step[k] >= 0) {
            printf(", \"%s_in_step_us\": %.1f", stage_kind_name(k), in_step[k]);
            fprintf(stderr, ", %9.1f in its step", in_step[k]);
        }
        fprintf(stderr, "\n");
    }
    printf(", \"stages_us\": %.1f, \"step_us\": %.1f}\n", sum, step_ms * 1e3);
    fprintf(stderr, "  %-8s %9.1f us, of a step of %.1f us\n", "sum", sum, step_ms * 1e3);
    return STATUS_OK;
}

enum status bench_decode(const struct cuda_limits *limits, const struct cuda_bench_options *o,
                         struct error *err)
{
    struct runner r = {.o = o};
    enum { SETS = CUDA_BENCH_SETS };
    double ms[SETS], best;
    enum status st = open_runner(&r, o->batch, o->context + (SETS + 1) * o->steps + 1, err);

    for (uint32_t slot = 0; !st && slot < o->batch; slot++)
        st = prefill(&r, slot, o->context, err);
    if (!st) st = decode_steps(&r, o->batch, o->context, o->steps, err);
    r.host_ns = 0;
    for (uint32_t i = 0; !st && i < SETS; i++) {
        int64_t begun = clock_mono_ns();
        st = decode_steps(&r, o->batch, o->context + i * o->steps, o->steps, err);
        ms[i] = (double)(clock_mono_ns() - begun) * 1e-6 / o->steps;
    }
    if (!st) {
        double at = o->context + 0.5 * SETS * o->steps;
        for (int i = 1; i < SETS; i++)
            for (int k = i; k > 0 && ms[k] < ms[k - 1]; k--) {
                double kept = ms[k];
                ms[k] = ms[k - 1], ms[k - 1] = kept;
            }
        best = ms[SETS / 2];
        double rate = step_bytes_read(&r, o->batch, (uint32_t)at) / best * 1e-6;
        double launches = (double)cuda_graph_launches(r.device, o->batch) / r.plan->layers;
        printf(
            "{\"bench\": \"decode\", \"model\": \"%s\", \"batch\": %u, \"context\": %u, "
            "\"graphs\": %s, "
            "\"ms_per_step\": %.4f, \"tok_s\": %.1f, \"read_gb_s\": %.0f, \"share_of_read\": %.3f, "
            "\"host_us_per_step\": %.1f, \"launches_per_layer\": %.2f, \"ready_s\": %.2f}\n",
            o->model, o->batch, o->context, o->eager ? "false" : "true", best,
            o->batch * 1e3 / best, rate, rate / limits->read_gb_s,
            (double)r.host_ns * 1e-3 / (SETS * o->steps), launches, r.ready_s);
        fprintf(stderr,
                "decode %s B %u ctx %u%s: %.4f ms/step (%.4f..%.4f), %.1f tok/s, %.0f GB/s = %.2f "
                "of read, host %.1f us, "
                "%.2f launches a layer, ready %.2f s\n",
                o->model, o->batch, o->context, o->eager ? " eager" : "", best, ms[0], ms[SETS - 1],
                o->batch * 1e3 / best, rate, rate / limits->read_gb_s,
                (double)r.host_ns * 1e-3 / (SETS * o->steps), launches, r.ready_s);
    }
    if (!st && o->what == CUDA_BENCH_BREAKDOWN) st = print_breakdown(&r, best, err);
    close_runner(&r);
    return st;
}

/* --- graphs against launches --- */

struct timed {
    double ms, host_us; /* of a step */
};

static enum status time_steps(struct runner *r, uint32_t batch, bool graphs, struct timed *out,
                              struct error *err)
{
    int64_t begun;
    enum status st;

    cuda_use_graphs(r->device, graphs);
    st = decode_steps(r, batch, r->o->context, CUDA_BENCH_WARM_UP, err);
    r->host_ns = 0;
    begun = clock_mono_ns();
    if (!st) st = decode_steps(r, batch, r->o->context, r->o->steps, err);
    out->ms = (double)(clock_mono_ns() - begun) * 1e-6 / r->o->steps;
    out->host_us = (double)r->host_ns * 1e-3 / r->o->steps;
    return st;
}

static int by_ms(const void *a, const void *b)
{
    double x = ((const struct timed *)a)->ms, y = ((const struct timed *)b)->ms;
    return x < y ? -1 : x > y;
}

static enum status compare_graphs(struct runner *r, uint32_t batch, struct error *err)
{
    enum { SETS = 5 };
    struct timed on[SETS], off[SETS];
    uint32_t launches = cuda_graph_launches(r->device, batch);
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < SETS; i++) { /* in turns: a slow moment meets both */
        st = time_steps(r, batch, true, &on[i], err);
        if (!st) st = time_steps(r, batch, false, &off[i], err);
    }
    if (st) return st;
    qsort(on, SETS, sizeof *on, by_ms), qsort(off, SETS, sizeof *off, by_ms);
    struct timed a = on[SETS / 2], b = off[SETS / 2];
    printf("{\"bench\": \"graphs\", \"model\": \"%s\", \"batch\": %u, \"context\": %u, "
           "\"graphs_ms\": %.4f, \"launches_ms\": %.4f, \"difference\": %.4f, \"graphs_host_us\": "
           "%.1f, "
           "\"launches_host_us\": %.1f, \"body_launches\": %u, \"launches_per_layer\": %.2f}\n",
           r->o->model, batch, r->o->context, a.ms, b.ms, a.ms / b.ms - 1, a.host_us, b.host_us,
           launches, (double)launches / r->plan->layers);
    fprintf(stderr, "%5u %12.4f %12.4f %+8.1f %% %9.1f %9.1f %9u %9.2f\n", batch, a.ms, b.ms,
            (a.ms / b.ms - 1) * 100, a.host_us, b.host_us, launches,
            (double)launches / r->plan->layers);
    return STATUS_OK;
}

enum status bench_graphs(const struct cuda_bench_options *o, struct error *err)
{
    struct runner r = {.o = o};
    uint32_t most = 1;
    enum status st;

    for (uint32_t i = 0; i < o->batch_count; i++)
        if (o->batch_list[i] > most) most = o->batch_list[i];
    st = open_runner(&r, most, o->context + o->steps + CUDA_BENCH_WARM_UP + 1, err);
    for (uint32_t slot = 0; !st && slot < most; slot++)
        st = prefill(&r, slot, o->context, err);
    if (!st)
        fprintf(stderr,
                "%s, context %u\nbatch  graphs, ms launches, ms difference  host, us  host, us  "
                "launches per layer\n",
                o->model, o->context);
    for (uint32_t i = 0; !st && i < o->batch_count; i++)
        st = compare_graphs(&r, o->batch_list[i], err);
    close_runner(&r);
    return st;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

enum status bench_prefill(const struct cuda_bench_options *o, struct error *err)
{
    struct runner r = {.o = o};
    double ms[CUDA_BENCH_REPEATS_MAX], sum = 0, square = 0;
    enum status st = open_runner(&r, 1, o->prompt + 1, err);

    for (uint32_t i = 0; !st && i < 3; i++)
        st = prefill(&r, 0, o->prompt, err);
    for (uint32_t i = 0; !st && i < o->repeats; i++) {
        usleep(o->idle_ms * 1000); /* a card that has rested runs faster */
        int64_t begun = clock_mono_ns();
        st = prefill(&r, 0, o->prompt, err);
        ms[i] = (double)(clock_mono_ns() - begun) * 1e-6;
        sum += ms[i], square += ms[i] * ms[i];
    }
    if (!st) {
        double mean = sum / o->repeats, sigma = sqrt(fmax(0, square / o->repeats - mean * mean));
        qsort(ms, o->repeats, sizeof *ms, by_value);
        double median = ms[o->repeats / 2],
               flop = 2.0 * (double)model_parameters(r.model) * o->prompt;
        printf("{\"bench\": \"prefill\", \"model\": \"%s\", \"prompt\": %u, \"chunk\": %u, "
               "\"idle_ms\": %u, \"first_token_ms\": %.3f, "
               "\"sigma_ms\": %.3f, \"weight_tflop_s\": %.0f, \"ready_s\": %.2f}\n",
               o->model, o->prompt, r.limits.rows_max, o->idle_ms, median, sigma,
               flop / median * 1e-9, r.ready_s);
        fprintf(stderr,
                "prefill %s prompt %u chunk %u idle %u ms: first token %.2f ms (sigma %.2f), %.0f "
                "TFLOP/s of the weights, ready %.2f s\n",
                o->model, o->prompt, r.limits.rows_max, o->idle_ms, median, sigma,
                flop / median * 1e-9, r.ready_s);
    }
    close_runner(&r);
    return st;
}
