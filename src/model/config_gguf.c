/* config_gguf.c - GGUF metadata as a model_config. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/model_config.h"

struct reader {
    struct weights *w;
    struct error *err;
    const char *arch; /* prefix of its keys */
    char key[160];
    enum status st; /* the first fault; later reads do nothing */
};

static const char *full_key(struct reader *r, const char *suffix)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, suffix);
    return r->key;
}

static void fault(struct reader *r, enum status st, const char *text)
{
    if (!r->st) r->st = weights_fault_meta(r->w, r->key, r->err, st, "%s", text);
}

static uint32_t read_count(struct reader *r, const char *suffix, uint32_t fallback)
{
    uint64_t value = fallback;
    enum status st = weights_meta_u64(r->w, full_key(r, suffix), &value);

    if (st == STATUS_NOT_FOUND && fallback != UINT32_MAX) return fallback;
    if (st == STATUS_NOT_FOUND)
        fault(r, STATUS_INVALID, "is missing");
    else if (st || value >= INT32_MAX)
        fault(r, STATUS_INVALID, "is not a whole number of sensible size");
    return r->st ? fallback : (uint32_t)value;
}

static double read_real(struct reader *r, const char *suffix, double fallback)
{
    double value = fallback;
    enum status st = weights_meta_f64(r->w, full_key(r, suffix), &value);

    if (st == STATUS_NOT_FOUND) return fallback;
    if (st) fault(r, STATUS_INVALID, "is not a number");
    return value;
}

/* Refuses 0, and more than `most`, at the key that says so. `value` was read last. */
static uint32_t within(struct reader *r, uint32_t value, uint32_t most)
{
    char text[80];

    snprintf(text, sizeof text, "is %u; 1 to %u is right", value, most);
    if (!r->st && (value == 0 || value > most)) fault(r, STATUS_INVALID, text);
    return value;
}

/* A number, or an array of the same number for every layer. */
static uint32_t read_layer_count(struct reader *r, const char *suffix, uint32_t fallback)
{
    uint64_t count;
    int64_t first, other;

    if (weights_meta_array_len(r->w, full_key(r, suffix), &count))
        return read_count(r, suffix, fallback);
    if (count == 0 || count > MODEL_LAYERS_MAX || weights_meta_array_i64(r->w, r->key, 0, &first) ||
        first < 0 || first >= INT32_MAX) {
        fault(r, STATUS_INVALID, "is not a list of a whole number for each layer");
        return fallback;
    }
    for (uint64_t i = 1; i < count && !r->st; i++)
        if (weights_meta_array_i64(r->w, r->key, i, &other) || other != first)
            fault(r, STATUS_UNSUPPORTED, "differs between layers, which is not supported");
    return (uint32_t)first;
}

static const struct arch *find_arch(struct reader *r, char *name, size_t size)
{
    struct slice text;
    char sentence[256];

    snprintf(r->key, sizeof r->key, "general.architecture");
    if (weights_meta_str(r->w, r->key, &text)) {
        fault(r, STATUS_INVALID, "is missing, so the architecture is not known");
        return NULL;
    }
    snprintf(name, size, "%.*s", (int)(text.len < size ? text.len : size - 1), text.ptr);
    for (uint32_t i = 0; arch_all[i]; i++)
        if (arch_all[i]->in_gguf && strcmp(arch_all[i]->name, name) == 0) return arch_all[i];
    snprintf(sentence, sizeof sentence,
             "architecture '%s' is not supported; llama, qwen2, qwen3 and gemma3 are", name);
    fault(r, STATUS_UNSUPPORTED, sentence);
    return NULL;
}

static void read_rope(struct reader *r, struct model_config *out)
{
    struct rope_config *rope = &out->rope;
    struct slice type = SLICE("none");
    double attn_factor;

    rope->theta = read_real(r, "rope.freq_base", out->arch->theta > 0 ? out->arch->theta : 10000);
    out->has_rope_local = out->arch->window == ARCH_WINDOW_PATTERN;
    if (out->has_rope_local) out->rope_local.theta = read_real(r, "rope.freq_base_swa", 10000);
    rope->factor = read_real(r, "rope.scaling.factor", read_real(r, "rope.scale_linear", 1));
    rope->original_context =
        read_real(r, "rope.scaling.original_context_length", out->context_tokens);
    attn_factor = read_real(r, "rope.scaling.attn_factor", 1);
    if (rope->factor == 0) rope->factor = 1; /* llama.cpp: 0 is "not scaled" */
    enum status st = weights_meta_str(r->w, full_key(r, "rope.scaling.type"), &type);
    if (st && st != STATUS_NOT_FOUND) fault(r, STATUS_INVALID, "is not a text");
    if (st == STATUS_NOT_FOUND && rope->factor != 1) type = SLICE("linear");
    if (slice_eq(type, SLICE("none"))) return;
    if (slice_eq(type, SLICE("linear"))) {
        rope->scaling = ROPE_LINEAR;
    } else if (slice_eq(type, SLICE("yarn"))) {
        rope->scaling = ROPE_YARN;
        rope->beta_fast = read_real(r, "rope.scaling.yarn_beta_fast", 32);
        rope->beta_slow = read_real(r, "rope.scaling.yarn_beta_slow", 1);
        rope->truncate = true;
        if (attn_factor != 1) {
            full_key(r, "rope.scaling.attn_factor");
            fault(r, STATUS_UNSUPPORTED, "is not 1, which is not supported");
        }
    } else {
        fault(r, STATUS_UNSUPPORTED, "is none of none, linear and yarn, which are supported");
    }
}

/* Would change the numbers unless they have this value or are absent. */
static void check_neutral(struct reader *r)
{
    static const struct {
        const char *suffix;
        double value;
    } neutral[] = {
        {"logit_scale", 1},
        {"embedding_scale", 1},
        {"residual_scale", 1},
        {"attention.scale", 0},
        {"final_logit_softcapping", 0},
        {"attn_logit_softcapping", 0},
        {"attention.clamp_kqv", 0},
        {"attention.max_alibi_bias", 0},
        {"expert_count", 0},
        {"expert_used_count", 0},
        {"rope.scaling.yarn_log_multiplier", 0},
        {"rope.scaling.yarn_ext_factor", 1},
        {"pooling_type", 0},
    };

    for (uint32_t i = 0; i < sizeof neutral / sizeof *neutral; i++) {
        double value = read_real(r, neutral[i].suffix, neutral[i].value);
        if (value != neutral[i].value)
            fault(r, STATUS_UNSUPPORTED, "would change the numbers and is not supported");
    }
    bool flag = true;
    if (!weights_meta_bool(r->w, full_key(r, "attention.causal"), &flag) && !flag)
        fault(r, STATUS_UNSUPPORTED, "is false, which is not supported");
    flag = false;
    if (!weights_meta_bool(r->w, full_key(r, "use_parallel_residual"), &flag) && flag)
        fault(r, STATUS_UNSUPPORTED, "is true, which is not supported");
}

static void check_key(void *ctx, const char *key, const char *value_text)
{
    static const char *const known[] = {"block_count",
                                        "context_length",
                                        "embedding_length",
                                        "feed_forward_length",
                                        "attention.head_count",
                                        "attention.head_count_kv",
                                        "attention.layer_norm_rms_epsilon",
                                        "attention.key_length",
                                        "attention.value_length",
                                        "attention.sliding_window",
                                        "attention.sliding_window_pattern",
                                        "rope.freq_base_swa",
                                        "attention.causal",
                                        "rope.freq_base",
                                        "rope.dimension_count",
                                        "rope.scaling.type",
                                        "rope.scaling.factor",
                                        "rope.scaling.original_context_length",
                                        "rope.scaling.finetuned",
                                        "rope.scaling.attn_factor",
                                        "rope.scaling.yarn_beta_fast",
                                        "rope.scaling.yarn_beta_slow",
                                        "rope.scale_linear",
                                        "rope.scaling.yarn_log_multiplier",
                                        "rope.scaling.yarn_ext_factor",
                                        "vocab_size",
                                        "use_parallel_residual",
                                        "logit_scale",
                                        "embedding_scale",
                                        "residual_scale",
                                        "attention.scale",
                                        "final_logit_softcapping",
                                        "attn_logit_softcapping",
                                        "attention.clamp_kqv",
                                        "attention.max_alibi_bias",
                                        "expert_count",
                                        "expert_used_count",
                                        "pooling_type",
                                        "tensor_data_layout",
                                        NULL};
    struct reader *r = ctx;
    size_t len = strlen(r->arch);
    char quoted[192];

    if (strncmp(key, r->arch, len) != 0 || key[len] != '.') return;
    for (uint32_t i = 0; known[i]; i++)
        if (strcmp(known[i], key + len + 1) == 0) return;
    if (config_key_sounds_grave(key + len + 1)) {
        snprintf(r->key, sizeof r->key, "%s", key);
        fault(r, STATUS_UNSUPPORTED, "is not known here and may change the numbers");
    } else {
        (void)value_text;
        log_warn("config key not known", "key=%s",
                 log_quote(slice_str(key), quoted, sizeof quoted));
    }
}

static void read_sizes(struct reader *r, struct model_config *out)
{
    uint32_t value_length;
    uint64_t tokens;

    out->hidden = within(r, read_count(r, "embedding_length", UINT32_MAX), 1 << 20);
    out->layers = within(r, read_count(r, "block_count", UINT32_MAX), MODEL_LAYERS_MAX);
    out->heads = within(r, read_layer_count(r, "attention.head_count", UINT32_MAX), 4096);
    out->kv_heads =
        within(r, read_layer_count(r, "attention.head_count_kv", out->heads), out->heads);
    if (r->st) return;
    out->head_dim = read_count(r, "attention.key_length", out->hidden / out->heads);
    if (read_count(r, "rope.dimension_count", out->head_dim) != out->head_dim)
        fault(r, STATUS_UNSUPPORTED,
              "is not the head's size: a part of it rotated is not supported");
    value_length = read_count(r, "attention.value_length", out->head_dim);
    if (value_length != out->head_dim)
        fault(r, STATUS_UNSUPPORTED, "is not attention.key_length, which is not supported");
    out->ffn = within(r, read_layer_count(r, "feed_forward_length", UINT32_MAX), 1 << 22);
    out->context_tokens = within(r, read_count(r, "context_length", 2048), 1 << 27);
    out->vocab_rows = read_count(r, "vocab_size", 0);
    out->norm_eps = read_real(r, "attention.layer_norm_rms_epsilon", 1e-5);
    out->pairing = out->arch->gguf_pairing;
    out->query_scalar = out->head_dim;
    if (out->arch == &arch_gemma3 && out->layers == 62) /* 27B; the format has no key for it */
        out->query_scalar = (double)out->hidden / out->heads;
    if (!weights_meta_array_len(r->w, "tokenizer.ggml.tokens", &tokens) && tokens < INT32_MAX)
        out->vocab_tokens = (uint32_t)tokens;
}

static void read_windows(struct reader *r, struct model_config *out)
{
    uint32_t window = read_count(r, "attention.sliding_window", 0), every = 0;

    if (out->arch->window == ARCH_WINDOW_PATTERN)
        every = read_count(r, "attention.sliding_window_pattern", out->arch->window_every);
    for (uint32_t i = 0; i < out->layers; i++)
        out->windows[i] = every && (i + 1) % every == 0 ? 0 : window;
}

enum status config_read_gguf(struct weights *weights, struct arena *arena, struct model_config *out,
                             struct error *err)
{
    char name[64];
    struct reader r = {.w = weights, .err = err, .arch = name};

    out->arch = find_arch(&r, name, sizeof name);
    if (!r.st) read_sizes(&r, out);
    if (!r.st) read_rope(&r, out);
    if (!r.st) check_neutral(&r);
    if (!r.st) weights_meta_each(weights, check_key, &r);
    if (r.st) return r.st;
    out->windows = arena_alloc(arena, out->layers * sizeof *out->windows);
    if (!out->windows) return error_set(err, STATUS_NOMEM, "no memory for %u layers", out->layers);
    read_windows(&r, out);
    return r.st;
}
