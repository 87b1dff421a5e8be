#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

#include "model/model_build.h"

struct model {
    struct arena arena; /* all that hangs on the plan */
    struct model_config config;
    struct plan plan;
    char description[160];
};

static void describe(struct model *m)
{
    const struct model_config *c = &m->config;

    snprintf(m->description, sizeof m->description,
             "%s, %u layer%s, hidden %u, %u/%u heads of %u, vocabulary %u", c->arch->name,
             c->layers, plural(c->layers), c->hidden, c->heads, c->kv_heads, c->head_dim,
             m->plan.vocab_rows);
}

enum status model_open(struct weights *weights, const struct model_options *options,
                       struct model **out, struct error *err)
{
    struct model *m = calloc(1, sizeof *m);
    struct model_options opt = options ? *options : (struct model_options){0};
    struct weight_table table;
    enum status st;

    if (!m) return error_set(err, STATUS_NOMEM, "no memory for the model");
    if (!opt.shard.ranks) opt.shard = (struct shard){0, 1};
    arena_init(&m->arena, 0);
    st = model_config_read(weights, &m->arena, &m->config, err);
    if (!st) st = weight_table_init(&table, weights, &m->config, &m->arena, err);
    if (!st) {
        table.dummy = opt.dummy;
        table.dummy_seed = opt.dummy_seed;
        table.dummy_dtype = opt.dummy_dtype != DTYPE_F32 ? opt.dummy_dtype : m->config.dtype;
        if (!opt.dummy && weights_kind(weights) == WEIGHTS_NONE)
            st = error_set(err, STATUS_NOT_FOUND,
                           "%s has a config but no weights: *.safetensors are missing",
                           weights_path(weights));
    }
    if (!st) st = model_build_plan(&table, &opt, &m->plan, err);
    if (st) {
        model_close(m);
        return st;
    }
    describe(m);
    *out = m;
    return STATUS_OK;
}

enum status model_open_dummy(const char *path, const struct model_options *options,
                             struct weights **weights, struct model **out, struct error *err)
{
    struct model_options opt = *options;
    enum status st = weights_open(path, WEIGHTS_CONFIG_ONLY, weights, err);

    if (st) return st;
    opt.dummy = true;
    st = model_open(*weights, &opt, out, err);
    if (st) {
        weights_close(*weights);
        *weights = NULL;
    }
    return st;
}

void model_close(struct model *model)
{
    if (!model) return;
    arena_fini(&model->arena);
    free(model);
}

const struct plan *model_plan(const struct model *model)
{
    return &model->plan;
}

const struct model_config *model_config(const struct model *model)
{
    return &model->config;
}

uint64_t model_parameters(const struct model *model)
{
    const struct model_config *c = &model->config;
    uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    uint64_t layer =
        c->hidden * (2 * q + 2 * kv) + 3 * (uint64_t)c->hidden * c->ffn + 2 * c->hidden;
    uint64_t table = (uint64_t)model->plan.vocab_rows * c->hidden;
    const struct stage *embed = &model->plan.stages[0];
    const struct stage *head = &model->plan.stages[model->plan.stage_count - 2];
    bool tied = head->head.weight.data == embed->embed.table.data &&
                head->head.weight.dummy_seed == embed->embed.table.dummy_seed;

    if (c->qkv_bias) layer += q + 2 * kv;
    if (c->out_bias) layer += c->hidden;
    if (c->mlp_bias) layer += 2 * (uint64_t)c->ffn + c->hidden;
    if (c->arch->qk_norm) layer += 2 * c->head_dim;
    if (c->arch->post_norms) layer += 2 * c->hidden;
    return layer * c->layers + table * (tied ? 1 : 2) + c->hidden;
}

const char *model_description(const struct model *model)
{
    return model->description;
}
