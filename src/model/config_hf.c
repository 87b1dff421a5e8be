/* config_hf.c - a Hugging Face config.json as a model_config. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/model_config.h"

struct reader {
    struct weights *weights;
    const json_t *root;
    struct error *err;
    enum status st; /* the first fault; later reads do nothing */
};

static void fault(struct reader *r, enum status st, const char *key, const char *text)
{
    if (!r->st) r->st = weights_fault_meta(r->weights, key, r->err, st, "%s", text);
}

static bool present(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return v && !json_is_null(v);
}

/* A whole number; `fallback` where absent or null, UINT32_MAX: it must be there. */
static uint32_t read_count(struct reader *r, const char *key, uint32_t fallback)
{
    const json_t *v = json_object_get(r->root, key);

    if (!v || json_is_null(v)) {
        if (fallback == UINT32_MAX) fault(r, STATUS_INVALID, key, "is missing");
        return fallback;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= INT32_MAX) {
        fault(r, STATUS_INVALID, key, "is not a whole number of sensible size");
        return fallback;
    }
    return (uint32_t)json_integer_value(v);
}

/* The same, 1 to `most`. */
static uint32_t read_size(struct reader *r, const char *key, uint32_t fallback, uint32_t most)
{
    uint32_t value = read_count(r, key, fallback);
    char text[80];

    snprintf(text, sizeof text, "is %u; 1 to %u is right", value, most);
    if (value == 0 || value > most) fault(r, STATUS_INVALID, key, text);
    return value;
}

static double read_real(struct reader *r, const json_t *object, const char *key, double fallback)
{
    const json_t *v = json_object_get(object, key);

    if (!v || json_is_null(v)) return fallback;
    if (!json_is_number(v)) {
        fault(r, STATUS_INVALID, key, "is not a number");
        return fallback;
    }
    return json_number_value(v);
}

static bool read_bool(struct reader *r, const json_t *object, const char *key, bool fallback)
{
    const json_t *v = json_object_get(object, key);

    if (!v || json_is_null(v)) return fallback;
    if (!json_is_boolean(v)) fault(r, STATUS_INVALID, key, "is not true or false");
    return json_is_true(v);
}

static const char *read_text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* --- architecture --- */

static void read_arch(struct reader *r, struct model_config *out)
{
    const char *type = read_text(r->root, "model_type");
    const json_t *classes = json_object_get(r->root, "architectures");
    const char *name = json_string_value(json_array_get(classes, 0));
    char text[256];

    if (!type) {
        fault(r, STATUS_INVALID, "model_type", "is missing, so the architecture is not known");
        return;
    }
    for (uint32_t i = 0; arch_all[i]; i++)
        if (strcmp(arch_all[i]->hf_type, type) == 0) out->arch = arch_all[i];
    if (!out->arch) {
        snprintf(text, sizeof text,
                 "architecture '%.64s' is not supported; llama, mistral, qwen2, qwen3 and "
                 "gemma3_text are",
                 type);
        fault(r, STATUS_UNSUPPORTED, "model_type", text);
    } else if (name && strcmp(name, out->arch->hf_class) != 0) {
        snprintf(text, sizeof text, "'%.64s' is not supported; %s is", name, out->arch->hf_class);
        fault(r, STATUS_UNSUPPORTED, "architectures", text);
    }
}

/* --- rope --- */

static void read_scaling(struct reader *r, const json_t *s, struct rope_config *out)
{
    const char *type = read_text(s, "rope_type");
    char text[160];

    if (!type) type = read_text(s, "type");
    if (!type || strcmp(type, "default") == 0) {
        if (!type && present(s, "factor"))
            fault(r, STATUS_INVALID, "rope_scaling", "has a factor but no rope_type");
        return;
    }
    out->factor = read_real(r, s, "factor", 0);
    if (strcmp(type, "linear") == 0) {
        out->scaling = ROPE_LINEAR;
    } else if (strcmp(type, "llama3") == 0) {
        out->scaling = ROPE_LLAMA3;
        out->low_freq = read_real(r, s, "low_freq_factor", 0);
        out->high_freq = read_real(r, s, "high_freq_factor", 0);
    } else if (strcmp(type, "yarn") == 0) {
        out->scaling = ROPE_YARN;
        out->beta_fast = read_real(r, s, "beta_fast", 32);
        out->beta_slow = read_real(r, s, "beta_slow", 1);
        out->attention_factor = read_real(r, s, "attention_factor", 0);
        out->mscale = read_real(r, s, "mscale", 0);
        out->mscale_all_dim = read_real(r, s, "mscale_all_dim", 0);
        out->truncate = read_bool(r, s, "truncate", true);
    } else {
        snprintf(text, sizeof text,
                 "type '%.32s' is not supported; default, linear, llama3 and yarn are", type);
        fault(r, STATUS_UNSUPPORTED, "rope_scaling", text);
    }
}

static void check_scaling_keys(struct reader *r, const json_t *s)
{
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        "rope_theta",
                                        "original_max_position_embeddings",
                                        "finetuned",
                                        NULL};
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)s, key, value)
    {
        bool ok = json_is_null(value);
        for (uint32_t i = 0; known[i] && !ok; i++)
            ok = strcmp(known[i], key) == 0;
        if (strcmp(key, "partial_rotary_factor") == 0) ok = json_number_value(value) == 1;
        if (!ok) fault(r, STATUS_UNSUPPORTED, key, "in the rope settings is not supported");
    }
}

/* One rotation from its settings; `s` NULL or not an object: plain, by the theta that *rope has. */
static void read_rotation(struct reader *r, const json_t *s, struct model_config *out,
                          struct rope_config *rope)
{
    if (!json_is_object(s)) return;
    rope->theta = read_real(r, s, "rope_theta", rope->theta);
    rope->original_context =
        read_real(r, s, "original_max_position_embeddings",
                  read_real(r, r->root, "original_max_position_embeddings", out->context_tokens));
    check_scaling_keys(r, s);
    read_scaling(r, s, rope);
    if (rope->scaling == ROPE_YARN && rope->factor == 0)
        rope->factor = out->context_tokens / rope->original_context;
    /* max_position_embeddings of a YaRN model may be the length before or after the stretch */
    double stretched = rope->original_context * rope->factor;
    if (rope->scaling == ROPE_YARN && stretched > out->context_tokens && stretched < 1 << 27)
        out->context_tokens = (uint32_t)stretched;
}

/* The old form (rope_theta, rope_scaling) or the new one (rope_parameters, by kind of layer where they have two). */
static void read_rope(struct reader *r, struct model_config *out)
{
    const json_t *s = json_object_get(r->root, "rope_parameters"), *local = NULL;

    if (!json_is_object(s)) s = json_object_get(r->root, "rope_scaling");
    if (s && !json_is_null(s) && !json_is_object(s))
        fault(r, STATUS_INVALID, "rope_scaling", "is not an object");
    out->rope.theta =
        read_real(r, r->root, "rope_theta", out->arch->theta > 0 ? out->arch->theta : 10000);
    out->has_rope_local = out->arch->window == ARCH_WINDOW_PATTERN;
    if (out->has_rope_local) {
        out->rope_local.theta = read_real(r, r->root, "rope_local_base_freq", 10000);
        local = json_object_get(s, "sliding_attention");
        if (json_object_get(s, "full_attention")) s = json_object_get(s, "full_attention");
        read_rotation(r, local, out, &out->rope_local);
    }
    read_rotation(r, s, out, &out->rope);
}

/* --- windows --- */

static void layer_types(struct reader *r, const json_t *types, uint32_t window,
                        struct model_config *out)
{
    if (json_array_size(types) != out->layers) {
        fault(r, STATUS_INVALID, "layer_types", "does not have an entry for each layer");
        return;
    }
    for (uint32_t i = 0; i < out->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && strcmp(type, "sliding_attention") == 0)
            out->windows[i] = window;
        else if (!type || strcmp(type, "full_attention") != 0)
            fault(r, STATUS_UNSUPPORTED, "layer_types",
                  "names a kind of layer that is neither full_attention nor sliding_attention");
        if (out->windows[i] == 0 && type && strcmp(type, "sliding_attention") == 0)
            fault(r, STATUS_INVALID, "layer_types",
                  "has sliding layers, but there is no sliding_window");
    }
}

/* Each which layer sees everything; 0: none does. */
static uint32_t window_every(struct reader *r, const struct arch *arch)
{
    if (arch->window != ARCH_WINDOW_PATTERN) return 0;
    return read_count(r, "sliding_window_pattern",
                      read_count(r, "_sliding_window_pattern", arch->window_every));
}

static void read_windows(struct reader *r, struct arena *arena, struct model_config *out)
{
    const json_t *types = json_object_get(r->root, "layer_types");
    uint32_t window = read_count(r, "sliding_window", out->arch->window_tokens), first = 0;
    uint32_t every = window_every(r, out->arch);

    if (r->st) return;
    out->windows = arena_alloc(arena, out->layers * sizeof *out->windows);
    if (!out->windows) {
        r->st = error_set(r->err, STATUS_NOMEM, "no memory for %u layers", out->layers);
        return;
    }
    if (out->arch->window == ARCH_WINDOW_NONE && window)
        fault(r, STATUS_UNSUPPORTED, "sliding_window", "is not supported for this architecture");
    if (out->arch->window == ARCH_WINDOW_LAYERS) {
        if (!read_bool(r, r->root, "use_sliding_window", false)) window = 0;
        first = read_count(r, "max_window_layers", 0);
    }
    if (json_is_array(types))
        layer_types(r, types, window, out);
    else
        for (uint32_t i = first; window && i < out->layers; i++)
            out->windows[i] = every && (i + 1) % every == 0 ? 0 : window;
}

/* --- keys that are none of the above --- */

/* Consumed here, or known not to change a forward pass at inference. */
static const char *const harmless[] = {"model_type",
                                       "architectures",
                                       "hidden_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "intermediate_size",
                                       "max_position_embeddings",
                                       "rms_norm_eps",
                                       "rope_theta",
                                       "rope_scaling",
                                       "rope_parameters",
                                       "original_max_position_embeddings",
                                       "sliding_window",
                                       "use_sliding_window",
                                       "max_window_layers",
                                       "layer_types",
                                       "attention_bias",
                                       "mlp_bias",
                                       "tie_word_embeddings",
                                       "torch_dtype",
                                       "dtype",
                                       "vocab_size",
                                       "use_cache",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "initializer_range",
                                       "pretraining_tp",
                                       "attention_dropout",
                                       "hidden_dropout",
                                       "transformers_version",
                                       "_name_or_path",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "return_dict",
                                       "use_return_dict",
                                       "torchscript",
                                       "pruned_heads",
                                       "chunk_size_feed_forward",
                                       "is_decoder",
                                       "is_encoder_decoder",
                                       "problem_type",
                                       "id2label",
                                       "label2id",
                                       "task_specific_params",
                                       "tokenizer_class",
                                       "prefix",
                                       "finetuning_task",
                                       "_attn_implementation",
                                       "_attn_implementation_autoset",
                                       "attn_implementation",
                                       "auto_map",
                                       "transformers.js_config",
                                       "num_return_sequences",
                                       "do_sample",
                                       "temperature",
                                       "top_k",
                                       "top_p",
                                       "max_length",
                                       "max_sequence_length",
                                       "model_max_length",
                                       "seq_length",
                                       "unsloth_version",
                                       "unsloth_fixed",
                                       "sep_token_id",
                                       "decoder_start_token_id",
                                       "cross_attention_hidden_size",
                                       "add_cross_attention",
                                       "tie_encoder_decoder",
                                       "tf_legacy_loss",
                                       "bad_words_ids",
                                       NULL};

/* Would change the numbers unless they have this value, absent or null. */
static const struct neutral {
    const char *key;
    double value; /* numbers and booleans */
} neutral[] = {
    {"partial_rotary_factor", 1},
    {"attention_multiplier", 1},
    {"logits_scaling", 1},
    {"logit_scale", 1},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"rope_interleaved", 0},
    {"num_experts", 0},
    {"num_local_experts", 0},
    {"n_routed_experts", 0},
    {"use_qk_norm", 0},
    {"qk_layernorm", 0},
    {"use_mup", 0},
    {"alibi", 0},
    {"clip_qkv", 0},
    {"num_nextn_predict_layers", 0},
    {"scale_emb", 1},
    {"scale_depth", 1},
    {"rotary_pct", 1},
    {"norm_bias", 0},
    {"use_bias", 0},
    {"use_bidirectional_attention", 0},
    {"parallel_residual", 0},
};

/* Consumed where the layers with a window follow a pattern (Gemma); grave elsewhere. */
static bool is_of_pattern(const struct arch *arch, const char *key)
{
    static const char *const keys[] = {"rope_local_base_freq", "sliding_window_pattern",
                                       "_sliding_window_pattern", "query_pre_attn_scalar"};
    bool found = false;

    for (uint32_t i = 0; i < sizeof keys / sizeof *keys; i++)
        found = found || strcmp(keys[i], key) == 0;
    return found && arch->window == ARCH_WINDOW_PATTERN;
}

/* The activation's key and its names: Gemma's is hidden_activation, and a hidden_act beside it does not count. */
static void check_activation(struct reader *r, const struct arch *arch, const char *key,
                             const json_t *value)
{
    const char *act = json_string_value(value);

    if (arch->act == ACT_GELU_TANH) {
        if (strcmp(key, "hidden_activation") == 0 &&
            (!act || strcmp(act, "gelu_pytorch_tanh") != 0))
            fault(r, STATUS_UNSUPPORTED, key, "is not gelu_pytorch_tanh, the one supported here");
    } else if (!act || (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)) {
        fault(r, STATUS_UNSUPPORTED, key, "is not silu, the only activation supported here");
    }
}

static bool is_neutral(const json_t *value, double want)
{
    if (json_is_boolean(value)) return (json_is_true(value) ? 1.0 : 0.0) == want;
    return json_is_number(value) && json_number_value(value) == want;
}

static void check_key(struct reader *r, const struct arch *arch, const char *key,
                      const json_t *value)
{
    char quoted[128];

    for (uint32_t i = 0; harmless[i]; i++)
        if (strcmp(harmless[i], key) == 0) return;
    if (json_is_null(value) || is_of_pattern(arch, key)) return;
    for (uint32_t i = 0; i < sizeof neutral / sizeof *neutral; i++) {
        if (strcmp(neutral[i].key, key) != 0) continue;
        if (!is_neutral(value, neutral[i].value))
            fault(r, STATUS_UNSUPPORTED, key, "would change the numbers and is not supported");
        return;
    }
    if (strcmp(key, "hidden_act") == 0 || strcmp(key, "hidden_activation") == 0) {
        check_activation(r, arch, key, value);
        return;
    }
    bool empty = json_is_false(value) || (json_is_object(value) && !json_object_size(value)) ||
                 (json_is_array(value) && !json_array_size(value));
    if (!empty && config_key_sounds_grave(key))
        fault(r, STATUS_UNSUPPORTED, key, "is not known here and may change the numbers");
    else if (!empty)
        log_warn("config key not known", "key=%s",
                 log_quote(slice_str(key), quoted, sizeof quoted));
}

static void check_keys(struct reader *r, const struct arch *arch)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)r->root, key, value) check_key(r, arch, key, value);
}

static enum dtype read_dtype(struct reader *r)
{
    const char *name = read_text(r->root, "dtype");

    if (!name) name = read_text(r->root, "torch_dtype");
    if (name && strcmp(name, "float16") == 0) return DTYPE_F16;
    if (name && strcmp(name, "float32") == 0) return DTYPE_F32;
    return DTYPE_BF16;
}

static void read_sizes(struct reader *r, struct model_config *out)
{
    out->hidden = read_size(r, "hidden_size", UINT32_MAX, 1 << 20);
    out->layers = read_size(r, "num_hidden_layers", UINT32_MAX, MODEL_LAYERS_MAX);
    out->heads = read_size(r, "num_attention_heads", UINT32_MAX, 4096);
    out->kv_heads = read_size(r, "num_key_value_heads", out->heads, out->heads);
    if (r->st) return;
    out->head_dim = read_count(r, "head_dim", out->hidden / out->heads);
    if (!present(r->root, "head_dim") && out->hidden % out->heads)
        fault(r, STATUS_INVALID, "num_attention_heads",
              "does not divide hidden_size, and there is no head_dim");
    out->query_scalar = out->head_dim;
    if (is_of_pattern(out->arch, "query_pre_attn_scalar"))
        out->query_scalar = read_real(r, r->root, "query_pre_attn_scalar", 256);
    out->ffn = read_size(r, "intermediate_size", UINT32_MAX, 1 << 22);
    out->vocab_rows = read_size(r, "vocab_size", UINT32_MAX, 1 << 29);
    out->context_tokens = read_size(r, "max_position_embeddings", 2048, 1 << 27);
    out->norm_eps = read_real(r, r->root, "rms_norm_eps", 1e-6);
    out->tied = read_bool(r, r->root, "tie_word_embeddings", out->arch->tied);
    bool bias = out->arch->bias_keys && read_bool(r, r->root, "attention_bias", false);
    out->qkv_bias = bias || out->arch->qkv_bias;
    out->out_bias = bias;
    out->mlp_bias = out->arch->bias_keys && read_bool(r, r->root, "mlp_bias", false);
    out->dtype = read_dtype(r);
    out->pairing = ROPE_HALVES;
}

enum status config_read_hf(struct weights *weights, struct arena *arena, struct model_config *out,
                           struct error *err)
{
    struct reader r = {.weights = weights, .err = err};

    r.st = weights_json(weights, "config.json", &r.root, err);
    if (r.st) return r.st;
    if (!json_is_object(r.root)) fault(&r, STATUS_INVALID, "config.json", "is not an object");
    if (!r.st) read_arch(&r, out);
    if (!r.st && present(r.root, "quantization_config"))
        fault(&r, STATUS_UNSUPPORTED, "quantization_config",
              "quantised safetensors are not supported");
    if (!r.st) read_sizes(&r, out);
    if (!r.st) read_rope(&r, out);
    if (!r.st) read_windows(&r, arena, out);
    if (!r.st) check_keys(&r, out->arch);
    return r.st;
}
