#include "bench/device_fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/shown.h"
#include "bench/bench_args.h"
#include "bench/device_model.h"
#include "bench/fit_solve.h"
#include "bench/json_page.h"
#include "bench/samples.h"
#include "bench/step_log.h"
#include "device/device_memory.h"
#include "formats/weights.h"
#include "model/model.h"
#include "sched/cost_model.h"

enum { SHAPES_MAX = 64, SLOT_TOKENS = 256, BLOCK_TOKENS = 16 };

struct shape {
    uint32_t sequences, rows_each, context;
    struct samples times; /* owned, ns */
};

struct fit {
    const char *model_path, *device_name, *numerics, *out_path, *steps_path, *log_path;
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
    for (uint32_t i = 0; i < f->shape_count; i++)
        samples_fini(&f->shapes[i].times);
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

/* Twice: the first one opens the slots, and only the second is counted. */
static enum status time_shape(struct fit *f, struct shape *s, bool counts, struct error *err)
{
    enum status st = STATUS_OK;
    double ns = 0;

    for (int i = 0; !st && i < 2; i++) {
        step_clear(f->step, ++f->seq_no);
        for (uint32_t slot = 0; slot < s->sequences; slot++) {
            if (i == 0) open_slot(f, slot, s->context + s->rows_each);
            add_segment(f, slot, s);
        }
        st = run_step(f, &ns, err);
    }
    if (!st && counts && samples_add(&s->times, ns))
        st = error_set(err, STATUS_NOMEM, "no memory for times");
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
    /* All shapes in turns, so that a machine's moods are spread over them; the first turn warms up. */
    for (uint32_t round = 0; !st && round <= f->repeats; round++)
        for (uint32_t i = 0; !st && i < f->shape_count; i++)
            st = time_shape(f, &f->shapes[i], round > 0, err);
    return st;
}

/* --- the fit ----------------------------------------------------------------------------------------------------- */

static struct fit_sample sample_of(const struct shape *s)
{
    return (struct fit_sample){
        .work = {.rows = s->sequences * s->rows_each,
                 .outputs = s->sequences,
                 .kv_tokens = (uint64_t)s->sequences * (s->context + s->rows_each),
                 .pairs = s->sequences * cost_pairs(s->context, s->rows_each)},
        .ns = samples_percentile(&s->times, 50)};
}

static enum status fit_shapes(const struct fit *f, struct device_model *m, struct error *err)
{
    struct fit_sample samples[SHAPES_MAX];
    struct fit_quality quality;
    enum status st;

    for (uint32_t k = 0; k < f->shape_count; k++)
        samples[k] = sample_of(&f->shapes[k]);
    st = fit_solve(samples, f->shape_count, m, &quality, err);
    if (st) return st;
    for (uint32_t k = 0; k < f->shape_count; k++) {
        const struct shape *s = &f->shapes[k];
        double told = (double)device_model_step_ns(m, &samples[k].work);
        fprintf(stderr, "%4u sequences x %4u rows behind %5u: %10.3f ms, model %+.1f %%\n",
                s->sequences, s->rows_each, s->context, samples[k].ns * 1e-6,
                (told / samples[k].ns - 1) * 100);
    }
    fprintf(stderr, "mean error %.1f %%, worst %.1f %%\n", quality.mean * 100, quality.worst * 100);
    return st;
}

static enum status write_model(const struct fit *f, const struct device_model *m, struct error *err)
{
    json_t *page = device_model_json(m);
    enum status st = json_page_write(page, f->out_path, 1, 8, err);

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
         "longest chunk that is timed; 0: as serve has it, 512 and on a GPU 2048"},
        {"--kv-tokens", ARG_COUNT, &f->kv_tokens, 16, 2147483647,
         "written to the file: the pool of `inferd plan`"},
        {"--repeats", ARG_COUNT, &f->repeats, 1, 1000, "of each shape; the median counts"},
        {"--steps", ARG_TEXT, &f->steps_path, 0, 0,
         "a daemon's own steps instead (GET /admin/steps on its --admin-socket); no model"},
        {"--log", ARG_TEXT, &f->log_path, 0, 0,
         "the daemon's log: what the front end adds to a request"},
        {"--out", ARG_TEXT, &f->out_path, 0, 0, "file; - : standard output"},
    };

    return bench_args_parse("bench fit",
                            "\nTimes a device and fits a file for `inferd simulate --device`.\n",
                            args, sizeof args / sizeof *args, argc, argv);
}

static enum status fit_device(struct fit *f, struct device_model *m, struct error *err)
{
    enum status st = open_device(f, err);

    if (!st) st = measure(f, err);
    if (st) return st;
    snprintf(m->name, sizeof m->name, "%.40s: %.48s", device_description(f->device),
             model_description(f->model));
    m->kv_tokens = f->kv_tokens;
    m->max_model_len = f->plan->context_tokens;
    return fit_shapes(f, m, err);
}

static enum status fit_steps(const struct fit *f, struct device_model *m, struct error *err)
{
    struct fit_quality quality;
    struct step_log log;
    enum status st = step_log_read(f->steps_path, &log, err);

    if (st) return st;
    snprintf(m->name, sizeof m->name, "the steps of %.64s", f->steps_path);
    m->kv_tokens = f->kv_tokens;
    m->max_model_len = MODEL_LEN_MAX;
    m->host_ns += log.wake_ns;
    st = fit_solve(log.samples, log.count, m, &quality, err);
    if (!st)
        fprintf(stderr, "%u steps, mean error of one %.1f %%\n", log.count, quality.mean * 100);
    step_log_fini(&log);
    return st;
}

/* One of two words. */
static bool is_either(const char *option, const char *given, const char *one, const char *other)
{
    if (strcmp(given, one) == 0 || strcmp(given, other) == 0) return true;
    fprintf(stderr, "inferd: bench fit: %s is %.200s; it must be %s or %s\n", option, given, one,
            other);
    return false;
}

int bench_fit_main(int argc, char **argv)
{
    struct fit f = {.device_name = "cpu",
                    .numerics = "fast",
                    .out_path = "-",
                    .batch_max = 64,
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
    if (!f.model_path && !f.steps_path) {
        fprintf(stderr, "inferd: bench fit: --model or --steps is needed (--help)\n");
        return 2;
    }
    if (!is_either("--device", f.device_name, "cpu", "cuda") ||
        !is_either("--cpu-numerics", f.numerics, "fast", "exact"))
        return 2;
    if (!f.rows_max) f.rows_max = strcmp(f.device_name, "cuda") == 0 ? 2048 : 512;
    st = f.steps_path ? fit_steps(&f, &m, &err) : fit_device(&f, &m, &err);
    m.gpu = strcmp(f.device_name, "cuda") == 0;
    if (!st && f.log_path) st = front_from_log(f.log_path, &m.request_ns, &m.reply_ns, &err);
    if (!st) st = write_model(&f, &m, &err);
    if (st) shown_error("bench fit", &err);
    close_device(&f);
    return st != STATUS_OK;
}
