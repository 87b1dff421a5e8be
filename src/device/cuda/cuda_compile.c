/* cuda_compile.c - makes the device ready for a plan: memory, weights, rope tables, algorithms, graphs. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "row_ops.h"

static_assert(sizeof(struct slot_params) == 88, "SLOT_PARAMS_BYTES of cuda_layout.c");
static_assert(sizeof(struct sample_partial) == 20, "PARTIAL_BYTES of cuda_layout.c");
static_assert(sizeof(struct sample_output) == sizeof(struct step_output),
              "written by the kernel as it is");
static_assert(sizeof(struct sample_top) == sizeof(struct top_logprob),
              "written by the kernel as it is");
static_assert(sizeof(struct state_table_change) == sizeof(struct step_table_change),
              "copied as it is");
static_assert(sizeof(struct prefill_tile) == 20, "counted in image_bytes of cuda_layout.c");
static_assert((int)CUDA_TILE_PAIRS == (int)PREFILL_TILE_PAIRS, "one number in two places");
static_assert((int)CUDA_SKINNY_ROWS <= (int)SKINNY_ROWS_MAX, "what the kernels can take");
static_assert((int)CUDA_REFS == (int)STATE_REFS, "one number in two places");

/* --- memory --- */

static enum status check_memory(const struct cuda_device *d, struct error *err)
{
    uint64_t want = 0;
    size_t available, total;
    cudaError_t e = cudaMemGetInfo(&available, &total);

    for (uint32_t r = 0; r < CUDA_REGION_COUNT; r++)
        if (!cuda_region_on_host(r)) want += d->regions[r].bytes;
    if (e)
        return error_set(err, STATUS_DEVICE, "asking for free memory: %s", cudaGetErrorString(e));
    if (want <= available) return STATUS_OK;
    return error_set(
        err, STATUS_NOMEM,
        "the CUDA device needs %llu MiB (weights %llu, KV pool %llu, activations %llu, logits "
        "%llu, "
        "other %llu) and has %llu MiB free of %llu: make the KV pool, the context or the batch "
        "smaller",
        (unsigned long long)want >> 20, (unsigned long long)d->regions[CUDA_WEIGHTS].bytes >> 20,
        (unsigned long long)d->regions[CUDA_KV].bytes >> 20,
        (unsigned long long)d->regions[CUDA_ACTIVATIONS].bytes >> 20,
        (unsigned long long)d->regions[CUDA_LOGITS].bytes >> 20,
        (unsigned long long)(want - d->regions[CUDA_WEIGHTS].bytes - d->regions[CUDA_KV].bytes -
                             d->regions[CUDA_ACTIVATIONS].bytes - d->regions[CUDA_LOGITS].bytes) >>
            20,
        (unsigned long long)available >> 20, (unsigned long long)total >> 20);
}

/* Everything starts as zeros: paddings stay so, and no block holds NaN from an earlier owner of the memory. */
static cudaError_t take_region(struct cuda_region_map *region, enum cuda_region which)
{
    void *at = NULL;
    cudaError_t e = cudaSuccess;

    if (!region->bytes) return cudaSuccess;
    if (which == CUDA_HOST_LOGITS) {
        at = calloc(1, region->bytes);
        e = at ? cudaSuccess : cudaErrorMemoryAllocation;
    } else if (cuda_region_on_host(which)) {
        e = cudaHostAlloc(&at, region->bytes, cudaHostAllocPortable);
    } else {
        e = cudaMalloc(&at, region->bytes);
        if (!e && which != CUDA_WORKSPACE) e = cudaMemset(at, 0, region->bytes);
    }
    region->base = at;
    return e;
}

static void drop_region(struct cuda_region_map *region, enum cuda_region which)
{
    if (!region->base) return;
    if (which == CUDA_HOST_LOGITS)
        free(region->base);
    else if (cuda_region_on_host(which))
        cudaFreeHost(region->base);
    else
        cudaFree(region->base);
    region->base = NULL;
}

static enum status take_memory(struct cuda_device *d, struct error *err)
{
    enum status st = check_memory(d, err);

    for (uint32_t r = 0; !st && r < CUDA_REGION_COUNT; r++) {
        cudaError_t e = take_region(&d->regions[r], r);
        if (e)
            st = error_set(err, STATUS_NOMEM, "%llu MiB for the %s: %s",
                           (unsigned long long)d->regions[r].bytes >> 20, cuda_region_name(r),
                           cudaGetErrorString(e));
    }
    /* the device's streams do not wait for the default stream, which the zeros went through */
    if (!st && cudaDeviceSynchronize())
        st = error_set(err, STATUS_DEVICE, "clearing the device's memory");
    return st;
}

void cuda_free_all(struct cuda_device *d)
{
    for (uint32_t i = 0; i < CUDA_BUCKETS_MAX; i++)
        if (d->graphs[i]) cudaGraphExecDestroy(d->graphs[i]);
    for (uint32_t i = 0; i < CUDA_STEPS_MAX; i++) {
        if (d->flights[i].uploaded) cudaEventDestroy(d->flights[i].uploaded);
        if (d->flights[i].done) cudaEventDestroy(d->flights[i].done);
    }
    cuda_gemm_close(d->gemm);
    for (uint32_t r = 0; r < CUDA_REGION_COUNT; r++)
        drop_region(&d->regions[r], r);
    free(d->tensor_maps), free(d->gemm_ids), free(d->b.stages);
    d->tensor_maps = NULL, d->gemm_ids = NULL, d->b.stages = NULL, d->gemm = NULL;
}

/* --- tables --- */

static enum status fill_ropes(struct cuda_device *d, struct error *err)
{
    cudaError_t e = cudaSuccess;

    for (uint32_t i = 0; !e && i < d->plan->rope_count; i++) {
        const struct plan_rope *r = &d->plan->ropes[i];
        e = cudaMemcpyAsync(d->b.inv_freq, r->inv_freq, r->dim / 2 * sizeof(float),
                            cudaMemcpyHostToDevice, d->ctx.stream);
        if (!e && r->dim)
            e = rope_table(&d->ctx, (const float *)d->b.inv_freq, r->dim / 2,
                           d->limits.context_tokens, r->scale, (float2 *)d->b.ropes[i]);
        if (!e) e = cudaStreamSynchronize(d->ctx.stream);
    }
    return e ? error_set(err, STATUS_DEVICE, "rope tables: %s", cudaGetErrorString(e)) : STATUS_OK;
}

static enum status make_tensor_maps(struct cuda_device *d, struct error *err)
{
    if (d->ctx.capability < 90) return STATUS_OK;
    d->tensor_maps = calloc(d->b.weight_count, sizeof *d->tensor_maps);
    if (!d->tensor_maps) return error_set(err, STATUS_NOMEM, "no memory for tensor maps");
    for (uint32_t i = 0; i < d->plan->stage_count; i++) {
        const struct cuda_stage *s = &d->b.stages[i];
        if (!s->weight.rows) continue;
        cudaError_t e = skinny_weight_init(&d->tensor_maps[s->index], s->weight.at, s->weight.rows,
                                           s->weight.cols_padded, d->ctx.type);
        if (e)
            return error_set(err, STATUS_DEVICE, "tensor map of a weight: %s",
                             cudaGetErrorString(e));
    }
    return STATUS_OK;
}

/* --- library products --- */

static struct cuda_gemm_shape shape_of(const struct cuda_device *d, const struct cuda_stage *s)
{
    const struct cuda_buffers *b = &d->b;
    struct cuda_gemm_shape shape = {.N = s->weight.rows,
                                    .K = s->weight.cols_padded,
                                    .ldx = b->hidden_stride,
                                    .ldy = b->hidden_stride};

    switch (s->plan->kind) {
    case STAGE_ATTN_IN: shape.ldy = b->qkv_stride; break;
    case STAGE_FFN_IN: shape.ldy = b->glu_stride; break;
    case STAGE_ATTN_OUT: shape.ldx = b->attn_stride; break;
    case STAGE_FFN_OUT: shape.ldx = b->ffn_stride; break;
    default: shape.ldy = b->logits_stride, shape.y_float = true;
    }
    return shape;
}

/* Up to 8 weights of this stage's kind: enough that none is in L2 when its turn comes. */
static uint32_t weights_like(const struct cuda_device *d, const struct cuda_stage *s,
                             const void *weights[8])
{
    uint32_t n = 0;

    for (uint32_t i = 0; n < 8 && i < d->plan->stage_count; i++) {
        const struct cuda_stage *o = &d->b.stages[i];
        if (o->plan->kind == s->plan->kind && o->weight.rows == s->weight.rows &&
            o->weight.cols == s->weight.cols)
            weights[n++] = o->weight.at;
    }
    return n;
}

static enum status choose_algorithms(struct cuda_device *d, struct error *err)
{
    enum status st = cuda_gemm_open(d->options.compute_dtype, d->b.workspace, d->b.workspace_bytes,
                                    &d->gemm, err);

    d->gemm_ids = calloc(d->b.weight_count, sizeof *d->gemm_ids);
    if (!st && !d->gemm_ids) st = error_set(err, STATUS_NOMEM, "no memory for product ids");
    for (uint32_t i = 0; !st && i < d->plan->stage_count; i++) {
        const struct cuda_stage *s = &d->b.stages[i];
        const void *weights[8], *x = d->b.h;
        void *y = d->b.delta;
        if (!s->weight.rows) continue;
        switch (s->plan->kind) {
        case STAGE_ATTN_IN: y = d->b.qkv; break;
        case STAGE_FFN_IN: y = d->b.glu; break;
        case STAGE_ATTN_OUT: x = d->b.attn; break;
        case STAGE_FFN_OUT: x = d->b.ffn; break;
        default: y = d->b.logits;
        }
        struct cuda_gemm_shape shape = shape_of(d, s);
        uint32_t rows = s->plan->kind == STAGE_HEAD ? d->b.outputs : d->b.rows;
        st = cuda_gemm_prepare(d->gemm, &shape, weights, weights_like(d, s, weights), x, y, rows,
                               d->options.batch_invariant, d->ctx.stream, &d->gemm_ids[s->index],
                               err);
    }
    return st;
}

/* --- graphs --- */

static cudaError_t capture(struct cuda_device *d, uint32_t bucket)
{
    uint32_t rows = d->b.buckets[bucket];
    struct cuda_forward f = {
        .rows = rows, .decode_rows = rows, .outputs = rows < d->b.outputs ? rows : d->b.outputs};
    cudaGraph_t graph = NULL;
    size_t nodes = 0;
    cudaError_t e = cudaStreamBeginCapture(d->ctx.stream, cudaStreamCaptureModeThreadLocal), inside;

    if (e) return e;
    inside = cuda_forward_run(d, &f);
    e = cudaStreamEndCapture(d->ctx.stream, &graph);
    if (!e) e = inside;
    if (!e) e = cudaGraphGetNodes(graph, NULL, &nodes);
    d->graph_launches[bucket] = (uint32_t)nodes;
    if (!e) e = cudaGraphInstantiate(&d->graphs[bucket], graph, 0);
    if (!e) e = cudaGraphUpload(d->graphs[bucket], d->ctx.stream);
    if (graph) cudaGraphDestroy(graph);
    return e;
}

/* Runs every kernel that a step may want, on padding alone: the first launch of a kernel loads it, which takes device
 * memory and must not happen while serving or inside a capture. */
static cudaError_t first_pass(struct cuda_device *d)
{
    struct slot_state state = cuda_slot_state(d);
    struct prefill_tile tile = {0};
    struct cuda_forward f = {
        .rows = d->b.rows < 64 ? d->b.rows : 64, .outputs = 1, .tile_count = 1, .has_chunks = true};
    struct sample_args sample = {.rows = 1,
                                 .round = UINT32_MAX,
                                 .in = (const struct sample_row *)d->b.flights[0].image,
                                 .vocab_rows = d->plan->vocab_rows,
                                 .state = state};
    struct state_copy none = {0, 0};
    cudaError_t e = cudaMemsetAsync(d->b.positions, 0xff, d->b.rows * 4ull, d->ctx.stream);

    if (!e) e = cudaMemsetAsync(d->b.tokens, 0xff, d->b.rows * 4ull, d->ctx.stream);
    for (uint32_t g = 0; !e && g < d->plan->group_count; g++)
        e = cudaMemsetAsync(d->b.groups[g].kv_slots, 0xff, d->b.rows * 4ull, d->ctx.stream);
    if (!e)
        e = cudaMemcpyAsync(d->b.flights[0].image, &tile, sizeof tile, cudaMemcpyHostToDevice,
                            d->ctx.stream);
    f.tiles = (const struct prefill_tile *)d->b.flights[0].image;
    if (!e) e = cuda_forward_run(d, &f);
    if (!e) e = sample_rows(&d->ctx, &sample);
    if (!e) e = cudaMemsetAsync(d->b.flights[0].image, 0, 4096, d->ctx.stream);
    if (!e)
        e = state_open(&d->ctx, &state, (const struct slot_params *)d->b.flights[0].image, 1, NULL,
                       NULL);
    if (!e)
        e = cudaMemcpyAsync(d->b.flights[0].image, &none, sizeof none, cudaMemcpyHostToDevice,
                            d->ctx.stream);
    for (uint32_t g = 0; !e && g < d->plan->group_count; g++)
        e = state_copy_blocks(&d->ctx, d->b.groups[g].pool, 1, d->b.groups[g].blocks,
                              d->b.groups[g].block_bytes,
                              (const struct state_copy *)d->b.flights[0].image, 1);
    if (!e)
        e = state_gather_block(&d->ctx, d->b.groups[0].pool, 1, d->b.groups[0].blocks,
                               d->b.groups[0].block_bytes, 0, d->b.staging[0], false);
    return e ? e : cudaStreamSynchronize(d->ctx.stream);
}

static enum status capture_graphs(struct cuda_device *d, struct error *err)
{
    cudaError_t e = first_pass(d);

    for (uint32_t i = 0; !e && i < d->b.bucket_count; i++) {
        uint32_t rows = d->b.buckets[i];
        struct cuda_forward f = {.rows = rows,
                                 .decode_rows = rows,
                                 .outputs = rows < d->b.outputs ? rows : d->b.outputs};
        e = cuda_forward_run(d, &f);
        if (!e) e = cudaStreamSynchronize(d->ctx.stream);
        if (!e && !d->options.enforce_eager) e = capture(d, i);
    }
    if (!e) e = cudaStreamSynchronize(d->ctx.stream);
    return e ? error_set(err, STATUS_DEVICE, "the first pass: %s", cudaGetErrorString(e))
             : STATUS_OK;
}

static enum status make_events(struct cuda_device *d, struct error *err)
{
    for (uint32_t i = 0; i < d->limits.steps_inflight; i++)
        if (cudaEventCreateWithFlags(&d->flights[i].uploaded, cudaEventDisableTiming) ||
            cudaEventCreateWithFlags(&d->flights[i].done, cudaEventDisableTiming))
            return error_set(err, STATUS_DEVICE, "no CUDA events");
    return STATUS_OK;
}

enum status cuda_compile(struct cuda_device *d, const struct plan *plan,
                         const struct device_limits *limits, struct error *err)
{
    int64_t begun = clock_mono_ns(), loaded, chosen;
    enum status st = cuda_plan_check(&d->options, plan, limits, err);

    assert(!d->plan);
    if (st) return st;
    d->limits = *limits;
    d->b.stages = calloc(plan->stage_count, sizeof *d->b.stages);
    if (!d->b.stages) return error_set(err, STATUS_NOMEM, "no memory for the stages");
    cuda_layout(&d->options, plan, limits, d->regions, &d->b);
    st = take_memory(d, err);
    if (!st) {
        cuda_layout(&d->options, plan, limits, d->regions, &d->b);
        d->plan = plan;
        st = cuda_load_weights(d, err);
    }
    loaded = clock_mono_ns();
    if (!st) st = fill_ropes(d, err);
    if (!st) st = make_tensor_maps(d, err);
    if (!st) st = choose_algorithms(d, err);
    chosen = clock_mono_ns();
    if (!st) st = make_events(d, err);
    if (!st) st = capture_graphs(d, err);
    if (st) {
        cuda_free_all(d);
        d->plan = NULL;
        return st;
    }
    log_info("device compiled", "weights_s=%.2f products_s=%.2f graphs_s=%.2f graphs=%u",
             (double)(loaded - begun) * 1e-9, (double)(chosen - loaded) * 1e-9,
             (double)(clock_mono_ns() - chosen) * 1e-9,
             d->options.enforce_eager ? 0 : d->b.bucket_count);
    return STATUS_OK;
}
