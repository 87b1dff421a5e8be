/* load.c - a model from its files to a running engine, with every limit worked out before anything large is taken. */
#include "cli/load.h"

#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/log.h"

enum {
    STEPS_INFLIGHT = 2, /* one on the device, one being planned ahead */
    LOGITS_ROWS_MIN =
        64, /* rows of logits a step can give, so that scoring a prompt goes in fair pieces */
};

/* "null:500" -> the number behind the colon; false when it is no plain number. */
static bool device_number(const char *text, size_t name_len, uint32_t *out)
{
    char *end;
    unsigned long value;

    if (!text[name_len]) return true; /* none given: keeps the default */
    if (text[name_len + 1] < '0' || text[name_len + 1] > '9') return false;
    value = strtoul(text + name_len + 1, &end, 10);
    *out = (uint32_t)value;
    return !*end && value <= 60000000;
}

static bool names_device(const char *text, const char *name)
{
    size_t len = strlen(name);

    return strncmp(text, name, len) == 0 && (!text[len] || text[len] == ':');
}

enum status load_device_options(const struct config *config, struct device_options *out,
                                struct error *err)
{
    const char *text = config->device ? config->device : "auto";
    uint32_t number = 0;
    bool right = true;

    *out = (struct device_options){
        .kind = DEVICE_CPU,
        .threads = (uint32_t)config->threads,
        .threads_batch = (uint32_t)config->threads_batch,
        .cpu_set = config->cpu_set && *config->cpu_set ? config->cpu_set : NULL,
        .numerics = strcmp(config->cpu_numerics, "exact") == 0 ? CPU_EXACT : CPU_FAST,
        .isa = strcmp(config->cpu_isa, "auto") == 0 ? NULL : config->cpu_isa,
        .compute_dtype = strcmp(config->dtype, "float16") == 0 ? DTYPE_F16 : DTYPE_BF16,
        .enforce_eager = config->enforce_eager,
        .batch_invariant = config->batch_invariant,
    };
    if (names_device(text, "null")) {
        right = device_number(text, 4, &number);
        out->kind = DEVICE_NULL;
        out->null_step_us = number;
    } else if (names_device(text, "cuda")) {
        right = device_number(text, 4, &number) && number < 1024;
        out->kind = DEVICE_CUDA;
        out->ordinal = (int)number;
    } else {
        right = strcmp(text, "cpu") == 0 || strcmp(text, "auto") == 0;
    }
    if (!right)
        return error_set(err, STATUS_INVALID,
                         "--device is \"%s\"; it must be auto, cpu, cuda, cuda:N or null:STEP_US",
                         text);
    return STATUS_OK;
}

static void report(struct loaded *l, const char *phase, uint64_t done, uint64_t total)
{
    if (l->progress) l->progress(l->progress_ctx, phase, done, total);
}

static void compile_progress(void *ctx, uint64_t done, uint64_t total)
{
    report(ctx, "packing weights", done, total);
}

/* A name for the API: the last part of the path without .gguf, or of the id as it was given. */
static char *default_name(const char *model)
{
    size_t len = strlen(model);

    while (len > 1 && model[len - 1] == '/')
        len--;
    if (len > 5 && strncmp(model + len - 5, ".gguf", 5) == 0) len -= 5;
    size_t from = len;
    while (from > 0 && model[from - 1] != '/')
        from--;
    return strndup(model + from, len - from);
}

static enum status open_text(const struct config *config, struct loaded *l, struct error *err)
{
    struct slice override = {0};
    char *source = NULL;
    uint64_t len;
    enum status st = tokenizer_open(l->weights, &l->tokenizer, err);

    if (!st && config->chat_template) {
        st = file_read(config->chat_template, 1 << 20, &source, &len, err);
        if (!st) override = slice_of(source, len);
    }
    if (!st) st = chat_open(l->weights, l->tokenizer, override, &l->chat, err);
    free(source);
    return st;
}

static enum status open_model(const struct config *config, struct loaded *l, struct error *err)
{
    bool dummy = strcmp(config->load_format, "dummy") == 0;
    struct model_options options = {
        .context_tokens = 0,
        .block_tokens = (uint32_t)config->block_size,
        .kv_format = l->device_options.kind == DEVICE_CUDA ? KV_BF16 : KV_F32,
        .dummy = dummy,
        .dummy_seed = config->seed,
    };
    enum status st;

    /* The null device runs no weights, so that a folder with config and tokenizer is enough for it. */
    if (l->device_options.kind == DEVICE_NULL) options.dummy = true;
    st = weights_open(l->path, options.dummy ? WEIGHTS_CONFIG_ONLY : 0, &l->weights, err);
    if (!st) st = open_text(config, l, err);
    if (!st) {
        options.vocab_tokens = tokenizer_vocab_size(l->tokenizer);
        st = model_open(l->weights, &options, &l->model, err);
    }
    if (!st) l->plan = model_plan(l->model);
    return st;
}

/* auto: the GPU where this build and machine have one, else the CPU. */
static enum status open_device(const struct config *config, struct loaded *l, struct error *err)
{
    if (!config->device || strcmp(config->device, "auto") == 0) {
        l->device_options.kind = DEVICE_CUDA;
        if (device_open(&l->device_options, &l->device, err) == STATUS_OK) return STATUS_OK;
        l->device_options.kind = DEVICE_CPU;
    }
    return device_open(&l->device_options, &l->device, err);
}

static uint32_t at_least(uint64_t value, uint32_t least)
{
    return value < least ? least : (uint32_t)value;
}

/* How many blocks the KV memory gives (the same number in each group) and how long a sequence may be. */
static enum status size_cache(const struct config *config, struct loaded *l, struct error *err)
{
    uint64_t block_bytes = 0, blocks, pool_tokens, wanted = config->max_model_len;
    uint32_t block_tokens = l->plan->groups[0].block_tokens;
    enum status st;

    l->limits.context_tokens = l->plan->context_tokens;
    for (uint32_t g = 0; g < l->plan->group_count; g++)
        l->limits.kv_blocks[g] = 1;
    st = device_memory_plan(&l->device_options, l->plan, &l->limits, &l->memory, err);
    if (st) return st;
    for (uint32_t g = 0; g < l->plan->group_count; g++)
        block_bytes += l->memory.kv_block_bytes[g];
    blocks = block_bytes ? config->kv_cache_memory / block_bytes : config->kv_cache_memory / 4096;
    if (blocks > 0x7fffffff) blocks = 0x7fffffff;
    pool_tokens = blocks * block_tokens;
    if (wanted > l->plan->context_tokens)
        return error_set(err, STATUS_INVALID,
                         "--max-model-len is %llu; this model's own is %u (tokens)",
                         (unsigned long long)wanted, l->plan->context_tokens);
    if (wanted > pool_tokens || !blocks)
        return error_set(
            err, STATUS_INVALID,
            "--kv-cache-memory of %llu bytes holds %llu tokens (%llu bytes for %u tokens), too few "
            "for "
            "--max-model-len %llu: %llu bytes are needed",
            (unsigned long long)config->kv_cache_memory, (unsigned long long)pool_tokens,
            (unsigned long long)block_bytes, block_tokens, (unsigned long long)wanted,
            (unsigned long long)((wanted + block_tokens - 1) / block_tokens * block_bytes +
                                 !blocks * block_bytes));
    if (!wanted)
        wanted = l->plan->context_tokens < pool_tokens ? l->plan->context_tokens : pool_tokens;
    l->limits.context_tokens = (uint32_t)wanted;
    for (uint32_t g = 0; g < l->plan->group_count; g++)
        l->limits.kv_blocks[g] = (uint32_t)blocks;
    return device_memory_plan(&l->device_options, l->plan, &l->limits, &l->memory, err);
}

static enum status size_limits(const struct config *config, struct loaded *l, struct error *err)
{
    l->limits = (struct device_limits){
        .slots_max = (uint32_t)config->max_num_seqs,
        .rows_max = at_least(config->max_num_batched_tokens, (uint32_t)config->max_num_seqs),
        .steps_inflight = STEPS_INFLIGHT,
        .top_logprobs_max = (uint32_t)config->max_logprobs,
        .bias_max = 1024,  /* docs/api.md section 8 */
        .banned_max = 256, /* end-of-sequence ids and 128 stop_token_ids */
    };
    l->limits.logits_max = at_least(config->max_num_seqs, LOGITS_ROWS_MIN);
    if (l->limits.logits_max > l->limits.rows_max) l->limits.logits_max = l->limits.rows_max;
    return size_cache(config, l, err);
}

static void log_memory(const struct loaded *l)
{
    for (uint32_t i = 0; i < l->memory.line_count; i++)
        log_info("memory", "what=\"%s\" bytes=%llu%s", l->memory.lines[i].name,
                 (unsigned long long)l->memory.lines[i].bytes,
                 l->memory.lines[i].host ? " host=1" : "");
    log_info("memory total", "device_bytes=%llu host_bytes=%llu kv_tokens=%llu max_model_len=%u",
             (unsigned long long)l->memory.device_bytes, (unsigned long long)l->memory.host_bytes,
             (unsigned long long)l->limits.kv_blocks[0] * l->plan->groups[0].block_tokens,
             l->limits.context_tokens);
}

static enum status start_engine(const struct config *config, struct loaded *l, struct error *err)
{
    struct engine_options options = {
        .max_num_seqs = (uint32_t)config->max_num_seqs,
        .max_num_batched_tokens = l->limits.rows_max,
        .queue_seqs_max = (uint32_t)config->max_queue_seqs,
        .queue_tokens_max = config->max_queue_tokens,
        .client_stall_ms = (uint32_t)config->client_stall_timeout_s * 1000,
        .context_tokens = l->limits.context_tokens,
        .max_batch_wait_us = (uint32_t)(config->max_batch_wait_ms * 1000),
        .target_throughput = (uint32_t)config->target_throughput,
        .max_itl_us = (uint32_t)(config->max_itl_ms * 1000),
        .no_prefix_sharing = !config->enable_prefix_caching,
    };

    return engine_create(&options, l->device, l->plan, &l->limits, &l->engine, err);
}

enum status load_open(const struct config *config, struct loaded *out, struct error *err)
{
    enum status st = load_device_options(config, &out->device_options, err);

    out->device_options.progress = compile_progress;
    out->device_options.progress_ctx = out;
    report(out, "opening", 0, 0);
    if (!st) st = config_resolve_model(config->model, &out->path, err);
    if (!st &&
        !(out->name = config->served_model_name.count ? strdup(config->served_model_name.items[0])
                                                      : default_name(config->model)))
        st = error_set(err, STATUS_NOMEM, "no memory for the model's name");
    if (!st) st = open_device(config, out, err);
    if (!st) st = open_model(config, out, err);
    if (!st) st = size_limits(config, out, err);
    if (!st) {
        log_memory(out);
        st = device_compile(out->device, out->plan, &out->limits, err);
    }
    if (!st) st = start_engine(config, out, err);
    if (st) load_close(out);
    return st;
}

void load_close(struct loaded *l)
{
    engine_destroy(l->engine);
    device_close(l->device);
    model_close(l->model);
    chat_close(l->chat);
    tokenizer_close(l->tokenizer);
    weights_close(l->weights);
    free(l->name);
    free(l->path);
    l->engine = NULL;
    l->device = NULL;
    l->model = NULL;
    l->chat = NULL;
    l->tokenizer = NULL;
    l->weights = NULL;
    l->name = l->path = NULL;
}
