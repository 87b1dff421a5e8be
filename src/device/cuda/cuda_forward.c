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
    /* what is still of use: all rows in b->x, or those that want logits, packed in b->packed_x */
    uint32_t rows;
    float *x;
    const void *attn; /* of these rows */
    bool packed;
    const void *delta; /* not yet added to x; NULL: none */
    const float *delta_bias, *post_gain;
    float post_eps;
    uint32_t stage; /* index of the one that runs */
    /* h is x * gain of the next norm, with sums of squares in row_sums, so many a row; 0: it is not */
    uint32_t norm_tiles;
};

/* Who does a product; steps of up to skinny_rows rows, up to CUDA_MEDIUM_ROWS, above. */
enum product_kind { PRODUCT_SKINNY, PRODUCT_MEDIUM, PRODUCT_LIBRARY };

/* A stage's product with what stands around it, told alike for every kind: the first two fold it in, and the library's only
 * stores (SKINNY_STORE, without the bias) or makes logits (SKINNY_LOGITS, without the cap). */
struct product {
    enum product_kind kind;
    uint32_t rows;
    const void *x;
    uint64_t x_stride;
    const int32_t *row_index;     /* skinny only: [rows] of x, or NULL */
    const struct plan_norm *norm; /* in front, of which the kind does its own part; or NULL */
    enum skinny_epilogue end;
    int act;
    float scale, softcap;
    void *y;
    uint64_t y_stride;
    struct skinny_qkv qkv;
};

static enum product_kind kind_of(const struct walk *w, const struct cuda_stage *s, uint32_t rows)
{
    const struct cuda_device *d = w->d;
    bool norm = s->gain != NULL;

    if (rows <= d->skinny_rows)
        return d->skinny_weights && skinny_gemm_fits(&d->ctx, rows, s->weight.cols_padded, norm)
                   ? PRODUCT_SKINNY
                   : PRODUCT_LIBRARY;
    return d->medium_weights && rows <= CUDA_MEDIUM_ROWS && d->medium_weights[s->index].N
               ? PRODUCT_MEDIUM
               : PRODUCT_LIBRARY;
}

/* The stage behind this one, if it is of the medium kind and begins with a norm of all rows: the product before it prepares that. */
static const struct cuda_stage *norm_behind(const struct walk *w)
{
    const struct cuda_stage *s = &w->d->b.stages[w->stage + 1];

    if (w->stage + 1 >= w->d->plan->stage_count || w->d->ctx.type != KERNEL_BF16) return NULL;
    if (s->plan->kind != STAGE_ATTN_IN && s->plan->kind != STAGE_FFN_IN) return NULL;
    return kind_of(w, s, w->rows) == PRODUCT_MEDIUM ? s : NULL;
}

static cudaError_t skinny_product(struct walk *w, const struct cuda_stage *s,
                                  const struct product *p)
{
    struct skinny_args a = {
        .weight = &w->d->skinny_weights[s->index],
        .M = p->rows,
        .x = p->x,
        .x_stride = p->x_stride,
        .x_cols = s->weight.cols,
        .row_index = p->row_index,
        .norm_gain = p->norm ? s->gain : NULL,
        .norm_eps = p->norm ? p->norm->eps : 0,
        .bias = s->bias,
        .epilogue = p->end,
        .act = p->act,
        .scale = p->scale,
        .softcap = p->softcap,
        .y = p->y,
        .y_stride = p->y_stride,
        .qkv = p->qkv,
    };

    return skinny_gemm(&w->d->ctx, &a);
}

/* Ends the norm that the product before it began, and begins the next one's. */
static cudaError_t medium_product(struct walk *w, const struct cuda_stage *s,
                                  const struct product *p)
{
    struct cuda_buffers *b = &w->d->b;
    const struct cuda_stage *next = p->end == SKINNY_RESIDUAL ? norm_behind(w) : NULL;
    struct medium_args a = {
        .weight = &w->d->medium_weights[s->index],
        .M = p->rows,
        .x = p->x,
        .x_stride = p->x_stride,
        .bias = s->bias,
        .epilogue = (enum medium_epilogue)p->end,
        .act = p->act,
        .scale = p->scale,
        .softcap = p->softcap,
        .y = p->y,
        .y_stride = p->y_stride,
        .qkv = p->qkv,
    };

    if (p->norm && w->norm_tiles) {
        a.norm_sums = b->row_sums, a.norm_tiles = w->norm_tiles;
        a.norm_cols = w->d->plan->hidden, a.norm_eps = p->norm->eps;
    }
    w->norm_tiles = 0;
    if (next) {
        a.next_gain = next->gain, a.sums = b->row_sums;
        a.h = b->h, a.h_stride = b->hidden_stride;
        w->norm_tiles = medium_tiles(a.weight);
    }
    return medium_gemm(&w->d->ctx, &a);
}

static cudaError_t run_product(struct walk *w, const struct cuda_stage *s, const struct product *p)
{
    switch (p->kind) {
    case PRODUCT_SKINNY: return skinny_product(w, s, p);
    case PRODUCT_MEDIUM: return medium_product(w, s, p);
    case PRODUCT_LIBRARY: break;
    }
    assert(p->end == SKINNY_STORE || p->end == SKINNY_LOGITS);
    return cuda_gemm_run(w->d->gemm, w->d->gemm_ids[s->index], s->weight.at, p->x, p->rows, p->y,
                         p->scale, w->d->ctx.stream);
}

/* h = norm(x + delta) * gain, or only x += delta where gain is NULL. */
static cudaError_t norm_rows(struct walk *w, const float *gain, float eps)
{
    struct cuda_buffers *b = &w->d->b;
    struct norm_args a = {
        .rows = w->rows,
        .hidden = w->d->plan->hidden,
        .x = w->x,
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

/* The product of a stage with a norm in front, over all rows. Its x is the residual stream with everything added to it; what of
 * the norm the product does not do itself is done here, unless the product before has. */
static cudaError_t begin_normed(struct walk *w, const struct cuda_stage *s,
                                const struct plan_norm *norm, struct product *out)
{
    struct cuda_buffers *b = &w->d->b;
    enum product_kind kind = kind_of(w, s, w->rows);

    *out = (struct product){
        .kind = kind,
        .rows = w->rows,
        .x = kind == PRODUCT_SKINNY ? (const void *)w->x : b->h,
        .x_stride = b->hidden_stride,
        .norm = norm,
        .scale = 1,
    };
    if (w->norm_tiles) return cudaSuccess;
    /* The product in front that would have prepared it is left out (cuda_leave_out): its part is not this stage's. */
    if (w->f->left_out && kind == PRODUCT_MEDIUM && !w->delta) return cudaSuccess;
    return norm_rows(w, kind == PRODUCT_SKINNY ? NULL : s->gain, norm->eps);
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

/* Whether rotation and KV write stand in a launch of their own behind the product. */
static bool rope_apart(const struct walk *w, const struct cuda_stage *s, enum product_kind kind)
{
    const struct stage_attn_in *p = &s->plan->attn_in;

    if (kind == PRODUCT_LIBRARY || s->q_gain || s->k_gain) return true;
    return kind == PRODUCT_MEDIUM && (p->head_dim % 4 || w->d->plan->ropes[p->rope].dim % 4);
}

static cudaError_t run_attn_in(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_attn_in *p = &s->plan->attn_in;
    struct cuda_buffers *b = &w->d->b;
    struct product product;
    cudaError_t e = begin_normed(w, s, &p->norm, &product);

    if (e) return e;
    if (!rope_apart(w, s, product.kind)) {
        product.end = SKINNY_QKV, product.y = b->q, product.y_stride = b->attn_stride;
        product.qkv = qkv_of(w, p);
        return run_product(w, s, &product);
    }
    product.end = SKINNY_STORE, product.y = b->qkv, product.y_stride = b->qkv_stride;
    e = run_product(w, s, &product);
    return e ? e : run_rope(w, s, product.kind == PRODUCT_LIBRARY);
}

/* Whether this stage is the last attention of a step with a part of a prompt: of its rows most want no logits. Other steps run as they were
 * captured. */
static bool packs_behind(const struct walk *w)
{
    return w->stage == w->d->last_attention && w->f->has_chunks && w->f->outputs < w->rows;
}

static cudaError_t run_attn(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_attn *p = &s->plan->attn;
    struct cuda_device *d = w->d;
    struct cuda_buffers *b = &d->b;
    bool tiled = prefill_attention_fits(&d->ctx, p->head_dim), last = packs_behind(w);
    const struct prefill_tile *tiles = last ? w->f->last_tiles : w->f->tiles;
    uint32_t tile_count = last ? w->f->last_tile_count : w->f->tile_count;
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
    if (tile_count) e = prefill_attention(&d->ctx, &a, tiles, tile_count);
    if (e || !w->f->decode_rows) return e;
    a.rows = w->f->decode_rows, a.row_list = w->f->decode_list;
    if (!paged_decode_fits(p->head_dim)) return attention_general(&d->ctx, &a);
    bool few = w->f->decode_rows <= CUDA_SKINNY_ROWS || d->options.batch_invariant;
    /* For few rows another number of parts may be another kernel, which a step must not be the first to load. */
    uint32_t tokens = few ? d->limits.context_tokens : w->f->decode_tokens;
    struct decode_scratch scratch = {
        b->partial, b->partial_ml, (uint32_t *)b->counters,
        cuda_decode_splits(&d->options, tokens, a.window, w->f->decode_rows, p->kv_heads), few};
    return paged_decode(&d->ctx, &a, &scratch);
}

/* Rows that want logits, packed together: what stages behind the last attention read of them. Queries are needed no more. */
static cudaError_t pack_outputs(struct walk *w)
{
    struct cuda_buffers *b = &w->d->b;
    struct pack_args a = {
        .rows = w->f->outputs,
        .row_index = b->out_rows,
        .x = b->x,
        .x_to = b->packed_x,
        .x_stride = b->hidden_stride,
        .a = b->attn,
        .a_to = b->q,
        .a_stride = b->attn_stride,
    };

    assert(!w->delta && !w->norm_tiles && !w->packed);
    w->rows = w->f->outputs, w->x = b->packed_x, w->attn = b->q, w->packed = true;
    return pack_rows(&w->d->ctx, &a);
}

/* To the residual stream; by the library, or with a norm behind it, only to delta. */
static cudaError_t run_project(struct walk *w, const struct cuda_stage *s,
                               const struct stage_project *p, const void *x, uint64_t x_stride)
{
    struct cuda_buffers *b = &w->d->b;
    struct product product = {
        .kind = kind_of(w, s, w->rows),
        .rows = w->rows,
        .x = x,
        .x_stride = x_stride,
        .scale = 1,
        .end = SKINNY_RESIDUAL,
        .y = w->x,
        .y_stride = b->hidden_stride,
    };
    bool library = product.kind == PRODUCT_LIBRARY, aside = library || s->post_gain;

    assert(!w->delta);
    if (aside) {
        product.end = SKINNY_STORE, product.y = b->delta;
        w->delta = b->delta, w->delta_bias = library ? s->bias : NULL;
        w->post_gain = s->post_gain, w->post_eps = p->post_norm.eps;
    }
    return run_product(w, s, &product);
}

static cudaError_t run_ffn_in(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_ffn_in *p = &s->plan->ffn_in;
    struct cuda_buffers *b = &w->d->b;
    int act = p->act == ACT_GELU_TANH;
    struct product product;
    cudaError_t e = begin_normed(w, s, &p->norm, &product);

    if (e) return e;
    if (product.kind != PRODUCT_LIBRARY) {
        product.end = SKINNY_GLU, product.act = act;
        product.y = b->ffn, product.y_stride = b->ffn_stride;
        return run_product(w, s, &product);
    }
    struct glu_args g = {w->rows, p->gate.rows, b->glu, b->glu_stride,
                         s->bias, act,          b->ffn, b->ffn_stride};
    product.end = SKINNY_STORE, product.y = b->glu, product.y_stride = b->glu_stride;
    e = run_product(w, s, &product);
    return e ? e : glu(&w->d->ctx, &g);
}

/* h = norm(x) * gain of the rows that want logits, packed together. */
static cudaError_t norm_outputs(struct walk *w, const struct cuda_stage *s)
{
    struct cuda_buffers *b = &w->d->b;
    struct norm_args n = {.rows = w->f->outputs,
                          .hidden = w->d->plan->hidden,
                          .x = w->x,
                          .x_stride = b->hidden_stride,
                          .row_index = w->packed ? NULL : b->out_rows,
                          .gain = s->gain,
                          .eps = s->plan->head.norm.eps,
                          .y = b->h,
                          .y_stride = b->hidden_stride};

    return rmsnorm(&w->d->ctx, &n);
}

/* Only for the rows that want logits. */
static cudaError_t run_head(struct walk *w, const struct cuda_stage *s)
{
    const struct stage_head *p = &s->plan->head;
    struct cuda_buffers *b = &w->d->b;
    uint32_t outputs = w->f->outputs;
    enum product_kind kind = kind_of(w, s, outputs);
    bool skinny = kind == PRODUCT_SKINNY; /* picks and norms the rows itself */
    struct product product = {
        .kind = kind,
        .rows = outputs,
        .x = skinny ? (const void *)w->x : b->h,
        .x_stride = b->hidden_stride,
        .row_index = skinny && !w->packed ? b->out_rows : NULL,
        .norm = skinny ? &p->norm : NULL,
        .end = SKINNY_LOGITS,
        .scale = p->logit_scale,
        .softcap = p->softcap,
        .y = b->logits,
        .y_stride = b->logits_stride,
    };
    cudaError_t e = norm_rows(w, NULL, 0);

    if (e || !outputs) return e;
    if (!skinny) e = norm_outputs(w, s);
    if (!e) e = run_product(w, s, &product);
    if (!e && kind == PRODUCT_LIBRARY && p->softcap > 0)
        e = softcap_logits(&w->d->ctx, b->logits, (uint64_t)outputs * b->logits_stride, p->softcap);
    return e;
}

static cudaError_t run_stage(struct walk *w, const struct cuda_stage *s)
{
    struct cuda_buffers *b = &w->d->b;
    cudaError_t e;

    switch (s->plan->kind) {
    case STAGE_EMBED: return run_embed(w, s);
    case STAGE_ATTN_IN:
        return w->f->chain ? decode_chain_run(&w->d->ctx, &w->d->chain.args) : run_attn_in(w, s);
    case STAGE_ATTN: e = run_attn(w, s); return e || !packs_behind(w) ? e : pack_outputs(w);
    case STAGE_ATTN_OUT: return run_project(w, s, &s->plan->attn_out, w->attn, b->attn_stride);
    case STAGE_FFN_IN: return run_ffn_in(w, s);
    case STAGE_FFN_OUT: return run_project(w, s, &s->plan->ffn_out, b->ffn, b->ffn_stride);
    case STAGE_HEAD: return run_head(w, s);
    case STAGE_SAMPLE: break; /* the second half of a step */
    }
    return cudaSuccess;
}

cudaError_t cuda_forward_run(struct cuda_device *d, const struct cuda_forward *f)
{
    struct walk w = {.d = d, .f = f, .rows = f->rows, .x = d->b.x, .attn = d->b.attn};
    cudaError_t e = cudaSuccess;

    for (uint32_t i = 0; !e && i < d->plan->stage_count; i++) {
        const struct cuda_stage *s = &d->b.stages[i];
        w.stage = i;
        if (f->left_out >> s->plan->kind & 1) {
            w.delta = NULL; /* which its norm would have taken */
            continue;
        }
        if (f->chain && i > 1 && s->plan->kind < STAGE_HEAD) continue; /* in the one launch */
        /* in the middle of a prompt keys and values are all that is wanted */
        if (i == d->last_attention && !f->outputs) break;
        nvtxRangePushA(f->chain && i == 1 ? "chain" : stage_kind_name(s->plan->kind));
        e = run_stage(&w, s);
        nvtxRangePop();
        if (!e && f->marks) e = cudaEventRecord(f->marks[i], d->ctx.stream);
    }
    return e;
}
