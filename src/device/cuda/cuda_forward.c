/* cuda_forward.c - walks the plan's stages and enqueues their kernels.
 *
 * Up to skinny_rows rows, and by other kernels to CUDA_MEDIUM_ROWS: the fused products, 5 launches a layer (qkv,
 * attention, o, gate_up, down). Above: library products between row kernels, 9 launches a layer (10 in steps that mix chunks
 * with decodes); what a product adds to the residual stream then waits as `delta` for the next norm, which adds it. */
#include <assert.h>
#include <nvtx3/nvToolsExt.h>

#include "device/cuda/cuda_device.h"
#include "row_ops.h"

struct walk {
    struct cuda_device *d;
    const struct cuda_forward *f;
    const void *delta; /* not yet added to x; NULL: none */
    const float *delta_bias, *post_gain;
    float post_eps;
    uint32_t stage; /* index of the one that runs */
    uint32_t
        norm_tiles; /* h is x * gain of the next norm, whose sums of squares are in row_sums; 0: it is not */
};

static bool is_skinny(const struct walk *w, const struct cuda_stage *s, uint32_t rows, bool norm)
{
    return w->d->tensor_maps && rows <= w->d->skinny_rows &&
           skinny_gemm_fits(&w->d->ctx, rows, s->weight.cols_padded, norm);
}

static struct skinny_args skinny_of(const struct walk *w, const struct cuda_stage *s, const void *x,
                                    uint64_t x_stride, const struct plan_norm *norm)
{
    return (struct skinny_args){
        .weight = &w->d->tensor_maps[s->index],
        .M = w->f->rows,
        .x = x,
        .x_stride = x_stride,
        .x_cols = s->weight.cols,
        .norm_gain = norm ? s->gain : NULL,
        .norm_eps = norm ? norm->eps : 0,
        .bias = s->bias,
        .scale = 1,
    };
}

static bool is_medium(const struct walk *w, const struct cuda_stage *s, uint32_t rows)
{
    return w->d->mediums && rows > w->d->skinny_rows && rows <= CUDA_MEDIUM_ROWS &&
           w->d->mediums[s->index].N;
}

/* Of the stage behind this one, if it is a product of this kind: its weights may come early. */
static const struct medium_weight *weight_behind(const struct walk *w, uint32_t rows)
{
    const struct cuda_stage *s = &w->d->b.stages[w->stage + 1];

    if (w->stage + 1 >= w->d->plan->stage_count || !s->weight.rows) return NULL;
    return is_medium(w, s, s->plan->kind == STAGE_HEAD ? w->f->outputs : rows)
               ? &w->d->mediums[s->index]
               : NULL;
}

/* x: of the residual stream's width where norm is given: h as norm_before_medium() leaves it. */
static struct medium_args medium_of(struct walk *w, const struct cuda_stage *s, const void *x,
                                    uint64_t x_stride, const struct plan_norm *norm)
{
    struct medium_args a = {
        .weight = &w->d->mediums[s->index],
        .next = weight_behind(w, w->f->rows),
        .M = w->f->rows,
        .x = x,
        .x_stride = x_stride,
        .bias = s->bias,
        .scale = 1,
    };

    if (norm && w->norm_tiles) {
        a.norm_sums = w->d->b.row_sums, a.norm_tiles = w->norm_tiles;
        a.norm_cols = w->d->plan->hidden, a.norm_eps = norm->eps;
    }
    w->norm_tiles = 0;
    return a;
}

static cudaError_t library_product(const struct walk *w, const struct cuda_stage *s, const void *x,
                                   uint32_t rows, void *y, float alpha)
{
    return cuda_gemm_run(w->d->gemm, w->d->gemm_ids[s->index], s->weight.at, x, rows, y, alpha,
                         w->d->ctx.stream);
}

/* h = norm(x + delta) * gain, or only x += delta where gain is NULL. */
static cudaError_t norm_rows(struct walk *w, const float *gain, float eps)
{
    struct cuda_buffers *b = &w->d->b;
    struct norm_args a = {
        .rows = w->f->rows,
        .hidden = w->d->plan->hidden,
        .x = b->x,
        .x_stride = b->hidden_stride,
        .delta = w->delta,
        .delta_stride = b->hidden_stride,
        .delta_bias = w->delta_bias,
        .post_gain = w->post_gain,
        .post_eps = w->post_eps,
        .gain = gain,
        .eps = eps,
        .y = b->h,
        .y_stride = b->hidden_stride,
    };

    if (!gain && !w->delta) return cudaSuccess;
    w->delta = NULL;
    return rmsnorm(&w->d->ctx, &a);
}

static cudaError_t norm_before_medium(struct walk *w, const struct cuda_stage *s, float eps)
{
    return w->norm_tiles ? cudaSuccess : norm_rows(w, s->gain, eps);
}

/* The stage behind this one, if it begins with a norm that the product before it can prepare. */
static const struct cuda_stage *next_norm(const struct walk *w)
{
    const struct cuda_stage *s = &w->d->b.stages[w->stage + 1];
    bool norm = w->stage + 1 < w->d->plan->stage_count &&
                (s->plan->kind == STAGE_ATTN_IN || s->plan->kind == STAGE_FFN_IN);

    return norm && w->d->ctx.type == KERNEL_BF16 && is_medium(w, s, w->f->rows) ? s : NULL;
}

static cudaError_t run_embed(struct walk *w, const struct cuda_stage *s)
{
    struct cuda_buffers *b = &w->d->b;
    struct embed_args a = {w->f->rows,           w->d->plan->hidden,   b->tokens, b->embed.at,
                           b->embed.cols_padded, s->plan->embed.scale, b->x,      b->hidden_stride};
    struct kernel_context ctx = w->d->ctx;

    /* Not before state_rows is done and seen: products and attention read positions, slots and tables before their own wait. */
    ctx.pdl = false;
    return embed(&ctx, &a);
}

static void *layer_pool(const struct walk *w, uint32_t group, uint32_t layer)
{
    const struct cuda_group *g = &w->d->b.groups[group];

    return g->pool + layer * g->layer_bytes;
}

/* Bias (unless the product has added it), head norms, rotation and KV write from b->qkv. */
static cudaError_t run_rope(struct walk *w, const struct cuda_stage *s, bool bias)
{
    const struct stage_attn_in *p = &s->plan->attn_in;
    struct cuda_buffers *b = &w->d->b;
    struct rope_kv_args a = {
        .rows = w->f->rows,
        .heads = p->heads,
        .kv_heads = p->kv_heads,
        .head_dim = p->head_dim,
        .qkv = b->qkv,
        .qkv_stride = b->qkv_stride,
        .bias = bias ? s->bias : NULL,
        .q_gain = s->q_gain,
        .k_gain = s->k_gain,
        .q_eps = p->q_norm.eps,
        .k_eps = p->k_norm.eps,
        .rope_dim = w->d->plan->ropes[p->rope].dim,
        .rope = (const float2 *)b->ropes[p->rope],
        .positions = b->positions,
        .kv_slots = b->groups[p->group].kv_slots,
        .q_out = b->q,
        .q_stride = b->attn_stride,
        .kv = layer_pool(w, p->group, p->group_layer),
    };

    return rope_kv(&w->d->ctx, &a);
}

static struct skinny_qkv qkv_of(const struct walk *w, const struct stage_attn_in *p)
{
    struct cuda_buffers *b = &w->d->b;

    return (struct skinny_qkv){p->heads,
                               p->kv_heads,
                               p->head_dim,
                               w->d->plan->ropes[p->rope].dim,
                               (const float2 *)b->ropes[p->rope],
                               b->positions,
                               b->groups[p->group].kv_slots,
                               layer_pool(w, p->group, p->group_layer)};
}

static cudaError_t medium_attn_in(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_attn_in *p = &s->plan->attn_in;
    struct cuda_buffers *b = &w->d->b;
    bool apart = s->q_gain || s->k_gain || p->head_dim % 4 || w->d->plan->ropes[p->rope].dim % 4;
    cudaError_t e = norm_before_medium(w, s, p->norm.eps);

    if (e) return e;
    struct medium_args a = medium_of(w, s, b->h, b->hidden_stride, &p->norm);
    if (apart) {
        a.epilogue = MEDIUM_STORE, a.y = b->qkv, a.y_stride = b->qkv_stride;
        e = medium_gemm(&w->d->ctx, &a);
        return e ? e : run_rope(w, s, false);
    }
    a.epilogue = MEDIUM_QKV, a.y = b->q, a.y_stride = b->attn_stride;
    a.qkv = qkv_of(w, p);
    return medium_gemm(&w->d->ctx, &a);
}

static cudaError_t run_attn_in(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_attn_in *p = &s->plan->attn_in;
    struct cuda_buffers *b = &w->d->b;
    cudaError_t e;

    if (is_medium(w, s, w->f->rows)) return medium_attn_in(w, s);
    if (!is_skinny(w, s, w->f->rows, true)) {
        e = norm_rows(w, s->gain, p->norm.eps);
        if (!e) e = library_product(w, s, b->h, w->f->rows, b->qkv, 1);
        return e ? e : run_rope(w, s, true);
    }
    e = norm_rows(w, NULL, 0);
    if (e) return e;
    struct skinny_args a = skinny_of(w, s, b->x, b->hidden_stride, &p->norm);
    if (s->q_gain || s->k_gain) {
        a.epilogue = SKINNY_STORE, a.y = b->qkv, a.y_stride = b->qkv_stride;
        e = skinny_gemm(&w->d->ctx, &a);
        return e ? e : run_rope(w, s, false);
    }
    a.epilogue = SKINNY_QKV, a.y = b->q, a.y_stride = b->attn_stride;
    a.qkv = qkv_of(w, p);
    return skinny_gemm(&w->d->ctx, &a);
}

static cudaError_t run_attn(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_attn *p = &s->plan->attn;
    struct cuda_device *d = w->d;
    struct cuda_buffers *b = &d->b;
    bool tiled = prefill_attention_fits(&d->ctx, p->head_dim);
    struct attention_args a = {
        .rows = w->f->rows,
        .heads = p->heads,
        .kv_heads = p->kv_heads,
        .head_dim = p->head_dim,
        .window = d->plan->groups[p->group].window,
        .scale = p->scale,
        .softcap = p->softcap,
        .q = b->q,
        .q_stride = b->attn_stride,
        .out = b->attn,
        .out_stride = b->attn_stride,
        .kv = layer_pool(w, p->group, p->group_layer),
        .kv_blocks = b->groups[p->group].blocks,
        .positions = b->positions,
        .slots = b->row_slots,
        .tables = b->groups[p->group].tables,
        .table_stride = b->table_stride,
    };
    cudaError_t e = cudaSuccess;

    if (w->f->has_chunks && !tiled) return attention_general(&d->ctx, &a);
    if (w->f->tile_count) e = prefill_attention(&d->ctx, &a, w->f->tiles, w->f->tile_count);
    if (e || !w->f->decode_rows) return e;
    a.rows = w->f->decode_rows, a.row_list = w->f->decode_list;
    if (!paged_decode_fits(p->head_dim)) return attention_general(&d->ctx, &a);
    struct decode_scratch scratch = {
        b->partial, b->partial_ml, (uint32_t *)b->counters,
        cuda_decode_splits(&d->options, &d->limits, w->f->decode_rows, p->kv_heads),
        w->f->decode_rows <= CUDA_SKINNY_ROWS || d->options.batch_invariant};
    return paged_decode(&d->ctx, &a, &scratch);
}

/* To the residual stream, and on the way the next norm's part; with a norm behind it, only to delta. */
static cudaError_t medium_project(struct walk *w, const struct cuda_stage *s, const void *x,
                                  uint64_t x_stride)
{
    struct cuda_buffers *b = &w->d->b;
    struct medium_args a = medium_of(w, s, x, x_stride, NULL);
    const struct cuda_stage *next = s->post_gain ? NULL : next_norm(w);

    a.epilogue = s->post_gain ? MEDIUM_STORE : MEDIUM_RESIDUAL;
    a.y = s->post_gain ? (void *)b->delta : b->x;
    a.y_stride = b->hidden_stride;
    if (next) {
        a.next_gain = next->gain, a.sums = b->row_sums;
        a.h = b->h, a.h_stride = b->hidden_stride;
        w->norm_tiles = medium_tiles(a.weight);
    }
    return medium_gemm(&w->d->ctx, &a);
}

static cudaError_t run_project(struct walk *w, const struct cuda_stage *s,
                               const struct stage_project *p, const void *x, uint64_t x_stride)
{
    struct cuda_buffers *b = &w->d->b;
    cudaError_t e;

    assert(!w->delta);
    if (is_skinny(w, s, w->f->rows, false)) {
        struct skinny_args a = skinny_of(w, s, x, x_stride, NULL);
        a.epilogue = s->post_gain ? SKINNY_STORE : SKINNY_RESIDUAL;
        a.y = s->post_gain ? (void *)b->delta : b->x;
        a.y_stride = b->hidden_stride;
        e = skinny_gemm(&w->d->ctx, &a);
        if (!s->post_gain) return e;
        w->delta_bias = NULL;
    } else if (is_medium(w, s, w->f->rows)) {
        e = medium_project(w, s, x, x_stride);
        if (!s->post_gain) return e;
        w->delta_bias = NULL;
    } else {
        e = library_product(w, s, x, w->f->rows, b->delta, 1);
        w->delta_bias = s->bias;
    }
    w->delta = b->delta;
    w->post_gain = s->post_gain, w->post_eps = p->post_norm.eps;
    return e;
}

static cudaError_t run_ffn_in(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_ffn_in *p = &s->plan->ffn_in;
    struct cuda_buffers *b = &w->d->b;
    int act = p->act == ACT_GELU_TANH;
    cudaError_t e;

    if (is_skinny(w, s, w->f->rows, true)) {
        e = norm_rows(w, NULL, 0);
        struct skinny_args a = skinny_of(w, s, b->x, b->hidden_stride, &p->norm);
        a.epilogue = SKINNY_GLU, a.act = act, a.y = b->ffn, a.y_stride = b->ffn_stride;
        return e ? e : skinny_gemm(&w->d->ctx, &a);
    }
    if (is_medium(w, s, w->f->rows)) {
        e = norm_before_medium(w, s, p->norm.eps);
        struct medium_args a = medium_of(w, s, b->h, b->hidden_stride, &p->norm);
        a.epilogue = MEDIUM_GLU, a.act = act, a.y = b->ffn, a.y_stride = b->ffn_stride;
        return e ? e : medium_gemm(&w->d->ctx, &a);
    }
    struct glu_args g = {w->f->rows, p->gate.rows, b->glu, b->glu_stride,
                         s->bias,    act,          b->ffn, b->ffn_stride};
    e = norm_rows(w, s->gain, p->norm.eps);
    if (!e) e = library_product(w, s, b->h, w->f->rows, b->glu, 1);
    return e ? e : glu(&w->d->ctx, &g);
}

/* Only for the rows that want logits, packed together. */
static cudaError_t run_head(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_head *p = &s->plan->head;
    struct cuda_buffers *b = &w->d->b;
    uint32_t outputs = w->f->outputs;
    cudaError_t e = norm_rows(w, NULL, 0);

    if (e || !outputs) return e;
    if (is_skinny(w, s, outputs, true)) {
        struct skinny_args a = skinny_of(w, s, b->x, b->hidden_stride, &p->norm);
        a.M = outputs, a.row_index = b->out_rows, a.epilogue = SKINNY_LOGITS;
        a.scale = p->logit_scale, a.softcap = p->softcap, a.y = b->logits,
        a.y_stride = b->logits_stride;
        return skinny_gemm(&w->d->ctx, &a);
    }
    struct norm_args n = {.rows = outputs,
                          .hidden = w->d->plan->hidden,
                          .x = b->x,
                          .x_stride = b->hidden_stride,
                          .row_index = b->out_rows,
                          .gain = s->gain,
                          .eps = p->norm.eps,
                          .y = b->h,
                          .y_stride = b->hidden_stride};
    e = rmsnorm(&w->d->ctx, &n);
    if (!e && is_medium(w, s, outputs)) {
        struct medium_args a = medium_of(w, s, b->h, b->hidden_stride, NULL);
        a.M = outputs, a.epilogue = MEDIUM_LOGITS;
        a.scale = p->logit_scale, a.softcap = p->softcap;
        a.y = b->logits, a.y_stride = b->logits_stride;
        return medium_gemm(&w->d->ctx, &a);
    }
    if (!e) e = library_product(w, s, b->h, outputs, b->logits, p->logit_scale);
    if (!e && p->softcap > 0)
        e = softcap_logits(&w->d->ctx, b->logits, (uint64_t)outputs * b->logits_stride, p->softcap);
    return e;
}

cudaError_t cuda_forward_run(struct cuda_device *d, const struct cuda_forward *f)
{
    struct walk w = {.d = d, .f = f};
    struct cuda_buffers *b = &d->b;
    cudaError_t e = cudaSuccess;

    for (uint32_t i = 0; !e && i < d->plan->stage_count; i++) {
        const struct cuda_stage *s = &b->stages[i];
        w.stage = i;
        if (f->chain && i > 1 && s->plan->kind < STAGE_HEAD) continue; /* in the one launch */
        nvtxRangePushA(f->chain && i == 1 ? "chain" : stage_kind_name(s->plan->kind));
        switch (s->plan->kind) {
        case STAGE_EMBED: e = run_embed(&w, s); break;
        case STAGE_ATTN_IN:
            e = f->chain ? decode_chain_run(&d->ctx, &d->chain.args) : run_attn_in(&w, s);
            break;
        case STAGE_ATTN: e = run_attn(&w, s); break;
        case STAGE_ATTN_OUT:
            e = run_project(&w, s, &s->plan->attn_out, b->attn, b->attn_stride);
            break;
        case STAGE_FFN_IN: e = run_ffn_in(&w, s); break;
        case STAGE_FFN_OUT: e = run_project(&w, s, &s->plan->ffn_out, b->ffn, b->ffn_stride); break;
        case STAGE_HEAD: e = run_head(&w, s); break;
        case STAGE_SAMPLE: break; /* the second half of a step */
        }
        nvtxRangePop();
        if (!e && f->marks) e = cudaEventRecord(f->marks[i], d->ctx.stream);
    }
    return e;
}
