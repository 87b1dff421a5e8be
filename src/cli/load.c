/* load.c - a model from its files to a running engine, with every limit worked out before anything large is taken. */
#include "cli/load.h"
#include "cli/io_cpus.h"
#include "cli/pins.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file_map.h"
#include "base/log.h"
#include "base/place.h"
#include "base/utf8.h"

enum {
    CALIBRATE_MS = 300
}; /* forty steps of a GPU; a CPU would see a few only, and is ready sooner without */

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
        .compute_dtype = strcmp(config->dtype, "float16") == 0 ? DTYPE_F16
                         : strcmp(config->dtype, "bfloat16") == 0
                             ? DTYPE_BF16
                             : DTYPE_F32, /* as suits the weights */
        .enforce_eager = config->enforce_eager,
        .batch_invariant = config->batch_invariant,
        .step_timeout_ms = (uint32_t)(config->step_timeout_s * 1000),
    };
    enum status st = device_fault_parse(config->inject_fault, &out->fault, err);

    if (st) return st;
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
    if (config->gpu_memory && (out->kind == DEVICE_NULL || strcmp(text, "cpu") == 0))
        return error_set(err, STATUS_INVALID,
                         "--gpu-memory is the memory of a GPU; it goes with --device cuda or auto");
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

/* The last part of a path, or of an id, without .gguf. */
static struct slice last_part(const char *model)
{
    size_t len = strlen(model);

    while (len > 1 && model[len - 1] == '/')
        len--;
    if (len > 5 && strncmp(model + len - 5, ".gguf", 5) == 0) len -= 5;
    size_t from = len;
    while (from > 0 && model[from - 1] != '/')
        from--;
    return slice_of(model + from, len - from);
}

/* A name is in answers (JSON), in lines of the log and in what the service manager is told (lines too). */
static bool is_name(struct slice text)
{
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.ptr[i] < 0x20 || text.ptr[i] == 0x7f) return false;
    return text.len && utf8_valid(text);
}

/* A name for the API: the model's last part as it was given, or as the system has it where that is no name ("." and its
 * like); "model" where that is no text. */
static char *default_name(const char *model, const char *path)
{
    struct slice part = last_part(model);
    char *real = NULL, *name;

    if (!part.len || slice_eq(part, SLICE(".")) || slice_eq(part, SLICE(".."))) {
        real = realpath(path, NULL);
        part = last_part(real ? real : "model");
    }
    name = is_name(part) ? strndup(part.ptr, part.len) : strdup("model");
    free(real);
    return name;
}

enum status load_check_names(const struct config *config, struct error *err)
{
    const struct config_strings *given = &config->served_model_name;

    for (uint32_t i = 0; i < given->count; i++)
        if (!is_name(slice_str(given->items[i])))
            return error_set(err, STATUS_INVALID,
                             "--served-model-name must be UTF-8 without control characters");
    return STATUS_OK;
}

static enum status choose_name(const struct config *config, struct loaded *l, struct error *err)
{
    const struct config_strings *given = &config->served_model_name;

    l->name = given->count ? strdup(given->items[0]) : default_name(config->model, l->path);
    return l->name ? STATUS_OK : error_set(err, STATUS_NOMEM, "no memory for the model's name");
}

enum status load_chat_template(const struct config *config, struct slice *out, struct error *err)
{
    char *source = NULL;
    uint64_t len = 0;
    enum status st;

    *out = (struct slice){0};
    if (!config->chat_template) return STATUS_OK;
    st = file_read(config->chat_template, 1 << 20, &source, &len, err);
    if (!st && (st = chat_check_template(slice_of(source, len), err)))
        error_prefix(err, "%.200s", config->chat_template);
    if (st) {
        free(source);
        return st;
    }
    *out = slice_of(source, len);
    return STATUS_OK;
}

static bool is_dummy(const struct config *config)
{
    return strcmp(config->load_format, "dummy") == 0;
}

enum status load_tokenizer(const struct config *config, struct weights *weights,
                           struct tokenizer **out, bool *built_in, struct error *err)
{
    enum status st = tokenizer_open(weights, out, err);

    *built_in = st == STATUS_NOT_FOUND && is_dummy(config) && weights_kind(weights) != WEIGHTS_GGUF;
    return *built_in ? tokenizer_open_bytes(out, err) : st;
}

/* " config.json: bos_token_id 1, eos_token_id [2,3]": ids that mean tokens of the tokenizer that is not there. */
static void append_ids(struct weights *weights, const char *file, struct buf *out)
{
    static const char *const names[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    const json_t *page;
    const char *between = file;

    if (weights_json(weights, file, &page, NULL)) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(page, names[i]);
        char *text = json_is_integer(value) || json_is_array(value)
                         ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT)
                         : NULL;
        if (text)
            buf_printf(out, "%s%s %s %s", between == file && out->len ? "; " : "", between,
                       names[i], text);
        if (text) between = ",";
        free(text);
    }
}

static void log_built_in(struct loaded *l, bool plain)
{
    char folder[256], aside[512];
    struct buf ids;

    buf_init(&ids, 0);
    append_ids(l->weights, "config.json", &ids);
    append_ids(l->weights, "generation_config.json", &ids);
    log_info("built-in tokenizer",
             "why=\"no tokenizer.json\" folder=%s tokens=%u eos_token_id=%d chat_template=\"%s\" "
             "ids_left_aside=%s",
             log_quote(slice_str(l->path), folder, sizeof folder),
             tokenizer_vocab_size(l->tokenizer), tokenizer_eos(l->tokenizer),
             plain ? "plain" : "given",
             log_quote(ids.len ? buf_slice(&ids) : SLICE("none"), aside, sizeof aside));
    buf_fini(&ids);
}

static enum status open_text(const struct config *config, struct loaded *l, struct error *err)
{
    struct slice override = {0};
    bool built_in, plain;
    enum status st = load_tokenizer(config, l->weights, &l->tokenizer, &built_in, err);

    if (!st) st = load_chat_template(config, &override, err);
    if (!st) st = chat_open(l->weights, l->tokenizer, override, &l->chat, err);
    free((char *)(uintptr_t) override.ptr);
    plain = !st && built_in && !chat_template_source(l->chat).ptr;
    if (plain) {
        chat_close(l->chat);
        l->chat = NULL;
        st = chat_open(l->weights, l->tokenizer, slice_str(chat_plain_template), &l->chat, err);
    }
    if (!st && built_in) log_built_in(l, plain);
    return st;
}

struct model_options load_model_options(const struct config *config,
                                        const struct device_options *device)
{
    return (struct model_options){
        .block_tokens = (uint32_t)config->block_size,
        .kv_format = device->kind == DEVICE_CUDA ? KV_BF16 : KV_F32,
        /* The null device runs no weights, so that a folder with config and tokenizer is enough for it. */
        .dummy = is_dummy(config) || device->kind == DEVICE_NULL,
        .dummy_seed = config->seed,
    };
}

static enum status open_model(const struct config *config, struct loaded *l, struct error *err)
{
    struct model_options options = load_model_options(config, &l->device_options);
    enum status st;

    st = weights_open(l->path, options.dummy ? WEIGHTS_CONFIG_ONLY : 0, &l->weights, err);
    if (!st) st = open_text(config, l, err);
    if (!st) {
        options.vocab_tokens = tokenizer_vocab_size(l->tokenizer);
        st = model_open(l->weights, &options, &l->model, err);
    }
    if (!st) l->plan = model_plan(l->model);
    return st;
}

enum status load_check_dtype(const struct config *config, const struct device_options *options,
                             struct error *err)
{
    if (options->kind != DEVICE_CUDA || strcmp(config->dtype, "float32") != 0) return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "--dtype is float32; a GPU computes in float16 or bfloat16 (auto chooses)");
}

static enum status open_named(const struct config *config, struct device_options *options,
                              struct device **out, struct error *err)
{
    if (!config->device || strcmp(config->device, "auto") == 0) {
        options->kind = DEVICE_CUDA;
        if (config->gpu_memory || device_open(options, out, NULL) == STATUS_OK)
            return config->gpu_memory ? device_open(options, out, err) : STATUS_OK;
        options->kind = DEVICE_CPU;
    }
    return device_open(options, out, err);
}

enum status load_open_device(const struct config *config, struct device_options *options,
                             struct device **out, struct error *err)
{
    enum status st = open_named(config, options, out, err);

    if (st) return st;
    st = load_check_dtype(config, options, err);
    if (st) {
        device_close(*out);
        *out = NULL;
    }
    return st;
}

void load_planner_options(const struct config *config, const struct device_options *device,
                          uint64_t device_bytes, struct planner_options *out)
{
    bool cuda = device->kind == DEVICE_CUDA;

    *out = (struct planner_options){
        .device = *device,
        .max_num_seqs = (uint32_t)config->max_num_seqs,
        .max_num_batched_tokens = config_batched_tokens(config, cuda),
        .max_logprobs = (uint32_t)config->max_logprobs,
        .max_model_len = config->max_model_len,
        .kv_bytes = config->kv_cache_memory,
        .memory_bytes = config->gpu_memory ? config->gpu_memory : device_bytes,
        .utilization = config->gpu_memory_utilization,
    };
    if (!cuda)
        out->memory_bytes = 0; /* the host's is shared with everything else: planner_check_host */
    if (out->memory_bytes && !config_given(config, "kv_cache_memory")) out->kv_bytes = 0;
}

/* Every limit and byte, and the refusal of what does not fit, before anything large is taken. */
static enum status size_limits(const struct config *config, struct loaded *l, struct error *err)
{
    struct planner_options options;
    struct planner_fit fit;
    enum status st;

    load_planner_options(config, &l->device_options, device_memory_bytes(l->device), &options);
    st = planner_fit(&options, l->plan, &fit, err);
    if (!st) st = planner_check_host(&fit, l->device_options.kind, planner_host_available(), err);
    l->limits = fit.limits;
    l->memory = fit.memory;
    return st;
}

uint64_t load_kv_tokens(const struct loaded *l)
{
    uint64_t most = 0;

    for (uint32_t g = 0; g < l->plan->group_count; g++) {
        uint64_t tokens = (uint64_t)l->limits.kv_blocks[g] * l->plan->groups[g].block_tokens;
        if (tokens > most) most = tokens;
    }
    return most;
}

static void log_memory(const struct loaded *l)
{
    for (uint32_t i = 0; i < l->memory.line_count; i++)
        log_info("memory", "what=\"%s\" bytes=%llu%s%s", l->memory.lines[i].name,
                 (unsigned long long)l->memory.lines[i].bytes,
                 l->memory.lines[i].host ? " host=1" : "",
                 l->memory.lines[i].estimate ? " estimate=1" : "");
    log_info("memory total", "device_bytes=%llu host_bytes=%llu kv_tokens=%llu max_model_len=%u",
             (unsigned long long)l->memory.device_bytes, (unsigned long long)l->memory.host_bytes,
             (unsigned long long)load_kv_tokens(l), l->limits.context_tokens);
}

/* A step of a large model on a small CPU may well take a minute, and no driver stands between us and it. */
static uint32_t step_timeout_ms(const struct config *config, const struct loaded *l)
{
    bool wanted = l->device_options.kind != DEVICE_CPU || config_given(config, "step_timeout_s");

    return wanted ? l->device_options.step_timeout_ms : 0;
}

static enum status start_engine(const struct config *config, struct loaded *l, struct error *err)
{
    cpu_set_t set;
    const cpu_set_t *cpus;
    struct place place;
    enum status st = io_cpus_read(config, &set, &cpus, err);

    if (!st) st = pins_make(config, l, err);
    if (st) return st;
    struct engine_options options = {
        .max_num_seqs = (uint32_t)config->max_num_seqs,
        .max_num_batched_tokens = l->limits.rows_max,
        .queue_seqs_max = (uint32_t)config->max_queue_seqs,
        .queue_tokens_max = config->max_queue_tokens,
        .ttft_limit_us = (uint32_t)(config->max_ttft_ms * 1000),
        .client_stall_ms = (uint32_t)config->client_stall_timeout_s * 1000,
        .context_tokens = l->limits.context_tokens,
        .max_batch_wait_us = (uint32_t)(config->max_batch_wait_ms * 1000),
        .target_throughput = (uint32_t)config->target_throughput,
        .class_age_us = (uint32_t)(config->class_age_ms * 1000),
        .max_itl_us = (uint32_t)(config->max_itl_ms * 1000),
        .calibrate_ms = l->device_options.kind == DEVICE_CUDA ? CALIBRATE_MS : 0,
        .pins = l->pins,
        .pin_count = l->pin_count,
        .pin_s = (uint32_t)config->pin_ttl_s,
        .no_prefix_sharing = !config->enable_prefix_caching,
        .step_timeout_ms = step_timeout_ms(config, l),
    };

    place_begin(&place, cpus);
    st = engine_create(&options, l->device, l->plan, &l->limits, &l->engine, err);
    place_end(&place);
    return st;
}

enum status load_open(const struct config *config, struct loaded *out, struct error *err)
{
    enum status st = load_device_options(config, &out->device_options, err);

    out->cache_folder = config_cache_folder();
    out->device_options.cache_folder = out->cache_folder;
    out->device_options.progress = compile_progress;
    out->device_options.progress_ctx = out;
    report(out, "opening", 0, 0);
    if (!st) st = config_resolve_model(config->model, &out->path, err);
    if (!st) st = choose_name(config, out, err);
    if (!st) st = load_open_device(config, &out->device_options, &out->device, err);
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
    pins_end(l);
    device_close(l->device);
    model_close(l->model);
    chat_close(l->chat);
    tokenizer_close(l->tokenizer);
    weights_close(l->weights);
    free(l->name), free(l->cache_folder);
    free(l->path);
    l->engine = NULL;
    l->device = NULL;
    l->model = NULL;
    l->chat = NULL;
    l->tokenizer = NULL;
    l->weights = NULL;
    l->name = l->path = l->cache_folder = NULL;
}
