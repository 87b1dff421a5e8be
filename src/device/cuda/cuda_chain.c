/* cuda_chain.c - whether a plan can run as one launch for all layers (kernels/decode_chain.h), and whether it should: both ways
 * give the same bits, so what is faster is measured when the device compiles. */
#include <string.h>

#include "base/log.h"
#include "device/cuda/cuda_device.h"

enum { STAGES_OF_LAYER = 5, MEASURED_MIN = 64, REPEATS = 5 };

/* The stages of a layer, in the plan's order. */
struct layer_stages {
    const struct cuda_stage *attn_in, *attn, *attn_out, *ffn_in, *ffn_out;
};

static bool layer_of(const struct cuda_device *d, uint32_t layer, struct layer_stages *out)
{
    uint32_t first = 1 + layer * STAGES_OF_LAYER;
    const struct cuda_stage *s = &d->b.stages[first];

    if (first + STAGES_OF_LAYER > d->plan->stage_count) return false;
    *out = (struct layer_stages){s, s + 1, s + 2, s + 3, s + 4};
    return s[0].plan->kind == STAGE_ATTN_IN && s[1].plan->kind == STAGE_ATTN &&
           s[2].plan->kind == STAGE_ATTN_OUT && s[3].plan->kind == STAGE_FFN_IN &&
           s[4].plan->kind == STAGE_FFN_OUT;
}

static bool plain_stages(const struct cuda_device *d, const struct layer_stages *l, uint32_t layer)
{
    const struct cuda_stage *all[] = {l->attn_in, l->attn_out, l->ffn_in, l->ffn_out};

    for (int i = 0; i < 4; i++)
        if (all[i]->bias || all[i]->q_gain || all[i]->k_gain || all[i]->post_gain) return false;
    return l->attn->plan->attn.softcap <= 0 && !d->plan->groups[0].window &&
           l->attn->plan->attn.group == 0 && l->attn_in->plan->attn_in.group == 0 &&
           l->attn_in->plan->attn_in.group_layer == layer && l->attn_in->plan->attn_in.rope == 0;
}

static bool same_at(const void *first, const void *here, uint64_t bytes)
{
    return (uintptr_t)here == (uintptr_t)first + bytes;
}

/* Whether layer `l` is layer `first` again, `bytes` further on. */
static bool same_layer(const struct layer_stages *first, const struct layer_stages *l,
                       uint64_t bytes)
{
    const struct stage *a = first->attn_in->plan, *b = l->attn_in->plan;
    const struct stage *x = first->ffn_in->plan, *y = l->ffn_in->plan;

    return a->attn_in.norm.eps == b->attn_in.norm.eps && x->ffn_in.norm.eps == y->ffn_in.norm.eps &&
           x->ffn_in.act == y->ffn_in.act && x->ffn_in.gate.rows == y->ffn_in.gate.rows &&
           a->attn_in.heads == b->attn_in.heads && a->attn_in.kv_heads == b->attn_in.kv_heads &&
           first->attn->plan->attn.scale == l->attn->plan->attn.scale &&
           same_at(first->attn_in->weight.at, l->attn_in->weight.at, bytes) &&
           same_at(first->attn_out->weight.at, l->attn_out->weight.at, bytes) &&
           same_at(first->ffn_in->weight.at, l->ffn_in->weight.at, bytes) &&
           same_at(first->ffn_out->weight.at, l->ffn_out->weight.at, bytes) &&
           same_at(first->attn_in->gain, l->attn_in->gain, bytes) &&
           same_at(first->ffn_in->gain, l->ffn_in->gain, bytes);
}

static bool all_alike(const struct cuda_device *d, struct layer_stages *first, uint64_t *stride)
{
    struct layer_stages l;

    *stride = 0;
    if (!d->plan->layers || d->plan->group_count != 1 || d->plan->rope_count != 1) return false;
    if (d->plan->stage_count != 1 + d->plan->layers * STAGES_OF_LAYER + 2) return false;
    for (uint32_t i = 0; i < d->plan->layers; i++) {
        if (!layer_of(d, i, i ? &l : first) || !plain_stages(d, i ? &l : first, i)) return false;
        if (i == 1) *stride = (uint64_t)(l.attn_in->weight.at - first->attn_in->weight.at);
        if (i && !same_layer(first, &l, i * *stride)) return false;
    }
    return *stride % 16 == 0 &&
           *stride <= INT64_MAX; /* what a tensor map can take: else the launches do it */
}

enum status cuda_chain_open(struct cuda_device *d, struct error *err)
{
    struct layer_stages l;
    uint64_t stride;

    d->chain.fits = false;
    /* Its bits are those of the skinny products: where one row runs others (--batch-invariant), a row would have other ones alone. */
    if (!d->skinny_rows || !all_alike(d, &l, &stride)) return STATUS_OK;
    const struct stage_attn_in *in = &l.attn_in->plan->attn_in;
    struct decode_chain_shape shape = {d->plan->layers,
                                       d->plan->hidden,
                                       l.ffn_in->plan->ffn_in.gate.rows,
                                       in->heads,
                                       in->kv_heads,
                                       in->head_dim,
                                       d->plan->ropes[0].dim};
    struct decode_chain_weights w = {l.attn_in->weight.at,
                                     l.attn_out->weight.at,
                                     l.ffn_in->weight.at,
                                     l.ffn_out->weight.at,
                                     l.attn_in->gain,
                                     l.ffn_in->gain,
                                     stride};
    if (!decode_chain_fits(&d->ctx, &shape)) return STATUS_OK;
    /* It counts the pieces of a layer's pages in 32 bits. */
    if (d->b.groups[0].layer_bytes / DECODE_CHAIN_PIECE_BYTES > UINT32_MAX) return STATUS_OK;
    cudaError_t e = decode_chain_init(&d->chain.kernel, &shape, &w, d->ctx.type);
    if (e) return error_set(err, STATUS_DEVICE, "decode chain: %s", cudaGetErrorString(e));
    d->chain.args = (struct decode_chain_args){
        .chain = &d->chain.kernel,
        .x = d->b.x,
        .link = d->b.chain_link,
        .attn_eps = in->norm.eps,
        .ffn_eps = l.ffn_in->plan->ffn_in.norm.eps,
        .scale = l.attn->plan->attn.scale,
        .act = l.ffn_in->plan->ffn_in.act == ACT_GELU_TANH,
        .rope = (const float2 *)d->b.ropes[0],
        .kv = d->b.groups[0].pool,
        .kv_layer_bytes = d->b.groups[0].layer_bytes,
        .position = d->b.positions,
        .kv_slot = d->b.groups[0].kv_slots,
        .slot = d->b.row_slots,
        .tables = d->b.groups[0].tables,
        .table_stride = d->b.table_stride,
    };
    d->chain.fits = true;
    return STATUS_OK;
}

bool cuda_chain_takes(const struct cuda_device *d, uint32_t rows, uint32_t context_tokens)
{
    return rows == 1 && context_tokens < d->chain.tokens;
}

static cudaError_t run_once(struct cuda_device *d, bool chain)
{
    struct cuda_forward f = {.rows = 1,
                             .decode_rows = 1,
                             .decode_tokens = d->limits.context_tokens,
                             .outputs = 1,
                             .chain = chain};

    if (d->options.enforce_eager) return cuda_forward_run(d, &f);
    return cudaGraphLaunch(chain ? d->chain.graph : d->graphs[0], d->ctx.stream);
}

static cudaError_t fastest(struct cuda_device *d, bool chain, cudaEvent_t events[2], float *ms)
{
    cudaError_t e = run_once(d, chain);

    *ms = 1e9f;
    for (int i = 0; !e && i < REPEATS; i++) {
        float now = 0;
        e = cudaEventRecord(events[0], d->ctx.stream);
        if (!e) e = run_once(d, chain);
        if (!e) e = cudaEventRecord(events[1], d->ctx.stream);
        if (!e) e = cudaEventSynchronize(events[1]);
        if (!e) e = cudaEventElapsedTime(&now, events[0], events[1]);
        if (now < *ms) *ms = now;
    }
    return e;
}

/* On a sequence of some length whose pages are all block 0: nothing is written, and what is read does not matter. */
static cudaError_t set_row(struct cuda_device *d, int32_t position)
{
    cudaError_t e = cudaMemsetAsync(d->b.row_slots, 0, sizeof(int32_t), d->ctx.stream);

    if (!e)
        e = cudaMemsetAsync(d->b.groups[0].tables, 0, d->b.table_stride * sizeof(int32_t),
                            d->ctx.stream);
    if (!e)
        e = cudaMemcpyAsync(d->b.positions, &position, sizeof position, cudaMemcpyHostToDevice,
                            d->ctx.stream);
    return e ? e : cudaStreamSynchronize(d->ctx.stream);
}

/* Both ways on a sequence of so many tokens. */
static cudaError_t measure(struct cuda_device *d, uint32_t tokens, float *chain_ms,
                           float *launches_ms)
{
    cudaEvent_t events[2] = {NULL, NULL};
    cudaError_t e = set_row(d, (int32_t)tokens - 1);

    for (int i = 0; !e && i < 2; i++)
        e = cudaEventCreate(&events[i]);
    if (!e) e = fastest(d, false, events, launches_ms);
    if (!e) e = fastest(d, true, events, chain_ms);
    for (int i = 0; i < 2; i++)
        if (events[i]) cudaEventDestroy(events[i]);
    return e ? e : set_row(d, -1);
}

enum status cuda_chain_choose(struct cuda_device *d, struct error *err)
{
    uint32_t tokens = DECODE_CHAIN_TOKENS_MAX;
    float chain = 0, launches = 0;

    d->chain.tokens = 0;
    if (!d->chain.fits) return STATUS_OK;
    if (tokens > d->limits.context_tokens) tokens = d->limits.context_tokens;
    for (; !d->chain.tokens && tokens >= MEASURED_MIN; tokens /= 2) {
        cudaError_t e = measure(d, tokens, &chain, &launches);
        if (e) return error_set(err, STATUS_DEVICE, "decode chain: %s", cudaGetErrorString(e));
        if (chain < launches) d->chain.tokens = tokens;
    }
    log_info("decode of one row measured", "chain_us=%.1f launches_us=%.1f chain_tokens=%u",
             (double)chain * 1e3, (double)launches * 1e3, d->chain.tokens);
    return STATUS_OK;
}
