#include "bench/cuda_bench_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/shown.h"
#include "bench/bench_args.h"
#include "model/model.h"

/* Far above every model's context, and low enough that sums of a run's tokens stay in 32 bits. */
enum { TOKENS_MAX = 1 << 24, STEPS_MAX = 1 << 20, CHUNK_MAX = 65536 };

static const struct {
    const char *name, *about;
} programs[] = {
    [CUDA_BENCH_LIMITS] = {"limits", "This GPU's read, copy and bf16 product rates."},
    [CUDA_BENCH_KERNELS] = {"kernels",
                            "Each kernel over the shapes of well-known models, cold, in a graph."},
    [CUDA_BENCH_DECODE] = {"decode", "Whole steps of a model with made-up weights."},
    [CUDA_BENCH_BREAKDOWN] = {"breakdown", "As decode, and where a step's time goes by kind of "
                                           "stage."},
    [CUDA_BENCH_GRAPHS] = {"graphs", "Steps as graphs and launched one by one, by batch size."},
    [CUDA_BENCH_PREFILL] = {"prefill", "Time to the first token of one prompt."},
    [CUDA_BENCH_LOAD] = {"load", "A model's files to the GPU, beside its disk (or page cache) and "
                                 "its bus."},
};
enum { PROGRAMS = sizeof programs / sizeof *programs, ARGS_MAX = 16 };

/* Sets of subcommands, a bit each. */
enum {
    OF_KERNELS = 1 << CUDA_BENCH_KERNELS,
    OF_DECODE = 1 << CUDA_BENCH_DECODE | 1 << CUDA_BENCH_BREAKDOWN,
    OF_GRAPHS = 1 << CUDA_BENCH_GRAPHS,
    OF_PREFILL = 1 << CUDA_BENCH_PREFILL,
    OF_LOAD = 1 << CUDA_BENCH_LOAD,
    OF_STEPS = OF_DECODE | OF_GRAPHS,
    OF_DUMMY = OF_STEPS | OF_PREFILL, /* made-up weights */
};

/* The options of o->what into args; returns how many. */
static uint32_t args_of(struct cuda_bench_options *o, struct bench_arg args[ARGS_MAX])
{
    const struct {
        unsigned of;
        struct bench_arg arg;
    } all[] = {
        {OF_DUMMY,
         {"--model", ARG_TEXT, &o->model, 0, 0, "folder with a config.json; weights are made up"}},
        {OF_LOAD, {"--model", ARG_TEXT, &o->model, 0, 0, "folder or GGUF file with its weights"}},
        {OF_KERNELS,
         {"--only", ARG_TEXT, &o->only, 0, 0,
          "part of a name; \"cut ...\": every way of cutting medium products"}},
        {OF_DECODE, {"--batch", ARG_COUNT, &o->batch, 1, CUDA_BENCH_ROWS_MAX, "sequences at once"}},
        {OF_GRAPHS, {"--batches", ARG_TEXT, &o->batches, 0, 0, "numbers of sequences at once"}},
        {OF_STEPS,
         {"--context", ARG_COUNT, &o->context, 1, TOKENS_MAX, "tokens of each before that"}},
        {OF_DECODE, {"--steps", ARG_COUNT, &o->steps, 1, STEPS_MAX, "timed at once, five times"}},
        {OF_GRAPHS,
         {"--steps", ARG_COUNT, &o->steps, 1, STEPS_MAX, "timed at once, five times each way"}},
        {OF_STEPS,
         {"--limit", ARG_COUNT, &o->limit, 0, TOKENS_MAX,
          "longest sequence that the device is made for; 0: what the run needs"}},
        {OF_PREFILL, {"--prompt", ARG_COUNT, &o->prompt, 1, TOKENS_MAX, "tokens"}},
        {OF_PREFILL,
         {"--repeats", ARG_COUNT, &o->repeats, 1, CUDA_BENCH_REPEATS_MAX, "the median counts"}},
        {OF_PREFILL, {"--rows", ARG_COUNT, &o->rows_max, 1, CHUNK_MAX, "of a chunk of it"}},
        {OF_PREFILL, {"--idle", ARG_COUNT, &o->idle_ms, 0, 10000, "ms of rest before each"}},
        {OF_DECODE, {"--eager", ARG_SWITCH, &o->eager, 0, 0, "1: steps launched kernel by kernel"}},
        {OF_STEPS, {"--chain", ARG_SWITCH, &o->chain, 0, 0, "0: never all layers in one launch"}},
        {OF_KERNELS | OF_DUMMY, {"--f16", ARG_SWITCH, &o->f16, 0, 0, "1: f16 instead of bf16"}},
        {OF_LOAD,
         {"--cold", ARG_SWITCH, &o->cold, 0, 0, "1: the files leave the page cache first"}},
    };
    uint32_t count = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].of & 1u << o->what) args[count++] = all[i].arg;
    return count;
}

static void list_programs(FILE *to)
{
    fprintf(to, "usage (--help of each lists its options):\n");
    for (int i = 0; i < PROGRAMS; i++)
        fprintf(to, "  inferd bench %-10s %s\n", programs[i].name, programs[i].about);
}

/* -1 to go on: o->what and o->name are set. */
static int find_program(int argc, char **argv, struct cuda_bench_options *o)
{
    const char *name = argc > 0 ? argv[0] : "";
    bool help = !strcmp(name, "--help") || !strcmp(name, "-h");
    char text[64];

    for (int i = 0; i < PROGRAMS; i++)
        if (!strcmp(name, programs[i].name)) {
            o->what = (enum cuda_bench)i, o->name = programs[i].name;
            return -1;
        }
    if (!help && *name)
        fprintf(stderr, "inferd: there is no benchmark '%s' of a GPU\n",
                shown(slice_str(name), text, sizeof text));
    list_programs(help ? stdout : stderr);
    return help ? 0 : 2;
}

static int wrong(const struct cuda_bench_options *o, const char *sentence)
{
    fprintf(stderr, "inferd: bench %s: %s\n", o->name, sentence);
    return 2;
}

/* "1,8,64" to numbers. False: it is no such list. */
static bool read_batches(struct cuda_bench_options *o)
{
    const char *at = o->batches;

    for (o->batch_count = 0; o->batch_count < CUDA_BENCH_BATCHES_MAX; at++) {
        char *end;
        unsigned long n = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9' || n < 1 || n > CUDA_BENCH_ROWS_MAX) return false;
        o->batch_list[o->batch_count++] = (uint32_t)n;
        if (!*end) return true;
        if (*end != ',') return false;
        at = end;
    }
    return false;
}

/* What options say together. -1 to go on. */
static int check_together(struct cuda_bench_options *o)
{
    char text[64], sentence[256];
    const bool model = o->model && *o->model;

    if (o->what == CUDA_BENCH_LOAD && !model)
        return wrong(o, "--model is missing; a folder or GGUF file with its weights is right");
    if (OF_DUMMY & 1u << o->what && !model)
        return wrong(o, "--model is missing; a folder with a config.json is right, as "
                        "configs/models/Llama-3-8B");
    if (o->what == CUDA_BENCH_GRAPHS && !read_batches(o)) {
        snprintf(sentence, sizeof sentence,
                 "--batches is '%s'; it must be 1 to %d whole numbers from 1 to %d with commas "
                 "between, as 1,8,64",
                 shown(slice_str(o->batches), text, sizeof text), CUDA_BENCH_BATCHES_MAX,
                 CUDA_BENCH_ROWS_MAX);
        return wrong(o, sentence);
    }
    if (o->limit && o->limit < cuda_bench_tokens(o)) {
        snprintf(sentence, sizeof sentence,
                 "--limit is %u; it must be 0 or at least the %llu tokens that this run needs",
                 o->limit, (unsigned long long)cuda_bench_tokens(o));
        return wrong(o, sentence);
    }
    return -1;
}

/* --- the model's own limits --- */

/* Times that --steps steps follow one another. */
static uint32_t sets_of(const struct cuda_bench_options *o)
{
    return OF_DECODE & 1u << o->what ? CUDA_BENCH_SETS : 1;
}

/* Steps that follow one another behind --context. */
static uint64_t steps_behind(const struct cuda_bench_options *o)
{
    if (sets_of(o) > 1) return (uint64_t)sets_of(o) * o->steps;
    return o->steps > CUDA_BENCH_WARM_UP ? o->steps : CUDA_BENCH_WARM_UP;
}

uint64_t cuda_bench_tokens(const struct cuda_bench_options *o)
{
    if (o->what == CUDA_BENCH_PREFILL) return o->prompt;
    return OF_STEPS & 1u << o->what ? o->context + steps_behind(o) : 0;
}

/* Too many steps whatever the context is, or behind this one. */
static enum status too_many_steps(const struct cuda_bench_options *o, uint32_t context_tokens,
                                  struct error *err)
{
    uint32_t most = o->context < context_tokens ? (context_tokens - o->context) / sets_of(o) : 0;

    if (!most) most = (context_tokens - 1) / sets_of(o);
    return error_set(err, STATUS_LIMIT,
                     "context %u and %llu steps are more than this model's %u tokens: --steps at "
                     "most %u",
                     o->context, (unsigned long long)steps_behind(o), context_tokens, most);
}

enum status cuda_bench_fits(const struct cuda_bench_options *o, uint32_t context_tokens,
                            struct error *err)
{
    uint64_t steps = steps_behind(o);

    if (o->limit > context_tokens)
        return error_set(err, STATUS_LIMIT, "--limit %u is more than this model's %u tokens",
                         o->limit, context_tokens);
    if (cuda_bench_tokens(o) <= context_tokens) return STATUS_OK;
    if (o->what == CUDA_BENCH_PREFILL)
        return error_set(err, STATUS_LIMIT, "--prompt %u is more than this model's %u tokens",
                         o->prompt, context_tokens);
    if (steps >= context_tokens) return too_many_steps(o, context_tokens, err);
    return error_set(err, STATUS_LIMIT,
                     "context %u and %llu steps are more than this model's %u tokens: --context at "
                     "most %llu",
                     o->context, (unsigned long long)steps, context_tokens,
                     (unsigned long long)(context_tokens - steps));
}

static enum status check_model(const struct cuda_bench_options *o, struct error *err)
{
    struct model_options options = {.dummy = true, .dummy_dtype = o->f16 ? DTYPE_F16 : DTYPE_BF16};
    struct weights *weights;
    struct model *model;
    enum status st = model_open_dummy(o->model, &options, &weights, &model, err);

    if (st) return st;
    st = cuda_bench_fits(o, model_plan(model)->context_tokens, err);
    model_close(model);
    weights_close(weights);
    return st;
}

int cuda_bench_options(int argc, char **argv, struct cuda_bench_options *out)
{
    struct bench_arg args[ARGS_MAX];
    struct error err = {0};
    char program[32], about[160];
    enum status st = STATUS_OK;

    *out = (struct cuda_bench_options){.batch = 1,
                                       .context = 1024,
                                       .prompt = 1024,
                                       .steps = 128,
                                       .repeats = 20,
                                       .rows_max = 2048,
                                       .batches = "1,2,4,8,16,32,64",
                                       .chain = true};
    int done = find_program(argc, argv, out);
    if (done >= 0) return done;
    uint32_t count = args_of(out, args);
    snprintf(program, sizeof program, "bench %s", out->name);
    snprintf(about, sizeof about, "\n%s\nJSON on standard output, a table on standard error.\n",
             programs[out->what].about);
    done = bench_args_parse(program, about, args, count, argc, argv);
    if (done < 0) done = check_together(out);
    if (done >= 0) return done;
    if (OF_DUMMY & 1u << out->what) st = check_model(out, &err);
    if (out->what == CUDA_BENCH_LOAD && access(out->model, R_OK))
        st = error_set(&err, STATUS_NOT_FOUND, "%s: %m", out->model);
    if (!st) return -1;
    shown_error(program, &err);
    return 1;
}
