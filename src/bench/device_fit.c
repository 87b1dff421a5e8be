#include "bench/device_fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench_args.h"
#include "bench/device_model.h"
#include "bench/samples.h"
#include "device/device_memory.h"
#include "formats/weights.h"
#include "model/model.h"

enum {
    SHAPES_MAX = 64,
    UNKNOWNS_MAX = MODEL_POINTS_MAX + 3,
    SWEEPS = 20000,
    SLOT_TOKENS = 256,
    BLOCK_TOKENS = 16
};

struct shape {
    uint32_t sequences, rows_each, context;
    double ns; /* median */
    struct device_work work;
};

struct fit {
    const char *model_path, *device_name, *numerics, *out_path;
    uint32_t threads, repeats, batch_max, rows_max, kv_tokens;
    struct weights *weights;
    struct model *model;
    const struct plan *plan;
    struct device *device;
    struct device_limits limits;
    void *memory;
    struct step *step;
    uint64_t seq_no;
    struct shape shapes[SHAPES_MAX];
    uint32_t shape_count;
};

/* --- the device -------------------------------------------------------------------------------------------------- */

static enum status open_device(struct fit *f, struct error *err)
{
    bool cuda = strcmp(f->device_name, "cuda") == 0;
    struct device_options options = {.kind = cuda ? DEVICE_CUDA : DEVICE_CPU,
                                     .threads = f->threads,
                                     .numerics =
                                         strcmp(f->numerics, "exact") == 0 ? CPU_EXACT : CPU_FAST,
                                     .compute_dtype = DTYPE_F32};
    struct model_options model = {.block_tokens = BLOCK_TOKENS,
                                  .kv_format = cuda ? KV_BF16 : KV_F32};
    enum status st = weights_open(f->model_path, 0, &f->weights, err);

    if (!st) st = model_open(f->weights, &model, &f->model, err);
    if (!st) st = device_open(&options, &f->device, err);
    if (st) return st;
    f->plan = model_plan(f->model);
    f->limits = (struct device_limits){
        .slots_max = f->batch_max,
        .rows_max = f->rows_max > f->batch_max ? f->rows_max : f->batch_max,
        .logits_max = f->batch_max,
        .steps_inflight = 1,
        .context_tokens = f->plan->context_tokens < 4096 ? f->plan->context_tokens : 4096};
    for (uint32_t g = 0; g < f->plan->group_count; g++) {
        uint32_t all = f->batch_max * SLOT_TOKENS, one = f->limits.context_tokens;
        f->limits.kv_blocks[g] = (all > one ? all : one) / BLOCK_TOKENS + 1;
    }
    st = device_compile(f->device, f->plan, &f->limits, err);
    if (st) return st;
    size_t bytes = (step_bytes(f->plan, &f->limits) + 63) / 64 * 64;
    f->memory = aligned_alloc(64, bytes);
    if (!f->memory) return error_set(err, STATUS_NOMEM, "no memory for a step");
    memset(f->memory, 0, bytes);
    f->step = step_init(f->memory, f->plan, &f->limits);
    return STATUS_OK;
}

static void close_device(struct fit *f)
{
    device_close(f->device);
    model_close(f->model);
    weights_close(f->weights);
    free(f->memory);
}

static enum status run_step(struct fit *f, double *ns, struct error *err)
{
    const struct step_result *result;
    int64_t began = clock_mono_ns();
    enum status st = device_submit_body(f->device, f->step);

    if (!st) st = device_submit_sample(f->device, f->step, NULL);
    if (!st) st = device_wait(f->device, f->step->seq_no, -1, &result);
    if (st) return error_set(err, st, "a step could not be run: %s", status_name(st));
    *ns = (double)(result->ended_ns > result->started_ns ? result->ended_ns - result->started_ns
                                                         : clock_mono_ns() - began);
    st = result->status;
    if (st) *err = result->error;
    device_release(f->device, f->step->seq_no);
    return st;
}

/* The slot's blocks: its own part of the pool; a context longer than that goes on into its neighbours', whose content is of no matter. */
static void open_slot(struct fit *f, uint32_t slot, uint32_t tokens)
{
    uint32_t blocks = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;

    step_opens(f->step)[f->step->open_count++] =
        (struct step_open){.slot = slot, .top_p = 1, .repetition_penalty = 1};
    for (uint32_t g = 0; g < f->plan->group_count; g++)
        for (uint32_t i = 0; i < blocks; i++)
            step_tables(f->step)[f->step->table_count++] = (struct step_table_change){
                slot, g, i, (slot * (SLOT_TOKENS / BLOCK_TOKENS) + i) % f->limits.kv_blocks[g]};
}

static void add_segment(struct fit *f, uint32_t slot, const struct shape *s)
{
    struct step *step = f->step;

    step_segments(step)[step->segment_count++] =
        (struct step_segment){.slot = slot,
                              .first_row = step->row_count,
                              .rows = s->rows_each,
                              .context_len = s->context,
                              .logits_first = s->rows_each - 1,
                              .logits_count = 1,
                              .output_first = step->output_count};
    for (uint32_t r = 0; r < s->rows_each; r++, step->row_count++)
        step_tokens(step)[step->row_count] =
            (int32_t)(10 + (step->row_count * 37 + slot) % (f->plan->vocab_tokens - 20));
    step_targets(step)[step->output_count++] = TARGET_SAMPLE;
}

/* The first repeat opens the slots and is not counted. */
static enum status time_shape(struct fit *f, struct shape *s, struct error *err)
{
    struct samples times = {0};
    enum status st = STATUS_OK;
    double ns = 0;

    for (uint32_t i = 0; !st && i <= f->repeats; i++) {
        step_clear(f->step, ++f->seq_no);
        for (uint32_t slot = 0; slot < s->sequences; slot++) {
            if (i == 0) open_slot(f, slot, s->context + s->rows_each);
            add_segment(f, slot, s);
        }
        st = run_step(f, &ns, err);
        if (!st && i && samples_add(&times, ns))
            st = error_set(err, STATUS_NOMEM, "no memory for times");
    }
    s->ns = samples_percentile(&times, 50);
    samples_fini(&times);
    s->work = (struct device_work){
        .rows = s->sequences * s->rows_each,
        .outputs = s->sequences,
        .kv_tokens = (uint64_t)s->sequences * (s->context + s->rows_each),
        .pairs = s->sequences * ((uint64_t)s->rows_each * s->context +
                                 (uint64_t)s->rows_each * (s->rows_each + 1) / 2)};
    return st;
}

static void add_shape(struct fit *f, uint32_t sequences, uint32_t rows, uint32_t context)
{
    if (sequences > f->batch_max || sequences * rows > f->limits.rows_max ||
        context + rows > f->limits.context_tokens || f->shape_count == SHAPES_MAX)
        return;
    f->shapes[f->shape_count++] =
        (struct shape){.sequences = sequences, .rows_each = rows, .context = context};
}

static enum status measure(struct fit *f, struct error *err)
{
    static const uint32_t powers[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    enum status st = STATUS_OK;

    for (size_t i = 0; i < sizeof powers / sizeof *powers; i++) {
        add_shape(f, powers[i], 1, 16);
        add_shape(f, powers[i], 1, SLOT_TOKENS - BLOCK_TOKENS);
    }
    add_shape(f, 1, 1, 2000);
    add_shape(f, 4, 1, 2000);
    for (uint32_t rows = 16; rows <= f->limits.rows_max; rows *= 2) {
        add_shape(f, 1, rows, 0);
        add_shape(f, 1, rows, 1024);
        add_shape(f, 4, rows / 4, 64);
    }
    for (uint32_t i = 0; !st && i < f->shape_count; i++)
        st = time_shape(f, &f->shapes[i], err);
    return st;
}

/* --- the fit ----------------------------------------------------------------------------------------------------- */

/* What multiplies each unknown of a shape: the weights of the table's points, then outputs, kv_tokens, pairs. */
static void features(const struct device_model *m, const struct shape *s, double x[UNKNOWNS_MAX])
{
    uint32_t n = m->point_count, i = 1;
    double rows = s->work.rows, share;

    memset(x, 0, sizeof(double) * UNKNOWNS_MAX);
    while (i + 1 < n && rows > m->rows[i])
        i++;
    if (n == 1) {
        x[0] = 1;
    } else {
        share = (rows - m->rows[i - 1]) / (m->rows[i] - m->rows[i - 1]);
        x[i - 1] = 1 - share;
        x[i] = share;
    }
    x[n] = s->work.outputs;
    x[n + 1] = (double)s->work.kv_tokens;
    x[n + 2] = (double)s->work.pairs;
}

/* Minimises the sum of ((model - ns) / ns)^2 over unknowns >= 0, one unknown after the other: the problem is convex. */
static void solve(const struct fit *f, struct device_model *m, double w[UNKNOWNS_MAX])
{
    static double x[SHAPES_MAX][UNKNOWNS_MAX];
    double rest[SHAPES_MAX], norm[UNKNOWNS_MAX] = {0};
    uint32_t unknowns = m->point_count + 3;

    for (uint32_t k = 0; k < f->shape_count; k++) {
        features(m, &f->shapes[k], x[k]);
        rest[k] = 1; /* ns / ns, less what the model explains */
        for (uint32_t u = 0; u < unknowns; u++) {
            x[k][u] /= f->shapes[k].ns;
            norm[u] += x[k][u] * x[k][u];
        }
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (uint32_t u = 0; u < unknowns; u++) {
            double slope = 0, next;
            if (norm[u] <= 0) continue;
            for (uint32_t k = 0; k < f->shape_count; k++)
                slope += x[k][u] * rest[k];
            next = w[u] + slope / norm[u];
            if (next < 0) next = 0;
            for (uint32_t k = 0; k < f->shape_count; k++)
                rest[k] -= (next - w[u]) * x[k][u];
            w[u] = next;
        }
}

static void place_points(const struct fit *f, struct device_model *m)
{
    for (uint32_t rows = 1; rows <= f->limits.rows_max && m->point_count < MODEL_POINTS_MAX;
         rows *= 2)
        m->rows[m->point_count++] = rows;
}

static void fit_model(const struct fit *f, struct device_model *m)
{
    double w[UNKNOWNS_MAX] = {0}, worst = 0, sum = 0;
    uint32_t n;

    place_points(f, m);
    n = m->point_count;
    solve(f, m, w);
    memcpy(m->rows_ns, w, n * sizeof *w);
    m->output_ns = w[n];
    m->kv_token_ns = w[n + 1];
    m->pair_ns = w[n + 2];
    for (uint32_t k = 0; k < f->shape_count; k++) {
        const struct shape *s = &f->shapes[k];
        double off = (double)device_model_step_ns(m, &s->work) / s->ns - 1;
        fprintf(stderr, "%4u sequences x %4u rows behind %5u: %10.3f ms, model %+.1f %%\n",
                s->sequences, s->rows_each, s->context, s->ns * 1e-6, off * 100);
        sum += fabs(off);
        if (fabs(off) > worst) worst = fabs(off);
    }
    fprintf(stderr, "mean error %.1f %%, worst %.1f %%\n", sum / f->shape_count * 100, worst * 100);
}

static enum status write_model(const struct fit *f, const struct device_model *m, struct error *err)
{
    json_t *page = device_model_json(m);
    FILE *to = strcmp(f->out_path, "-") ? fopen(f->out_path, "we") : stdout;
    enum status st = STATUS_OK;

    if (!page || !to || json_dumpf(page, to, JSON_INDENT(1) | JSON_REAL_PRECISION(8)) ||
        fputc('\n', to) < 0)
        st = error_set(err, STATUS_IO, "%s could not be written", f->out_path);
    if (to && to != stdout) fclose(to);
    json_decref(page);
    return st;
}

static int parse(int argc, char **argv, struct fit *f)
{
    const struct bench_arg args[] = {
        {"--model", ARG_TEXT, &f->model_path, 0, 0, "GGUF file or folder"},
        {"--device", ARG_TEXT, &f->device_name, 0, 0, "cpu or cuda"},
        {"--threads", ARG_COUNT, &f->threads, 0, 1024, "CPU; 0: all"},
        {"--cpu-numerics", ARG_TEXT, &f->numerics, 0, 0, "fast or exact"},
        {"--max-num-seqs", ARG_COUNT, &f->batch_max, 1, 4096, "largest batch that is timed"},
        {"--max-num-batched-tokens", ARG_COUNT, &f->rows_max, 16, 65536,
         "longest chunk that is timed"},
        {"--kv-tokens", ARG_COUNT, &f->kv_tokens, 16, 2147483647,
         "written to the file: the pool of `inferd plan`"},
        {"--repeats", ARG_COUNT, &f->repeats, 1, 1000, "of each shape; the median counts"},
        {"--out", ARG_TEXT, &f->out_path, 0, 0, "file; - : standard output"},
    };

    return bench_args_parse("bench fit",
                            "\nTimes a device and fits a file for `inferd simulate --device`.\n",
                            args, sizeof args / sizeof *args, argc, argv);
}

int bench_fit_main(int argc, char **argv)
{
    struct fit f = {.device_name = "cpu",
                    .numerics = "fast",
                    .out_path = "-",
                    .batch_max = 64,
                    .rows_max = 512,
                    .kv_tokens = 23296,
                    .repeats = 7};
    /* The host's share, as bench/engine_host_time and the null device tell it. */
    struct device_model m = {.block_tokens = BLOCK_TOKENS,
                             .host_ns = 30000,
                             .host_seq_ns = 500,
                             .request_ns = 300000,
                             .reply_ns = 100000};
    struct error err = {0};
    int wrong = parse(argc, argv, &f);
    enum status st;

    if (wrong >= 0) return wrong;
    if (!f.model_path) {
        fprintf(stderr, "inferd: bench fit: --model is needed (--help)\n");
        return 2;
    }
    st = open_device(&f, &err);
    if (!st) st = measure(&f, &err);
    if (!st) {
        snprintf(m.name, sizeof m.name, "%.40s: %.48s", device_description(f.device),
                 model_description(f.model));
        m.kv_tokens = f.kv_tokens;
        m.max_model_len = f.plan->context_tokens;
        fit_model(&f, &m);
        st = write_model(&f, &m, &err);
    }
    if (st) fprintf(stderr, "inferd: bench fit: %s\n", err.message);
    close_device(&f);
    return st != STATUS_OK;
}
