/* device_bench.c - see device_bench.h. One sequence (or --batch of them) in slot 0.., greedy, blocks given out in order. */
#include "bench/device_bench.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/shown.h"
#include "device/device.h"
#include "formats/weights.h"
#include "model/model.h"

enum { REPEATS_MAX = 101, NAME_MAX_BYTES = 200 };

struct options {
    const char *model;
    struct device_options device;
    uint32_t prompt, decode, depth, batch, repeats, warmup;
};

struct bench {
    struct options o;
    struct weights *weights;
    struct model *model;
    struct device *device;
    struct device_limits limits;
    struct step *step;
    uint64_t seq_no;
    double open_s; /* weights_open .. device_compile */
};

/* --- one step --- */

static void give_blocks(struct bench *b, uint32_t slot)
{
    const struct plan *plan = model_plan(b->model);
    for (uint32_t g = 0; g < plan->group_count; g++) {
        uint32_t per_slot = b->limits.kv_blocks[g] / b->o.batch;
        for (uint32_t i = 0; i < per_slot; i++)
            step_tables(b->step)[b->step->table_count++] =
                (struct step_table_change){slot, g, i, slot * per_slot + i};
    }
}

static void open_slots(struct bench *b)
{
    for (uint32_t slot = 0; slot < b->o.batch; slot++) {
        step_opens(b->step)[b->step->open_count++] =
            (struct step_open){.slot = slot, .top_p = 1, .repetition_penalty = 1};
        give_blocks(b, slot);
    }
}

/* Rows of slot `slot` behind `context` tokens; the last one wants logits if `sample`. tokens NULL: the slot's own last. */
static void add_segment(struct bench *b, uint32_t slot, uint32_t context, uint32_t rows,
                        const int32_t *tokens, bool sample)
{
    struct step *s = b->step;

    step_segments(s)[s->segment_count++] = (struct step_segment){
        .slot = slot,
        .first_row = s->row_count,
        .rows = rows,
        .context_len = context,
        .logits_first = sample ? rows - 1 : 0,
        .logits_count = sample,
        .output_first = s->output_count,
    };
    for (uint32_t r = 0; r < rows; r++)
        step_tokens(s)[s->row_count++] = tokens ? tokens[r] : TOKEN_OF(slot, 0);
    if (sample) step_targets(s)[s->output_count++] = TARGET_SAMPLE;
}

static enum status run_step(struct bench *b, struct error *err)
{
    const struct step_result *result;
    enum status st = device_submit_body(b->device, b->step);

    if (!st) st = device_submit_sample(b->device, b->step, NULL);
    if (!st) st = device_wait(b->device, b->step->seq_no, INT64_MAX, &result);
    if (st) return error_set(err, st, "a step could not be run: %s", status_name(st));
    st = result->status;
    if (st) *err = result->error;
    device_release(b->device, b->step->seq_no);
    return st;
}

static int32_t prompt_token(const struct bench *b, uint32_t i)
{
    return (int32_t)(10 + i * 37u % (model_plan(b->model)->vocab_tokens - 20));
}

/* --- a repeat --- */

/* `count` tokens in chunks of rows_max, after opening the slots anew. Each slot of the batch in turn. */
static enum status fill(struct bench *b, uint32_t count, struct error *err)
{
    enum status st = STATUS_OK;
    int32_t *tokens = malloc(sizeof *tokens * b->limits.rows_max);

    if (!tokens) return error_set(err, STATUS_NOMEM, "no memory for a prompt");
    for (uint32_t slot = 0; !st && slot < b->o.batch; slot++)
        for (uint32_t at = 0, n; !st && at < count; at += n) {
            n = count - at < b->limits.rows_max ? count - at : b->limits.rows_max;
            for (uint32_t i = 0; i < n; i++)
                tokens[i] = prompt_token(b, at + i + slot);
            step_clear(b->step, ++b->seq_no);
            if (slot == 0 && at == 0) open_slots(b);
            add_segment(b, slot, at, n, tokens, at + n == count);
            st = run_step(b, err);
        }
    free(tokens);
    return st;
}

static enum status decode(struct bench *b, uint32_t depth, struct error *err)
{
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < b->o.decode; i++) {
        step_clear(b->step, ++b->seq_no);
        for (uint32_t slot = 0; slot < b->o.batch; slot++)
            add_segment(b, slot, depth + i, 1, NULL, true);
        st = run_step(b, err);
    }
    return st;
}

/* Tokens per second of one prompt and of the decode behind a context of --depth. */
static enum status repeat(struct bench *b, double *prompt, double *decoded, struct error *err)
{
    int64_t start = clock_mono_ns();
    enum status st = STATUS_OK;

    *prompt = *decoded = 0;
    if (b->o.prompt) {
        st = fill(b, b->o.prompt, err);
        *prompt = (double)b->o.prompt * b->o.batch / ((double)(clock_mono_ns() - start) * 1e-9);
    }
    if (st || !b->o.decode) return st;
    st = fill(b, b->o.depth, err);
    start = clock_mono_ns();
    if (!st) st = decode(b, b->o.depth, err);
    *decoded = (double)b->o.decode * b->o.batch / ((double)(clock_mono_ns() - start) * 1e-9);
    return st;
}

/* --- open, close --- */

static enum status open_device(struct bench *b, struct error *err)
{
    const struct plan *plan = model_plan(b->model);
    const uint32_t longest =
        b->o.prompt > b->o.depth + b->o.decode ? b->o.prompt : b->o.depth + b->o.decode;
    enum status st = device_open(&b->o.device, &b->device, err);

    if (st) return st;
    if (longest > plan->context_tokens)
        return error_set(err, STATUS_INVALID, "%u tokens; the model has a context of %u", longest,
                         plan->context_tokens);
    b->limits = (struct device_limits){.slots_max = b->o.batch,
                                       .rows_max = b->o.batch > 512 ? b->o.batch : 512,
                                       .logits_max = b->o.batch,
                                       .steps_inflight = 1,
                                       .context_tokens = longest};
    for (uint32_t g = 0; g < plan->group_count; g++) {
        uint32_t tokens = plan->groups[g].block_tokens;
        b->limits.kv_blocks[g] = b->o.batch * ((longest + tokens - 1) / tokens);
    }
    st = device_compile(b->device, plan, &b->limits, err);
    if (st) return st;
    size_t bytes = (step_bytes(plan, &b->limits) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (!memory) return error_set(err, STATUS_NOMEM, "no memory for a step");
    memset(memory, 0, bytes);
    b->step = step_init(memory, plan, &b->limits);
    return STATUS_OK;
}

static enum status open_all(struct bench *b, struct error *err)
{
    const int64_t start = clock_mono_ns();
    enum status st = weights_open(b->o.model, 0, &b->weights, err);

    if (!st) st = model_open(b->weights, &(struct model_options){0}, &b->model, err);
    if (!st) st = open_device(b, err);
    b->open_s = (double)(clock_mono_ns() - start) * 1e-9;
    return st;
}

static void close_all(struct bench *b)
{
    device_close(b->device);
    model_close(b->model);
    weights_close(b->weights);
    free(b->step);
}

/* --- report --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_rates(const char *name, double *rates, uint32_t count)
{
    printf(", \"%s\": [", name);
    for (uint32_t i = 0; i < count; i++)
        printf("%s%.1f", i ? ", " : "", rates[i]);
    qsort(rates, count, sizeof *rates, by_value);
    printf("], \"%s_median\": %.1f", name, rates[count / 2]);
}

static enum status measure(struct bench *b, struct error *err)
{
    double prompt[REPEATS_MAX], decoded[REPEATS_MAX];
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < b->o.warmup; i++)
        st = repeat(b, &prompt[0], &decoded[0], err);
    for (uint32_t i = 0; !st && i < b->o.repeats; i++)
        st = repeat(b, &prompt[i], &decoded[i], err);
    if (st) return st;
    printf("{\"device\": \"%s\", \"numerics\": \"%s\", \"open_s\": %.3f, \"prompt\": %u, "
           "\"decode\": %u, \"depth\": %u, \"batch\": %u",
           device_description(b->device), b->o.device.numerics == CPU_FAST ? "fast" : "exact",
           b->open_s, b->o.prompt, b->o.decode, b->o.depth, b->o.batch);
    print_rates("prompt_tok_s", prompt, b->o.repeats);
    print_rates("decode_tok_s", decoded, b->o.repeats);
    printf("}\n");
    return STATUS_OK;
}

/* --- options --- */

static const char usage[] =
    "usage: inferd bench device MODEL [options]\n"
    "  --device cpu|cuda       default cpu\n"
    "  --threads N             CPU threads, default all\n"
    "  --cpu-numerics fast|exact\n"
    "  --isa NAME              CPU instruction set: generic, avx2, avx512, avx512-vnni, amx\n"
    "  --prompt N              tokens of the prompt, default 512, 0: none\n"
    "  --decode N              tokens to decode, default 128, 0: none\n"
    "  --depth N               tokens before the decoded ones, default 1\n"
    "  --batch N               sequences at once, default 1\n"
    "  --repeats N --warmup N  default 5 and 1; the median is printed beside each\n";

static bool parse_count(const char *text, uint32_t low, uint32_t high, uint32_t *out)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || value < low || value > high) return false;
    *out = (uint32_t)value;
    return true;
}

static bool parse_choice(const char *text, const char *first, const char *second, int *out)
{
    if (strcmp(text, first) != 0 && strcmp(text, second) != 0) return false;
    *out = strcmp(text, second) == 0;
    return true;
}

static bool parse_option(struct options *o, const char *name, const char *value)
{
    int second;

    if (!strcmp(name, "--threads")) return parse_count(value, 1, 1024, &o->device.threads);
    if (!strcmp(name, "--prompt")) return parse_count(value, 0, 1 << 20, &o->prompt);
    if (!strcmp(name, "--decode")) return parse_count(value, 0, 1 << 20, &o->decode);
    if (!strcmp(name, "--depth")) return parse_count(value, 1, 1 << 20, &o->depth);
    if (!strcmp(name, "--batch")) return parse_count(value, 1, 1024, &o->batch);
    if (!strcmp(name, "--repeats")) return parse_count(value, 1, REPEATS_MAX, &o->repeats);
    if (!strcmp(name, "--warmup")) return parse_count(value, 0, 100, &o->warmup);
    if (!strcmp(name, "--isa")) return (o->device.isa = value) != NULL;
    if (!strcmp(name, "--cpu-numerics") && parse_choice(value, "exact", "fast", &second)) {
        o->device.numerics = second ? CPU_FAST : CPU_EXACT;
        return true;
    }
    if (!strcmp(name, "--device") && parse_choice(value, "cpu", "cuda", &second)) {
        o->device.kind = second ? DEVICE_CUDA : DEVICE_CPU;
        return true;
    }
    return false;
}

static bool parse(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-' && !o->model) {
            o->model = argv[i];
        } else if (i + 1 == argc || !parse_option(o, argv[i], argv[i + 1])) {
            fprintf(stderr, "bench device: %s is no option, or its value is missing or wrong\n%s",
                    argv[i], usage);
            return false;
        } else {
            i++;
        }
    }
    if (!o->model) fputs(usage, stderr);
    return o->model != NULL;
}

int bench_device_main(int argc, char **argv)
{
    struct bench b = {
        .o = {.prompt = 512,
              .decode = 128,
              .depth = 1,
              .batch = 1,
              .repeats = 5,
              .warmup = 1,
              .device = {.kind = DEVICE_CPU, .numerics = CPU_FAST, .compute_dtype = DTYPE_F32}}};
    struct error err = {0};
    enum status st;

    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return fputs(usage, stdout) < 0;
    if (!parse(argc, argv, &b.o)) return 2;
    st = open_all(&b, &err);
    if (!st) st = measure(&b, &err);
    if (st) shown_error("bench device", &err);
    close_all(&b);
    return st ? 1 : 0;
}
