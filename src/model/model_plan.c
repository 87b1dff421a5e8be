/* model_plan.c - makes the stages of a forward pass from a config, the weight table and a rank's part. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "model/model_build.h"

struct builder {
    struct weight_table *table;
    const struct model_config *c;
    const struct model_options *options;
    struct plan *plan;
    struct stage *stages;
    struct error *err;
    enum status st;                         /* the first fault; later calls do nothing */
    struct shard_span heads, kv_heads, ffn; /* this rank's */
};

static void take(struct builder *b, enum tensor_id id, uint32_t layer, struct weight_cut cut,
                 struct plan_weight *out)
{
    if (!b->st) b->st = weight_table_take(b->table, id, layer, &cut, out, b->err);
}

/* A vector that the config or, in GGUF, the file says is there. */
static void take_optional(struct builder *b, enum tensor_id id, uint32_t layer, bool wanted,
                          struct weight_cut cut, struct plan_weight *out)
{
    if (b->c->gguf && !b->table->dummy) wanted = weight_table_has(b->table, id, layer);
    if (wanted) take(b, id, layer, cut, out);
}

static struct shard_span in_elements(struct shard_span heads, uint32_t head_dim)
{
    return (struct shard_span){heads.first * head_dim, heads.count * head_dim};
}

static struct stage *add_stage(struct builder *b, enum stage_kind kind, uint32_t layer)
{
    struct stage *s = &b->stages[b->plan->stage_count++];

    s->kind = kind;
    s->layer = layer;
    return s;
}

static struct plan_norm make_norm(struct builder *b, enum tensor_id id, uint32_t layer,
                                  uint32_t cols)
{
    struct plan_norm norm = {.eps = (float)b->c->norm_eps};

    if (b->c->arch->hf_gain_offset && !b->c->gguf) norm.gain_offset = 1;
    take(b, id, layer, (struct weight_cut){.rows = 1, .cols = cols}, &norm.gain);
    return norm;
}

/* The group of layers with this window; a new one where there is none yet. */
static uint32_t group_for(struct builder *b, uint32_t window)
{
    struct plan *p = b->plan;

    for (uint32_t g = 0; g < p->group_count; g++)
        if (p->groups[g].window == window) return g;
    if (p->group_count == PLAN_GROUPS_MAX) {
        if (!b->st)
            b->st = error_set(b->err, STATUS_UNSUPPORTED,
                              "more than %d different attention windows", PLAN_GROUPS_MAX);
        return 0;
    }
    p->groups[p->group_count] = (struct plan_kv_group){
        .kind = KV_ATTENTION,
        .format = b->options->kv_format,
        .kv_heads = b->kv_heads.count,
        .head_dim = b->c->head_dim,
        .block_tokens = b->options->block_tokens ? b->options->block_tokens : 16,
        .window = window,
    };
    return p->group_count++;
}

static void add_attention(struct builder *b, uint32_t layer)
{
    const struct model_config *c = b->c;
    uint32_t dim = c->head_dim, group = group_for(b, c->windows[layer]);
    uint32_t group_layer = b->plan->groups[group].layers++;
    struct shard_span q = in_elements(b->heads, dim), kv = in_elements(b->kv_heads, dim);
    struct stage_attn_in *in = &add_stage(b, STAGE_ATTN_IN, layer)->attn_in;
    struct weight_cut q_cut = {c->heads * dim, c->hidden, q, {0}};
    struct weight_cut kv_cut = {c->kv_heads * dim, c->hidden, kv, {0}};
    struct weight_cut q_bias = {1, c->heads * dim, {0}, q},
                      kv_bias = {1, c->kv_heads * dim, {0}, kv};

    in->norm = make_norm(b, TENSOR_ATTN_NORM, layer, c->hidden);
    take(b, TENSOR_Q, layer, q_cut, &in->q);
    take(b, TENSOR_K, layer, kv_cut, &in->k);
    take(b, TENSOR_V, layer, kv_cut, &in->v);
    take_optional(b, TENSOR_Q_BIAS, layer, c->qkv_bias, q_bias, &in->q_bias);
    take_optional(b, TENSOR_K_BIAS, layer, c->qkv_bias, kv_bias, &in->k_bias);
    take_optional(b, TENSOR_V_BIAS, layer, c->qkv_bias, kv_bias, &in->v_bias);
    if (c->arch->qk_norm) {
        in->q_norm = make_norm(b, TENSOR_Q_NORM, layer, dim);
        in->k_norm = make_norm(b, TENSOR_K_NORM, layer, dim);
    }
    in->heads = b->heads.count, in->kv_heads = b->kv_heads.count, in->head_dim = dim;
    in->pairing = c->pairing;
    in->rope = c->has_rope_local && c->windows[layer] ? 1 : 0;
    in->group = group, in->group_layer = group_layer;

    struct stage_attn *attn = &add_stage(b, STAGE_ATTN, layer)->attn;
    attn->heads = in->heads, attn->kv_heads = in->kv_heads, attn->head_dim = dim;
    attn->scale = (float)(1 / sqrt(c->query_scalar));
    attn->group = group, attn->group_layer = group_layer;

    struct stage_project *out = &add_stage(b, STAGE_ATTN_OUT, layer)->attn_out;
    take(b, TENSOR_O, layer, (struct weight_cut){c->hidden, c->heads * dim, {0}, q}, &out->weight);
    take_optional(b, TENSOR_O_BIAS, layer, c->out_bias,
                  (struct weight_cut){.rows = 1, .cols = c->hidden}, &out->bias);
    if (c->arch->post_norms) out->post_norm = make_norm(b, TENSOR_ATTN_POST_NORM, layer, c->hidden);
    out->reduce = b->options->shard.ranks > 1;
}

static void add_ffn(struct builder *b, uint32_t layer)
{
    const struct model_config *c = b->c;
    struct stage_ffn_in *in = &add_stage(b, STAGE_FFN_IN, layer)->ffn_in;
    struct weight_cut wide = {c->ffn, c->hidden, b->ffn, {0}}, bias = {1, c->ffn, {0}, b->ffn};

    in->norm = make_norm(b, TENSOR_FFN_NORM, layer, c->hidden);
    take(b, TENSOR_GATE, layer, wide, &in->gate);
    take(b, TENSOR_UP, layer, wide, &in->up);
    take_optional(b, TENSOR_GATE_BIAS, layer, c->mlp_bias, bias, &in->gate_bias);
    take_optional(b, TENSOR_UP_BIAS, layer, c->mlp_bias, bias, &in->up_bias);
    in->act = c->arch->act;

    struct stage_project *out = &add_stage(b, STAGE_FFN_OUT, layer)->ffn_out;
    take(b, TENSOR_DOWN, layer, (struct weight_cut){c->hidden, c->ffn, {0}, b->ffn}, &out->weight);
    take_optional(b, TENSOR_DOWN_BIAS, layer, c->mlp_bias,
                  (struct weight_cut){.rows = 1, .cols = c->hidden}, &out->bias);
    if (c->arch->post_norms) out->post_norm = make_norm(b, TENSOR_FFN_POST_NORM, layer, c->hidden);
    out->reduce = b->options->shard.ranks > 1;
}

static void add_head(struct builder *b, const struct plan_weight *table)
{
    struct stage_head *head = &add_stage(b, STAGE_HEAD, 0)->head;
    bool tied = b->c->gguf ? !weight_table_has(b->table, TENSOR_HEAD, 0) : b->c->tied;

    head->norm = make_norm(b, TENSOR_FINAL_NORM, 0, b->c->hidden);
    if (tied) {
        head->weight = *table;
        weight_table_skip(b->table, TENSOR_HEAD, 0);
    } else {
        take(b, TENSOR_HEAD, 0,
             (struct weight_cut){.rows = b->plan->vocab_rows, .cols = b->c->hidden}, &head->weight);
    }
    head->logit_scale = 1;
    add_stage(b, STAGE_SAMPLE, 0);
}

static void add_rope(struct builder *b, const struct rope_config *config)
{
    uint32_t half = b->c->head_dim / 2;
    float *inv_freq = arena_alloc(b->table->arena, half * sizeof(float));
    struct plan_rope *rope = &b->plan->ropes[b->plan->rope_count++];

    if (!inv_freq) {
        if (!b->st) b->st = error_set(b->err, STATUS_NOMEM, "no memory for rope frequencies");
        return;
    }
    rope->dim = b->c->head_dim;
    rope_frequencies(config, rope->dim, inv_freq, &rope->scale);
    rope->inv_freq = inv_freq;
}

/* The file's divisors of the first table's frequencies. */
static void divide_rope(struct builder *b)
{
    uint32_t half = b->c->head_dim / 2;
    float divisor[256], *inv_freq = (float *)(uintptr_t)b->plan->ropes[0].inv_freq;
    struct plan_weight factors;

    take(b, TENSOR_ROPE_FACTORS, 0, (struct weight_cut){.rows = 1, .cols = half}, &factors);
    if (b->st) return;
    assert(half <= sizeof divisor / sizeof *divisor);
    quant_row_to_f32(factors.dtype, factors.data, half, divisor);
    for (uint32_t i = 0; i < half; i++) {
        if (!(divisor[i] > 0) || !isfinite(divisor[i])) {
            b->st =
                weights_fault_tensor(b->table->weights, factors.name, b->err, STATUS_CORRUPT,
                                     "factor %u is %g; above 0 is right", i, (double)divisor[i]);
            return;
        }
        inv_freq[i] /= divisor[i];
    }
}

static void split(struct builder *b)
{
    struct shard shard = b->options->shard;

    b->st = shard_split(shard, b->c->heads, "attention heads", &b->heads, b->err);
    if (!b->st) b->st = shard_kv_heads(shard, b->c->kv_heads, &b->kv_heads, b->err);
    if (!b->st) b->st = shard_split(shard, b->c->ffn, "feed-forward columns", &b->ffn, b->err);
}

static void set_sizes(struct builder *b)
{
    struct plan *p = b->plan;
    uint64_t rows = weight_table_rows(b->table, TENSOR_EMBED);

    p->arch = b->c->arch->name;
    p->hidden = b->c->hidden;
    p->layers = b->c->layers;
    p->vocab_rows = b->c->vocab_rows ? b->c->vocab_rows : (uint32_t)rows;
    p->vocab_tokens = b->options->vocab_tokens ? b->options->vocab_tokens
                      : b->c->vocab_tokens     ? b->c->vocab_tokens
                                               : p->vocab_rows;
    p->context_tokens =
        b->options->context_tokens ? b->options->context_tokens : b->c->context_tokens;
    p->ffn_max = b->ffn.count;
    p->qkv_max = (b->heads.count + 2 * b->kv_heads.count) * b->c->head_dim;
    p->dummy_seed = b->options->dummy_seed;
    if (!p->vocab_rows || p->vocab_rows >= 1u << 30 || p->vocab_tokens > p->vocab_rows)
        b->st = error_set(
            b->err, STATUS_INVALID,
            "%s: the tokenizer has %u tokens and the embedding %u rows; as many or more are right",
            weights_path(b->table->weights), p->vocab_tokens, p->vocab_rows);
    else if (p->context_tokens > b->c->context_tokens)
        b->st = error_set(b->err, STATUS_INVALID,
                          "a context of %u tokens is asked for; the model was made for %u",
                          p->context_tokens, b->c->context_tokens);
}

enum status model_build_plan(struct weight_table *table, const struct model_options *options,
                             struct plan *plan, struct error *err)
{
    const struct model_config *c = table->config;
    struct builder b = {.table = table, .c = c, .options = options, .plan = plan, .err = err};
    uint32_t stages = 3 + 5 * c->layers;

    b.stages = arena_alloc(table->arena, stages * sizeof *b.stages);
    if (!b.stages) return error_set(err, STATUS_NOMEM, "no memory for %u stages", stages);
    plan->stages = b.stages;
    split(&b);
    if (!b.st) set_sizes(&b);
    if (b.st) return b.st;
    add_rope(&b, &c->rope);
    if (c->gguf && weight_table_has(table, TENSOR_ROPE_FACTORS, 0)) divide_rope(&b);
    if (c->has_rope_local) add_rope(&b, &c->rope_local);
    struct stage_embed *embed = &add_stage(&b, STAGE_EMBED, 0)->embed;
    embed->scale = c->arch->embed_scaled ? (float)sqrt(c->hidden) : 1;
    take(&b, TENSOR_EMBED, 0, (struct weight_cut){.rows = plan->vocab_rows, .cols = c->hidden},
         &embed->table);
    for (uint32_t layer = 0; !b.st && layer < c->layers; layer++) {
        add_attention(&b, layer);
        add_ffn(&b, layer);
    }
    if (!b.st) add_head(&b, &embed->table);
    if (!b.st) b.st = weight_table_finish(table, err);
    assert(b.st || plan->stage_count == stages);
    return b.st;
}
