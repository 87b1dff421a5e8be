/* device_logits.c - a program: the logits of a text under a model, written to a file for a script to compare.
 *
 *   device-logits MODEL TOKENS OUT [--cpu-numerics fast|exact] [--threads N] [--window N]
 * TOKENS: int32 ids, back to back. OUT: float32 [tokens, vocabulary rows], a row after each id. Each window of N ids (512)
 * starts with an empty context. Prints one JSON object; exit status as bench_device_main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/shown.h"
#include "device/device.h"
#include "formats/weights.h"
#include "model/model.h"

enum { CHUNK = 64, WINDOW_MAX = 4096 };
static const uint64_t tokens_bytes_max = 16u << 20;

struct run {
    const char *model_path, *tokens_path, *out_path;
    struct device_options device_options;
    uint32_t window;
    int32_t *tokens; /* owned */
    uint32_t token_count;
    struct weights *weights;
    struct model *model;
    struct device *device;
    struct device_limits limits;
    struct step *step; /* owned */
    uint64_t seq_no;
    FILE *out;
};

static enum status read_tokens(struct run *r, struct error *err)
{
    char *bytes = NULL;
    uint64_t size;
    enum status st = file_read(r->tokens_path, tokens_bytes_max, &bytes, &size, err);

    if (st) return st;
    r->tokens = (int32_t *)(void *)bytes; /* as malloc aligned it */
    r->token_count = (uint32_t)(size / sizeof *r->tokens);
    for (uint32_t i = 0; i < r->token_count; i++)
        if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= model_plan(r->model)->vocab_tokens)
            return error_set(err, STATUS_INVALID, "%s: id %u is %d; 0 to %u is right",
                             r->tokens_path, i, r->tokens[i],
                             model_plan(r->model)->vocab_tokens - 1);
    return STATUS_OK;
}

static enum status open_device(struct run *r, struct error *err)
{
    const struct plan *plan = model_plan(r->model);
    enum status st = device_open(&r->device_options, &r->device, err);

    if (st) return st;
    r->limits = (struct device_limits){.slots_max = 1,
                                       .rows_max = CHUNK,
                                       .logits_max = CHUNK,
                                       .steps_inflight = 1,
                                       .context_tokens = r->window};
    for (uint32_t g = 0; g < plan->group_count; g++)
        r->limits.kv_blocks[g] = (r->window - 1) / plan->groups[g].block_tokens + 1;
    st = device_compile(r->device, plan, &r->limits, err);
    if (st) return st;
    size_t bytes = (step_bytes(plan, &r->limits) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (!memory) return error_set(err, STATUS_NOMEM, "no memory for a step");
    memset(memory, 0, bytes);
    r->step = step_init(memory, plan, &r->limits);
    return STATUS_OK;
}

static void open_slot(struct run *r)
{
    step_opens(r->step)[r->step->open_count++] =
        (struct step_open){.top_p = 1, .repetition_penalty = 1};
    for (uint32_t g = 0; g < model_plan(r->model)->group_count; g++)
        for (uint32_t i = 0; i < r->limits.kv_blocks[g]; i++)
            step_tables(r->step)[r->step->table_count++] =
                (struct step_table_change){.group = g, .index = i, .block = i};
}

/* Rows `first` .. of the text, behind `context` of its window, and their logits to the file. */
static enum status run_chunk(struct run *r, uint32_t first, uint32_t context, uint32_t rows,
                             struct error *err)
{
    const struct step_result *result;
    struct step *s = r->step;
    uint64_t values = (uint64_t)rows * model_plan(r->model)->vocab_rows;
    enum status st;

    step_clear(s, ++r->seq_no);
    s->flags = STEP_KEEP_LOGITS;
    if (context == 0) open_slot(r);
    step_segments(s)[s->segment_count++] =
        (struct step_segment){.rows = rows, .context_len = context, .logits_count = rows};
    memcpy(step_tokens(s), r->tokens + first, rows * sizeof *r->tokens);
    s->row_count = s->output_count = rows;
    for (uint32_t i = 0; i < rows; i++)
        step_targets(s)[i] = TARGET_SAMPLE;
    st = device_submit_body(r->device, s);
    if (!st) st = device_submit_sample(r->device, s, NULL);
    if (!st) st = device_wait(r->device, s->seq_no, INT64_MAX, &result);
    if (st) return error_set(err, st, "a step could not be run: %s", status_name(st));
    st = result->status;
    if (st) *err = result->error;
    if (!st && fwrite(result->logits, sizeof(float), values, r->out) != values)
        st = error_set(err, STATUS_IO, "%s: cannot be written", r->out_path);
    device_release(r->device, s->seq_no);
    return st;
}

static enum status run_all(struct run *r, struct error *err)
{
    enum status st = weights_open(r->model_path, 0, &r->weights, err);

    if (!st) st = model_open(r->weights, &(struct model_options){0}, &r->model, err);
    if (!st) st = read_tokens(r, err);
    if (!st) st = open_device(r, err);
    if (st) return st;
    r->out = fopen(r->out_path, "wbe");
    if (!r->out) return error_set(err, STATUS_IO, "%s: cannot be made", r->out_path);
    for (uint32_t at = 0, n; !st && at < r->token_count; at += n) {
        uint32_t context = at % r->window, left = r->token_count - at;
        n = r->window - context < CHUNK ? r->window - context : CHUNK;
        if (n > left) n = left;
        st = run_chunk(r, at, context, n, err);
    }
    if (fclose(r->out) && !st) st = error_set(err, STATUS_IO, "%s: cannot be written", r->out_path);
    if (!st)
        printf("{\"device\": \"%s\", \"rows\": %u, \"vocabulary\": %u}\n",
               device_description(r->device), r->token_count, model_plan(r->model)->vocab_rows);
    return st;
}

static bool parse(int argc, char **argv, struct run *r)
{
    const char **plain[] = {&r->model_path, &r->tokens_path, &r->out_path};
    uint32_t plain_count = 0;

    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (argv[i][0] != '-' && plain_count < 3)
            *plain[plain_count++] = argv[i];
        else if (more && !strcmp(argv[i], "--threads"))
            r->device_options.threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (more && !strcmp(argv[i], "--window"))
            r->window = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (more && !strcmp(argv[i], "--cpu-numerics"))
            r->device_options.numerics = strcmp(argv[++i], "exact") ? CPU_FAST : CPU_EXACT;
        else
            return false;
    }
    return plain_count == 3 && r->window >= 1 && r->window <= WINDOW_MAX;
}

int main(int argc, char **argv)
{
    struct run r = {.window = 512, .device_options = {.kind = DEVICE_CPU, .numerics = CPU_FAST}};
    struct error err = {0};
    enum status st;

    if (!parse(argc, argv, &r)) {
        fprintf(stderr,
                "usage: device-logits MODEL TOKENS OUT [--cpu-numerics fast|exact] "
                "[--threads N] [--window 1..%d]\n",
                WINDOW_MAX);
        return 2;
    }
    st = run_all(&r, &err);
    if (st) shown_error("device-logits", &err);
    device_close(r.device);
    model_close(r.model);
    weights_close(r.weights);
    free(r.step);
    free(r.tokens);
    return st ? 1 : 0;
}
