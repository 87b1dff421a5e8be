/* test_model_open.c - configs and tensors: what is read, and what is refused by name.
 * Method: a tiny llama folder written by the test (config.json and one safetensors file), changed one thing at a time; GGUF
 * by patching a golden file. Model sizes: parameter counts of published models from their configs alone. */
#include "test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_map.h"
#include "device/device_memory.h"
#include "model/model.h"

static char folder[512];

static void write_file(const char *name, const void *bytes, size_t len)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, len, f) != len || fclose(f)) fail_msg("cannot write %s", path);
}

static void make_folder(void)
{
    if (folder[0]) return;
    snprintf(folder, sizeof folder, "%s/model-XXXXXX", INFERD_BINARY_DIR);
    if (!mkdtemp(folder)) fail_msg("no temporary folder");
}

static void remove_folder(void)
{
    static const char *const names[] = {"config.json", "model.safetensors", "model.gguf"};
    char path[600];

    for (uint32_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    folder[0] = 0;
}

/* --- a tiny llama: hidden 16, 2 heads of 8, 1 KV head, ffn 24, 1 layer, vocabulary 10 --- */

static const char *const base_config =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":16,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"intermediate_size\":24,\"vocab_size\":10,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\",\"rope_theta\":10000.0}";

/* The base config with keys set from a JSON object; null removes nothing, it sets null. */
static void write_config(const char *changes)
{
    json_t *root = json_loads(base_config, 0, NULL), *more = json_loads(changes, 0, NULL);

    if (!more) fail_msg("test: bad JSON %s", changes);
    json_object_update(root, more);
    char *text = json_dumps(root, 0);
    write_file("config.json", text, strlen(text));
    free(text);
    json_decref(root);
    json_decref(more);
}

struct tensor {
    const char *name;
    uint32_t rows, cols; /* rows 0: a vector */
};
#define L "model.layers.0."
static const struct tensor base_tensors[] = {{"model.embed_tokens.weight", 10, 16},
                                             {"lm_head.weight", 10, 16},
                                             {"model.norm.weight", 0, 16},
                                             {L "input_layernorm.weight", 0, 16},
                                             {L "post_attention_layernorm.weight", 0, 16},
                                             {L "self_attn.q_proj.weight", 16, 16},
                                             {L "self_attn.k_proj.weight", 8, 16},
                                             {L "self_attn.v_proj.weight", 8, 16},
                                             {L "self_attn.o_proj.weight", 16, 16},
                                             {L "mlp.gate_proj.weight", 24, 16},
                                             {L "mlp.up_proj.weight", 24, 16},
                                             {L "mlp.down_proj.weight", 16, 24}};
enum { BASE_TENSORS = sizeof base_tensors / sizeof *base_tensors };

/* Writes the tensors but `without`, plus `extra`, with `changed` instead of the one of its name. */
static void write_tensors(const char *without, const struct tensor *extra,
                          const struct tensor *changed, const char *dtype)
{
    static char header[8192], file[65536];
    size_t at = 1, bytes = 0;

    header[0] = '{';
    for (uint32_t i = 0; i < BASE_TENSORS + (extra ? 1 : 0); i++) {
        struct tensor t = i < BASE_TENSORS ? base_tensors[i] : *extra;
        if (without && strcmp(t.name, without) == 0) continue;
        if (changed && strcmp(t.name, changed->name) == 0) t = *changed;
        size_t size = (size_t)(t.rows ? t.rows : 1) * t.cols * (dtype ? 1 : 4);
        char shape[32];
        snprintf(shape, sizeof shape, "[%u,%u]", t.rows, t.cols);
        if (!t.rows) snprintf(shape, sizeof shape, "[%u]", t.cols);
        at += (size_t)snprintf(
            header + at, sizeof header - at,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
            at > 1 ? "," : "", t.name, dtype ? dtype : "F32", shape, bytes, bytes + size);
        bytes += size;
    }
    header[at++] = '}';
    while (at % 8)
        header[at++] = ' ';
    uint64_t length = at;
    memset(file, 0, sizeof file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, at);
    EXPECT_TRUE(8 + at + bytes <= sizeof file);
    write_file("model.safetensors", file, 8 + at + bytes);
}

static enum status open_at(const char *path, struct model_options options, struct error *err,
                           struct weights **w, struct model **m)
{
    enum status st;

    *m = NULL, *w = NULL;
    st = weights_open(path, 0, w, err);
    if (!st) st = model_open(*w, &options, m, err);
    return st;
}

static void end(struct weights *w, struct model *m)
{
    model_close(m);
    weights_close(w);
}

static void refused(const char *what, const char *path, struct model_options options,
                    enum status status, const char *word)
{
    struct error err = {0};
    struct weights *w;
    struct model *m;
    enum status st = open_at(path, options, &err, &w, &m);

    end(w, m);
    if (st != status)
        fail_msg("%s gave '%s' (%s); expected '%s'", what, status_name(st), err.message,
                 status_name(status));
    if (!strstr(err.message, word)) fail_msg("%s: the sentence is \"%s\"", what, err.message);
}

static void config_refused(const char *changes, enum status status, const char *word)
{
    make_folder();
    write_config(changes);
    write_tensors(NULL, NULL, NULL, NULL);
    refused(changes, folder, (struct model_options){0}, status, word);
}

static struct model *config_accepted(const char *changes, struct weights **w)
{
    struct error err = {0};
    struct model *m;

    make_folder();
    write_config(changes);
    write_tensors(NULL, NULL, NULL, NULL);
    if (open_at(folder, (struct model_options){0}, &err, w, &m))
        fail_msg("%s: %s", changes, err.message);
    return m;
}

TEST(config_keys_that_change_the_numbers_are_refused_by_name)
{
    static const struct {
        const char *changes, *word;
    } cases[] = {
        {"{\"model_type\":\"mamba\"}", "mamba"},
        {"{\"model_type\":\"gpt2\"}", "gpt2"},
        {"{\"architectures\":[\"LlamaForSequenceClassification\"]}",
         "LlamaForSequenceClassification"},
        {"{\"hidden_act\":\"gelu\"}", "hidden_act"},
        {"{\"attention_multiplier\":0.5}", "attention_multiplier"},
        {"{\"logits_scaling\":8}", "logits_scaling"},
        {"{\"embedding_multiplier\":12.0}", "embedding_multiplier"},
        {"{\"residual_multiplier\":0.2}", "residual_multiplier"},
        {"{\"partial_rotary_factor\":0.5}", "partial_rotary_factor"},
        {"{\"final_logit_softcapping\":30.0}", "final_logit_softcapping"},
        {"{\"attn_logit_softcapping\":50.0}", "attn_logit_softcapping"},
        {"{\"num_local_experts\":8}", "num_local_experts"},
        {"{\"rope_interleaved\":true}", "rope_interleaved"},
        {"{\"sliding_window\":32}", "sliding_window"},
        {"{\"rope_local_base_freq\":10000.0}", "rope_local_base_freq"},
        {"{\"query_pre_attn_scalar\":24}", "query_pre_attn_scalar"},
        {"{\"use_bidirectional_attention\":true}", "use_bidirectional_attention"},
        {"{\"model_type\":\"gemma3_text\",\"architectures\":null,\"hidden_activation\":\"gelu\"}",
         "hidden_activation"},
        {"{\"model_type\":\"gemma3_text\",\"architectures\":null,"
         "\"use_bidirectional_attention\":true}",
         "use_bidirectional_attention"},
        {"{\"model_type\":\"gemma3_text\",\"architectures\":null,\"attn_logit_softcapping\":50}",
         "attn_logit_softcapping"},
        {"{\"model_type\":\"gemma3\",\"architectures\":null}", "gemma3"},
        {"{\"quantization_config\":{\"quant_method\":\"awq\"}}", "quantization_config"},
        {"{\"brand_new_scale\":2.5}", "brand_new_scale"},
        {"{\"some_norm_option\":true}", "some_norm_option"},
        {"{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}", "dynamic"},
        {"{\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2.0}}", "longrope"},
        {"{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0,\"odd_key\":1}}", "odd_key"},
        {"{\"rope_parameters\":{\"rope_type\":\"su\",\"rope_theta\":1e4}}", "su"},
        {"{\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}}",
         "partial_rotary_factor"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        config_refused(cases[i].changes, STATUS_UNSUPPORTED, cases[i].word);
    remove_folder();
}

TEST(config_values_that_cannot_be_are_refused)
{
    static const struct {
        const char *changes, *word;
    } cases[] = {
        {"{\"model_type\":null}", "model_type"},
        {"{\"hidden_size\":null}", "hidden_size"},
        {"{\"hidden_size\":-16}", "hidden_size"},
        {"{\"hidden_size\":\"16\"}", "hidden_size"},
        {"{\"hidden_size\":1.5}", "hidden_size"},
        {"{\"num_hidden_layers\":0}", "num_hidden_layers"},
        {"{\"num_hidden_layers\":99999999}", "num_hidden_layers"},
        {"{\"num_attention_heads\":0}", "num_attention_heads"},
        {"{\"num_attention_heads\":3}", "num_attention_heads"},
        {"{\"num_key_value_heads\":4}", "num_key_value_heads"},
        {"{\"num_attention_heads\":3,\"head_dim\":8,\"num_key_value_heads\":2}", "KV heads"},
        {"{\"rms_norm_eps\":\"small\"}", "rms_norm_eps"},
        {"{\"rms_norm_eps\":2}", "epsilon"},
        {"{\"rope_theta\":-1}", "theta"},
        {"{\"rope_scaling\":7}", "rope_scaling"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", "factor"},
        {"{\"rope_scaling\":{\"factor\":2}}", "rope_type"},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":1,\"original_max_position_embeddings\":32}}",
         "low_freq_factor"},
        {"{\"max_position_embeddings\":0}", "max_position_embeddings"},
        {"{\"tie_word_embeddings\":\"yes\"}", "tie_word_embeddings"},
        {"{\"model_type\":\"gemma3_text\",\"architectures\":null,\"query_pre_attn_scalar\":0}",
         "query_pre_attn_scalar"},
        {"{\"model_type\":\"gemma3_text\",\"architectures\":null,\"rope_local_base_freq\":-1}",
         "theta"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        config_refused(cases[i].changes, STATUS_INVALID, cases[i].word);
    config_refused("{\"head_dim\":12}", STATUS_UNSUPPORTED, "head_dim");
    remove_folder();
}

TEST(neutral_and_harmless_keys_are_accepted)
{
    static const char *const cases[] = {
        "{}",
        "{\"attention_multiplier\":1.0,\"logits_scaling\":1,\"partial_rotary_factor\":1.0}",
        "{\"final_logit_softcapping\":null,\"sliding_window\":null,\"num_experts\":0}",
        "{\"brand_new_scale\":null,\"brand_new_flag\":false,\"some_name\":\"text\"}",
        "{\"use_cache\":true,\"pretraining_tp\":2,\"initializer_range\":0.02,\"torch_dtype\":"
        "\"float32\"}",
        "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}",
        "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":20000.0}}",
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weights *w;
        struct model *m = config_accepted(cases[i], &w);
        EXPECT_EQ(model_plan(m)->stage_count, 8);
        EXPECT_EQ(model_parameters(m),
                  10 * 16 * 2 + 16 * 3 + 16 * 16 * 2 + 8 * 16 * 2 + 3 * 24 * 16);
        end(w, m);
    }
    remove_folder();
}

TEST(missing_misshapen_and_extra_tensors_are_named)
{
    struct model_options none = {0};

    make_folder();
    write_config("{}");
    for (uint32_t i = 0; i < BASE_TENSORS; i++) {
        struct tensor t = base_tensors[i];
        write_tensors(t.name, NULL, NULL, NULL);
        refused("missing", folder, none, STATUS_NOT_FOUND, t.name);
        t.cols += 8;
        write_tensors(NULL, NULL, &t, NULL);
        refused("too wide", folder, none, STATUS_CORRUPT, t.name);
        t = base_tensors[i];
        t.rows = t.rows ? t.rows + 1 : 2;
        write_tensors(NULL, NULL, &t, NULL);
        refused("too high", folder, none, STATUS_CORRUPT, t.name);
    }
    struct tensor extra = {"model.layers.1.mlp.up_proj.weight", 24, 16};
    write_tensors(NULL, &extra, NULL, NULL);
    refused("extra", folder, none, STATUS_UNSUPPORTED, extra.name);
    extra = (struct tensor){L "self_attn.q_proj.bias", 0, 16};
    write_tensors(NULL, &extra, NULL, NULL);
    refused("a bias that the config does not have", folder, none, STATUS_UNSUPPORTED, extra.name);
    write_tensors(NULL, NULL, NULL, "F8_E4M3");
    refused("fp8", folder, none, STATUS_UNSUPPORTED, "F8_E4M3");
    extra = (struct tensor){L "self_attn.rotary_emb.inv_freq", 0, 4};
    write_tensors(NULL, &extra, NULL, NULL);
    struct error err;
    struct weights *w;
    struct model *m;
    EXPECT_OK_ERR(open_at(folder, none, &err, &w, &m), &err);
    end(w, m);
    write_config("{\"tie_word_embeddings\":true}"); /* a head beside it does not count */
    EXPECT_OK_ERR(open_at(folder, none, &err, &w, &m), &err);
    EXPECT_TRUE(model_plan(m)->stages[6].head.weight.data ==
                model_plan(m)->stages[0].embed.table.data);
    end(w, m);
    remove_folder();
}

TEST(options_out_of_range_are_refused)
{
    make_folder();
    write_config("{}");
    write_tensors(NULL, NULL, NULL, NULL);
    refused("context", folder, (struct model_options){.context_tokens = 65}, STATUS_INVALID, "65");
    refused("tokens", folder, (struct model_options){.vocab_tokens = 11}, STATUS_INVALID, "11");
    refused("ranks", folder, (struct model_options){.shard = {0, 3}}, STATUS_INVALID, "3 ranks");
    remove_folder();
}

/* Two ranks: each has half of the rows of q, gate and up, half of the columns of o and down, and the one KV head. */
TEST(a_rank_gets_its_slices)
{
    struct error err;
    struct weights *w;
    struct model *m[2];

    make_folder();
    write_config("{}");
    write_tensors(NULL, NULL, NULL, NULL);
    EXPECT_OK_ERR(weights_open(folder, 0, &w, &err), &err);
    for (uint32_t r = 0; r < 2; r++) {
        struct model_options o = {.shard = {r, 2}};
        EXPECT_OK_ERR(model_open(w, &o, &m[r], &err), &err);
        const struct stage *s = model_plan(m[r])->stages;
        const char *q = weights_find(w, L "self_attn.q_proj.weight")->data;
        const char *k = weights_find(w, L "self_attn.k_proj.weight")->data;
        const char *o_proj = weights_find(w, L "self_attn.o_proj.weight")->data;
        const char *down = weights_find(w, L "mlp.down_proj.weight")->data;
        EXPECT_EQ(s[1].attn_in.heads, 1);
        EXPECT_EQ(s[1].attn_in.kv_heads, 1);
        EXPECT_EQ(s[1].attn_in.q.rows, 8);
        EXPECT_TRUE((const char *)s[1].attn_in.q.data == q + r * 8 * 16 * 4);
        EXPECT_TRUE((const char *)s[1].attn_in.k.data == k); /* shared */
        EXPECT_EQ(s[3].attn_out.weight.cols, 8);
        EXPECT_EQ(s[3].attn_out.weight.row_stride, 16 * 4);
        EXPECT_TRUE((const char *)s[3].attn_out.weight.data == o_proj + r * 8 * 4);
        EXPECT_EQ(s[4].ffn_in.gate.rows, 12);
        EXPECT_TRUE((const char *)s[5].ffn_out.weight.data == down + r * 12 * 4);
        EXPECT_TRUE(s[3].attn_out.reduce && s[5].ffn_out.reduce);
        EXPECT_EQ(model_plan(m[r])->qkv_max, 24);
    }
    model_close(m[0]);
    model_close(m[1]);
    weights_close(w);
    remove_folder();
}

/* Qwen with windows on its upper layers has two KV groups; layer_types says it too. */
TEST(layers_with_windows_form_their_own_kv_group)
{
    static const char *const forms[] = {
        "{\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"],\"num_hidden_layers\":"
        "3,"
        "\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":1}",
        "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"num_hidden_layers\":"
        "3,"
        "\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":9,"
        "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}"};

    for (uint32_t i = 0; i < 2; i++) {
        struct model_options o = {0};
        struct error err;
        struct weights *w;
        struct model *m;
        make_folder();
        write_config(forms[i]);
        EXPECT_OK_ERR(model_open_dummy(folder, &o, &w, &m, &err), &err);
        const struct plan *p = model_plan(m);
        EXPECT_EQ(p->group_count, 2);
        EXPECT_EQ(p->groups[0].window, 0);
        EXPECT_EQ(p->groups[0].layers, 1);
        EXPECT_EQ(p->groups[1].window, 32);
        EXPECT_EQ(p->groups[1].layers, 2);
        EXPECT_EQ(p->stages[11].attn_in.group, 1);
        EXPECT_EQ(p->stages[11].attn_in.group_layer, 1);
        EXPECT_EQ(p->stages[1].attn_in.q_bias.rows, i == 0);
        EXPECT_EQ(p->stages[1].attn_in.q_norm.gain.rows, i == 1);
        end(w, m);
    }
    remove_folder();
}

/* Gemma's pattern in every form that its configs have: a number, a list, and settings of the rotation by kind of layer. */
TEST(layers_of_a_pattern_have_two_groups_and_two_rotations)
{
#define GEMMA                                                                          \
    "{\"model_type\":\"gemma3_text\",\"architectures\":[\"Gemma3ForCausalLM\"],"       \
    "\"num_hidden_layers\":4,\"hidden_act\":null,\"rope_theta\":null,\"head_dim\":16," \
    "\"sliding_window\":32,\"query_pre_attn_scalar\":64,"
    static const char *const forms[] = {
        GEMMA
        "\"sliding_window_pattern\":2,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}",
        GEMMA "\"_sliding_window_pattern\":2,\"rope_local_base_freq\":10000,"
              "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}",
        GEMMA
        "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\","
        "\"full_attention\"],\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
        "\"factor\":8,\"rope_theta\":1e6},\"sliding_attention\":{\"rope_type\":\"default\","
        "\"rope_theta\":10000}}}"};

    for (uint32_t i = 0; i < 3; i++) {
        struct model_options o = {0};
        struct error err;
        struct weights *w;
        struct model *m;
        make_folder();
        write_config(forms[i]);
        EXPECT_OK_ERR(model_open_dummy(folder, &o, &w, &m, &err), &err);
        const struct plan *p = model_plan(m);
        EXPECT_EQ(p->group_count, 2);
        EXPECT_EQ(p->groups[0].window, 32);
        EXPECT_EQ(p->groups[1].window, 0);
        EXPECT_EQ(p->rope_count, 2);
        EXPECT_NEAR(p->ropes[0].inv_freq[1], pow(1e6, -0.125) / 8, 1e-7);
        EXPECT_NEAR(p->ropes[1].inv_freq[1], pow(1e4, -0.125), 1e-7);
        EXPECT_NEAR(p->stages[0].embed.scale, 4, 1e-6);
        for (uint32_t layer = 0; layer < 4; layer++) {
            const struct stage *s = &p->stages[1 + 5 * layer];
            EXPECT_EQ(s[0].attn_in.group, layer % 2);
            EXPECT_EQ(s[0].attn_in.rope, 1 - layer % 2);
            EXPECT_NEAR(s[0].attn_in.q_norm.gain_offset, 1, 0);
            EXPECT_NEAR(s[1].attn.scale, 0.125, 1e-7);
            EXPECT_EQ(s[2].attn_out.post_norm.gain.cols, 16);
            EXPECT_EQ(s[3].ffn_in.act, ACT_GELU_TANH);
            EXPECT_EQ(s[4].ffn_out.post_norm.gain.cols, 16);
        }
        const struct stage *head = &p->stages[p->stage_count - 2]; /* tied, unless told otherwise */
        EXPECT_EQ(head->head.weight.dummy_seed, p->stages[0].embed.table.dummy_seed);
        end(w, m);
    }
    remove_folder();
}

/* Values from numpy in float32 steps, after transformers' modeling_rope_utils.py. */
TEST(yarn_frequencies_are_the_published_ones)
{
    static const struct {
        uint32_t at;
        float value;
    } qwen[] = {{0, 1},
                {10, 0.115478203f},
                {20, 0.0133352149f},
                {30, 0.00106436107f},
                {40, 4.44569851e-05f},
                {63, 3.10234441e-07f}},
      llama[] = {{0, 1},
                 {8, 0.100000001f},
                 {12, 0.0270618014f},
                 {16, 0.00567307696f},
                 {20, 0.000881788961f},
                 {31, 8.3345094e-06f}};
    struct rope_config r = {.scaling = ROPE_YARN,
                            .theta = 1e6,
                            .factor = 4,
                            .original_context = 32768,
                            .beta_fast = 32,
                            .beta_slow = 1,
                            .truncate = true};
    float inv_freq[64], scale;

    rope_frequencies(&r, 128, inv_freq, &scale);
    EXPECT_NEAR(scale, 1.138629436111989, 1e-7);
    for (uint32_t i = 0; i < 6; i++)
        EXPECT_NEAR(inv_freq[qwen[i].at] / qwen[i].value, 1, 1e-6);
    r.theta = 1e4, r.factor = 16, r.original_context = 4096;
    rope_frequencies(&r, 64, inv_freq, &scale);
    EXPECT_NEAR(scale, 1.2772588722239782, 1e-7);
    for (uint32_t i = 0; i < 6; i++)
        EXPECT_NEAR(inv_freq[llama[i].at] / llama[i].value, 1, 1e-6);
    r.mscale = r.mscale_all_dim = 0.707; /* DeepSeek: they cancel */
    rope_frequencies(&r, 64, inv_freq, &scale);
    EXPECT_NEAR(scale, 1, 1e-7);
    r.attention_factor = 1.5;
    rope_frequencies(&r, 64, inv_freq, &scale);
    EXPECT_NEAR(scale, 1.5, 1e-7);
}

/* --- GGUF --- */

/* A golden GGUF with `from` replaced by `to` of equal length, at its first place. */
static void patched_refused(const char *from, const char *to, size_t len, enum status status,
                            const char *word)
{
    struct error err;
    char *bytes = NULL, path[600];
    uint64_t size;
    const char *golden = test_golden("quants/llama_mix.gguf");

    if (!golden) fail_msg("quants/llama_mix.gguf is not there");
    make_folder();
    EXPECT_OK_ERR(file_read(golden, 1 << 20, &bytes, &size, &err), &err);
    char *at = memmem(bytes, size, from, len);
    if (!at) fail_msg("'%s' is not in the file", from);
    memcpy(at, to, len);
    write_file("model.gguf", bytes, size);
    free(bytes);
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    refused(to, path, (struct model_options){0}, status, word);
}

TEST(gguf_faults_are_named)
{
    patched_refused("architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                    "architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llamx", 29, STATUS_UNSUPPORTED,
                    "llamx");
    patched_refused("llama.rope.dimension_count", "llama.new_residual_factorx", 26,
                    STATUS_UNSUPPORTED, "new_residual_factorx");
    patched_refused("llama.vocab_size", "llama.alibi_size", 16, STATUS_UNSUPPORTED, "alibi_size");
    patched_refused("llama.block_count", "llama.block_copnt", 17, STATUS_INVALID, "block_count");
    patched_refused("blk.1.attn_q.weight", "blk.1.attn_x.weight", 19, STATUS_NOT_FOUND,
                    "blk.1.attn_q.weight");
    patched_refused("rope.dimension_count\x04\0\0\0\x40", "rope.dimension_count\x04\0\0\0\x20", 25,
                    STATUS_UNSUPPORTED, "rope.dimension_count");
    patched_refused("head_count_kv\x04\0\0\0\x01", "head_count_kv\x04\0\0\0\x03", 18,
                    STATUS_CORRUPT, "attn_k.weight");
    remove_folder();
}

/* --- published models, from their configs alone --- */

TEST(published_configs_open_with_their_parameter_counts)
{
    static const struct {
        const char *name;
        double billions; /* as their cards and safetensors metadata give them */
    } models[] = {
        {"Llama-3-8B", 8.030261248},          {"Llama-3-70B", 70.553706496},
        {"Qwen2.5-7B", 7.615616512},          {"DeepSeek-R1-Distill-Qwen-7B", 7.615616512},
        {"DeepSeek-Coder-33B", 33.342991360}, {"SmolLM2-135M", 0.134515008},
        {"Gemma-3-270M", 0.268098176}};

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct model_options o = {.context_tokens = 4096};
        struct device_options device = {.kind = DEVICE_CPU, .threads = 2, .numerics = CPU_FAST};
        struct device_limits limits = {.slots_max = 8,
                                       .rows_max = 512,
                                       .logits_max = 8,
                                       .steps_inflight = 2,
                                       .context_tokens = 4096,
                                       .kv_blocks = {2048, 2048}};
        struct device_memory memory;
        char path[512];
        struct error err;
        struct weights *w;
        struct model *m;
        snprintf(path, sizeof path, "%s/configs/models/%s", INFERD_SOURCE_DIR, models[i].name);
        EXPECT_OK_ERR(model_open_dummy(path, &o, &w, &m, &err), &err);
        EXPECT_NEAR((double)model_parameters(m) / 1e9, models[i].billions, 1e-8);
        EXPECT_OK_ERR(device_memory_plan(&device, model_plan(m), &limits, &memory, &err), &err);
        EXPECT_TRUE(memory.device_bytes > model_parameters(m)); /* bf16 and more */
        EXPECT_TRUE(strlen(model_description(m)) > 20);
        end(w, m);
    }
}
