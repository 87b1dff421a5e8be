/* test_planner.c - what is planned fits to the byte, uses what it may, and what does not fit is refused with the arithmetic.
 * Method: the configs of configs/models (shapes only, no weights) for the CPU device, whose sums are always built; random memory
 * sizes against the two inequalities that define the largest pool: it is within the budget, and one more block would not be. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "model/model.h"
#include "planner/planner.h"

static const char *const names[] = {"SmolLM2-135M", "Qwen2.5-7B",
                                    "Llama-3-8B",   "DeepSeek-R1-Distill-Qwen-7B",
                                    "Llama-3-70B",  "DeepSeek-Coder-33B"};
enum { NAMES = sizeof names / sizeof *names };

struct opened {
    struct weights *weights;
    struct model *model;
    const struct plan *plan;
};

static struct opened open_config(const char *name)
{
    struct model_options options = {.dummy = true};
    struct opened o;
    struct error err;
    char path[512];

    snprintf(path, sizeof path, "%s/configs/models/%s", INFERD_SOURCE_DIR, name);
    EXPECT_OK_ERR(model_open_dummy(path, &options, &o.weights, &o.model, &err), &err);
    o.plan = model_plan(o.model);
    return o;
}

static void close_config(struct opened *o)
{
    model_close(o->model);
    weights_close(o->weights);
}

static struct planner_options usual(uint64_t kv_bytes)
{
    return (struct planner_options){
        .device = {.kind = DEVICE_CPU, .threads = 2, .numerics = CPU_FAST, .isa = "generic"},
        .max_num_seqs = 128,
        .max_num_batched_tokens = 512,
        .max_logprobs = 20,
        .kv_bytes = kv_bytes,
        .utilization = 0.9,
    };
}

static uint64_t line_sum(const struct device_memory *m, bool host)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < m->line_count; i++)
        if (m->lines[i].host == host) sum += m->lines[i].bytes;
    return sum;
}

TEST(every_shipped_config_is_planned_and_its_lines_sum_up)
{
    for (int n = 0; n < NAMES; n++) {
        struct opened o = open_config(names[n]);
        struct planner_options options = usual((uint64_t)8 << 30);
        struct planner_fit fit;
        struct error err;

        EXPECT_OK_ERR(planner_fit(&options, o.plan, &fit, &err), &err);
        EXPECT_EQ(line_sum(&fit.memory, false), fit.memory.device_bytes);
        EXPECT_EQ(line_sum(&fit.memory, true), fit.memory.host_bytes);
        EXPECT_TRUE(fit.blocks * fit.block_bytes <= options.kv_bytes);
        EXPECT_TRUE((fit.blocks + 1) * fit.block_bytes > options.kv_bytes);
        EXPECT_EQ(fit.kv_tokens, fit.blocks * fit.block_tokens);
        EXPECT_EQ(fit.limits.kv_blocks[0], fit.blocks);
        EXPECT_EQ(fit.full_sequences, fit.blocks / ((fit.limits.context_tokens + 15) / 16));
        EXPECT_TRUE(fit.full_sequences >= 1);
        close_config(&o);
    }
}

/* What a checkpoint of that config holds, counted from the plan's tensors and from the config's sizes. */
TEST(stored_weights_are_the_parameters_of_the_config)
{
    for (int n = 0; n < NAMES; n++) {
        struct opened o = open_config(names[n]);
        struct planner_stored stored;
        uint64_t numbers = 0, bytes = 0;

        planner_stored_weights(o.plan, &stored);
        for (int d = 0; d < DTYPE_COUNT; d++) {
            const struct dtype_info *info = dtype_info((enum dtype)d);
            numbers += stored.bytes[d] / info->block_bytes * info->block_elements;
            bytes += stored.bytes[d];
        }
        EXPECT_EQ(numbers, model_parameters(o.model));
        EXPECT_EQ(bytes, stored.total_bytes);
        close_config(&o);
    }
}

TEST(what_the_budget_leaves_is_the_pool_to_the_last_block)
{
    struct opened o = open_config("SmolLM2-135M");
    int count = test_long() ? 20000 : 500;

    for (int i = 0; i < count; i++) {
        struct planner_options options = usual(0);
        struct planner_fit fit;
        struct error err;

        options.memory_bytes = 1000000000 + test_rand() % 60000000000;
        options.utilization = 0.5 + test_rand_unit() / 2;
        options.max_num_seqs = 1 + test_rand_below(256);
        if (test_rand_below(2)) options.max_model_len = 1 + test_rand_below(o.plan->context_tokens);
        enum status st = planner_fit(&options, o.plan, &fit, &err);
        uint64_t needed = (options.max_model_len + 15) / 16;
        if (st) {
            EXPECT_EQ(st, STATUS_NOMEM);
            EXPECT_TRUE(fit.fixed_bytes + (needed ? needed : 1) * fit.block_bytes >
                        fit.budget_bytes);
            continue;
        }
        EXPECT_EQ(fit.budget_bytes, (uint64_t)((double)options.memory_bytes * options.utilization));
        EXPECT_TRUE(fit.memory.device_bytes <= fit.budget_bytes);
        /* A context cut to the pool shrinks tables after the pool was chosen: only then may more than a block be left. */
        if (options.max_model_len || fit.limits.context_tokens == o.plan->context_tokens)
            EXPECT_TRUE(fit.memory.device_bytes + fit.block_bytes > fit.budget_bytes);
        EXPECT_TRUE(fit.blocks >= needed);
        if (options.max_model_len) EXPECT_EQ(fit.limits.context_tokens, options.max_model_len);
    }
    close_config(&o);
}

/* CUDA's sums are plain C too; its step images grow with the number of blocks, which the pool must make room for. */
TEST(a_gpus_budget_is_kept_to_the_byte)
{
    struct opened o = open_config("Llama-3-8B");
    int count = test_long() ? 5000 : 200;

    for (int i = 0; i < count; i++) {
        struct planner_options options = usual(0);
        struct planner_fit fit;
        struct error err;

        options.device = (struct device_options){.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16};
        options.memory_bytes = 20000000000 + test_rand() % 150000000000;
        options.utilization = 1;
        options.max_model_len = 8192;
        enum status st = planner_fit(&options, o.plan, &fit, &err);
        if (st == STATUS_UNSUPPORTED) skip(); /* a tree without that device */
        EXPECT_OK_ERR(st, &err);
        EXPECT_TRUE(fit.memory.device_bytes <= fit.budget_bytes);
        EXPECT_TRUE(fit.memory.device_bytes + 2 * fit.block_bytes > fit.budget_bytes);
        EXPECT_EQ(line_sum(&fit.memory, false), fit.memory.device_bytes);
    }
    close_config(&o);
}

/* Equal sequences of so many tokens that the pools hold at once; `free`: that bytes of the same sum would, if any block could be of any group. */
static double sequences_held(const struct plan *plan, const struct planner_fit *fit,
                             uint64_t tokens, double *free)
{
    double most = fit->limits.slots_max, bytes = 0;

    for (uint32_t g = 0; g < plan->group_count; g++) {
        uint32_t need = plan_group_blocks(&plan->groups[g], tokens, 1);

        most = fmin(most, (double)fit->limits.kv_blocks[g] / need);
        bytes += (double)need * (double)fit->memory.kv_block_bytes[g];
    }
    *free = fmin(fit->limits.slots_max, (double)fit->pool_bytes / bytes);
    return most;
}

/* The pools are within the budget to a few blocks; one sequence of the whole context runs; and whatever the length of sequences, the pools hold at
 * least half of what one pool of common pages would, less the blocks that are set aside for one sequence. */
TEST(pools_of_layers_with_and_without_a_window_serve_every_length)
{
    struct opened o = open_config("Gemma-3-270M");
    int count = test_long() ? 5000 : 300, fitted = 0;

    for (int i = 0; i < count; i++) {
        struct planner_options options = usual(0);
        struct planner_fit fit;
        struct error err;

        options.memory_bytes = 1000000000 + test_rand() % 20000000000;
        options.max_num_seqs = 1 + test_rand_below(256);
        if (test_rand_below(2)) options.max_model_len = 1 + test_rand_below(o.plan->context_tokens);
        if (planner_fit(&options, o.plan, &fit, &err)) continue;
        fitted++;
        EXPECT_TRUE(fit.memory.device_bytes <= fit.budget_bytes);
        if (options.max_model_len || fit.limits.context_tokens == o.plan->context_tokens)
            EXPECT_TRUE(fit.memory.device_bytes + 2 * fit.block_bytes > fit.budget_bytes);
        uint64_t aside = 0, pools = 0;
        for (uint32_t g = 0; g < o.plan->group_count; g++) {
            uint32_t least = plan_group_blocks(&o.plan->groups[g], fit.limits.context_tokens,
                                               fit.limits.rows_max);

            EXPECT_TRUE(fit.limits.kv_blocks[g] >= least);
            aside += least * fit.memory.kv_block_bytes[g];
            pools += fit.limits.kv_blocks[g] * fit.memory.kv_block_bytes[g];
        }
        EXPECT_EQ(fit.pool_bytes, pools);
        EXPECT_EQ(fit.memory.device_bytes, fit.fixed_bytes + pools);
        for (uint64_t tokens = 1; tokens <= fit.limits.context_tokens; tokens += 1 + tokens / 3) {
            double dealt = 1 - (double)aside / (double)pools, free;
            double held = sequences_held(o.plan, &fit, tokens, &free);

            EXPECT_TRUE(held >= 0.49 * dealt * free - 1);
        }
    }
    EXPECT_TRUE(fitted > count / 2);
    close_config(&o);
}

TEST(a_window_lets_more_tokens_fit_and_what_does_not_fit_is_refused)
{
    struct opened o = open_config("Gemma-3-270M");
    struct planner_options options = usual(512 << 20);
    struct planner_fit fit;
    struct error err;

    options.max_model_len = 8192;
    EXPECT_OK_ERR(planner_fit(&options, o.plan, &fit, &err), &err);
    /* 18 layers of 16 tokens: 294912 bytes; 1820 of them were 3 sequences */
    EXPECT_EQ(fit.block_bytes, 294912);
    EXPECT_TRUE(fit.kv_tokens > 80000 && fit.full_sequences == 10);
    options.kv_bytes = 26 << 20; /* 512 of 3 layers and 65 of 15: 41.1 MB */
    EXPECT_EQ(planner_fit(&options, o.plan, &fit, &err), STATUS_NOMEM);
    EXPECT_TRUE(strstr(err.message, "too few for --max-model-len 8192: 41140224 bytes"));
    options.max_model_len = 0; /* then it is cut */
    EXPECT_OK_ERR(planner_fit(&options, o.plan, &fit, &err), &err);
    EXPECT_TRUE(fit.limits.context_tokens >= 3000 && fit.limits.context_tokens < 8192);
    EXPECT_EQ(fit.full_sequences, 1);
    close_config(&o);
}

static const struct device_memory_line *find_line(const struct device_memory *memory,
                                                  const char *name)
{
    for (uint32_t i = 0; i < memory->line_count; i++)
        if (strstr(memory->lines[i].name, name)) return &memory->lines[i];
    return NULL;
}

TEST(a_gpus_plan_names_its_type_and_the_drivers_own_memory)
{
    static const struct {
        const char *model;
        enum dtype wanted;
        const char *line;
    } cases[] = {{"Llama-3-8B", DTYPE_F32, "weights in bf16"},
                 {"Llama-3-8B", DTYPE_F16, "weights in f16"},
                 {"Gemma-3-270M", DTYPE_F32, "weights in bf16"},
                 {"Gemma-3-270M", DTYPE_F16, "weights in f16"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct opened o = open_config(cases[i].model);
        struct planner_options options = usual(0);
        struct planner_fit fit, eager;
        struct error err;
        uint64_t estimates = 0;

        options.device =
            (struct device_options){.kind = DEVICE_CUDA, .compute_dtype = cases[i].wanted};
        options.memory_bytes = 141000000000;
        enum status st = planner_fit(&options, o.plan, &fit, &err);
        if (st == STATUS_UNSUPPORTED) skip(); /* a tree without that device */
        EXPECT_OK_ERR(st, &err);
        EXPECT_TRUE(find_line(&fit.memory, cases[i].line) != NULL);
        for (uint32_t k = 0; k < fit.memory.line_count; k++)
            if (fit.memory.lines[k].estimate) estimates += fit.memory.lines[k].bytes;
        EXPECT_EQ(estimates, fit.memory.estimate_bytes);
        EXPECT_TRUE(find_line(&fit.memory, "CUDA context")->estimate);
        EXPECT_TRUE(find_line(&fit.memory, "CUDA graphs")->estimate);
        EXPECT_TRUE(estimates > 256 << 20 && estimates < 2ull << 30);
        options.device.enforce_eager = true; /* no graphs: room for blocks */
        EXPECT_OK_ERR(planner_fit(&options, o.plan, &eager, &err), &err);
        EXPECT_TRUE(find_line(&eager.memory, "CUDA graphs") == NULL);
        EXPECT_TRUE(eager.blocks >= fit.blocks);
        close_config(&o);
    }
}

TEST(a_context_is_cut_to_what_the_pool_holds_unless_it_was_asked_for)
{
    struct opened o = open_config("Llama-3-8B");
    struct planner_options options = usual(64 << 20);
    struct planner_fit fit;
    struct error err;

    EXPECT_OK_ERR(planner_fit(&options, o.plan, &fit, &err), &err);
    EXPECT_EQ(fit.limits.context_tokens, fit.kv_tokens);
    EXPECT_EQ(fit.full_sequences, 1);
    options.max_model_len = fit.kv_tokens + 1;
    EXPECT_EQ(planner_fit(&options, o.plan, &fit, &err), STATUS_NOMEM);
    EXPECT_TRUE(strstr(err.message, "--kv-cache-memory of 67108864 bytes holds"));
    options.max_model_len = 8193;
    EXPECT_EQ(planner_fit(&options, o.plan, &fit, &err), STATUS_INVALID);
    EXPECT_STR(err.message, "--max-model-len is 8193; this model's own is 8192 (tokens)");
    close_config(&o);
}

TEST(weights_larger_than_the_budget_are_refused_with_every_number)
{
    struct opened o = open_config("Llama-3-70B");
    struct planner_options options = usual(0);
    struct planner_fit fit;
    struct error err;
    char number[32];

    options.memory_bytes = 141000000000;
    EXPECT_EQ(planner_fit(&options, o.plan, &fit, &err), STATUS_NOMEM);
    EXPECT_TRUE(
        strstr(err.message, "141000000000 bytes of memory * 0.9 = 126900000000 may be used"));
    EXPECT_TRUE(strstr(err.message, "weights"));
    snprintf(number, sizeof number, "%llu bytes too many",
             (unsigned long long)(fit.fixed_bytes + fit.block_bytes - fit.budget_bytes));
    EXPECT_TRUE(strstr(err.message, number));
    EXPECT_TRUE(fit.memory.line_count > 3); /* the page can still show what is known */
    close_config(&o);
}

TEST(a_pool_that_was_asked_for_is_had_in_full_or_refused)
{
    struct opened o = open_config("SmolLM2-135M");
    struct planner_options options = usual(4000000000);
    struct planner_fit fit;
    struct error err;

    options.memory_bytes = 3000000000;
    EXPECT_EQ(planner_fit(&options, o.plan, &fit, &err), STATUS_NOMEM);
    options.memory_bytes = 8000000000;
    EXPECT_OK_ERR(planner_fit(&options, o.plan, &fit, &err), &err);
    EXPECT_EQ(fit.blocks, 4000000000 / fit.block_bytes);
    close_config(&o);
}

TEST(the_host_is_asked_for_what_lies_in_it)
{
    struct opened o = open_config("SmolLM2-135M");
    struct planner_options options = usual(512 << 20);
    struct planner_fit fit;
    struct error err;
    uint64_t need;

    EXPECT_OK_ERR(planner_fit(&options, o.plan, &fit, &err), &err);
    need = fit.memory.device_bytes + fit.memory.host_bytes;
    EXPECT_OK(planner_check_host(&fit, DEVICE_CPU, need, &err));
    EXPECT_OK(planner_check_host(&fit, DEVICE_CPU, 0, &err));
    EXPECT_EQ(planner_check_host(&fit, DEVICE_CPU, need - 1, &err), STATUS_NOMEM);
    EXPECT_TRUE(strstr(err.message, "available: 1 too many"));
    EXPECT_OK(planner_check_host(&fit, DEVICE_CUDA, fit.memory.host_bytes + 1, &err));
    EXPECT_TRUE(planner_host_available() > 0);
    close_config(&o);
}

TEST(the_json_tells_the_same_numbers)
{
    struct opened o = open_config("Qwen2.5-7B");
    struct planner_options options = usual((uint64_t)1 << 30);
    struct planner_subject subject = {
        .path = "p", .description = "d", .device = "cpu", .parameters = 7};
    struct planner_fit fit;
    struct error err;
    json_t *page, *line;
    json_int_t sum = 0;
    size_t i;

    EXPECT_OK_ERR(planner_fit(&options, o.plan, &fit, &err), &err);
    page = planner_json(&subject, &options, o.plan, &fit);
    EXPECT_TRUE(page && json_is_true(json_object_get(page, "fits")));
    json_array_foreach(json_object_get(page, "lines"), i, line) sum +=
        json_integer_value(json_object_get(line, "bytes"));
    EXPECT_EQ(sum, fit.memory.device_bytes + fit.memory.host_bytes);
    EXPECT_EQ(json_integer_value(json_object_get(json_object_get(page, "kv"), "tokens")),
              fit.kv_tokens);
    EXPECT_EQ(json_integer_value(json_object_get(page, "max_model_len")),
              fit.limits.context_tokens);
    json_decref(page);
    subject.refused = "because";
    page = planner_json(&subject, &options, o.plan, &fit);
    EXPECT_TRUE(json_is_false(json_object_get(page, "fits")));
    EXPECT_STR(json_string_value(json_object_get(page, "refused")), "because");
    json_decref(page);
    close_config(&o);
}
