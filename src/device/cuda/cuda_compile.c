/* cuda_compile.c - makes the device ready for a plan: memory, weights, rope tables, algorithms, graphs. */
#include <assert.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "kv_layout.h"
#include "row_ops.h"

/* What cuda_layout.h says of kernels/. */
static_assert((int)CUDA_KV_TOKENS == (int)KV_BLOCK_TOKENS, "kv_layout.h");
static_assert((int)CUDA_HIDDEN_MAX == (int)NORM_HIDDEN_MAX, "row_ops.h");
static_assert((int)CUDA_HEAD_DIM_MAX == (int)ATTENTION_HEAD_DIM_MAX, "attention.h");
static_assert((int)CUDA_TILE_PAIRS == (int)PREFILL_TILE_PAIRS, "attention.h");
static_assert((int)CUDA_TILE_BYTES == sizeof(struct prefill_tile), "attention.h");
static_assert((int)CUDA_TOPS_MAX == (int)SAMPLE_TOPS_MAX, "sample.h");
static_assert((int)CUDA_SAMPLE_CHUNK == (int)SAMPLE_CHUNK, "sample.h");
static_assert((int)CUDA_SAMPLE_PARTIAL_BYTES == sizeof(struct sample_partial), "sample.h");
static_assert((int)CUDA_OUTPUT_BYTES >= sizeof(struct sample_row) + sizeof(int32_t), "sample.h");
static_assert((int)CUDA_REFS == (int)STATE_REFS, "step_state.h");
static_assert((int)CUDA_ROW_BYTES >= sizeof(struct state_row), "step_state.h");
static_assert((int)CUDA_SLOT_PARAMS_BYTES == sizeof(struct slot_params), "step_state.h");
static_assert((int)CUDA_SLOT_BIAS_BYTES == sizeof(struct slot_bias), "step_state.h");
static_assert((int)CUDA_CHAIN_LINK_BYTES == (int)DECODE_CHAIN_LINK_BYTES, "decode_chain.h");
static_assert((int)CUDA_SKINNY_ROWS <= (int)SKINNY_ROWS_MAX, "skinny_gemm.h");
static_assert((int)CUDA_MEDIUM_ROWS == (int)MEDIUM_ROWS_MAX, "medium_gemm.h");
/* What crosses between device/step.h and kernels/ as it is. */
static_assert(sizeof(struct sample_output) == sizeof(struct step_output), "written by sampling");
static_assert(sizeof(struct sample_top) == sizeof(struct top_logprob), "written by sampling");
static_assert(sizeof(struct state_table_change) == sizeof(struct step_table_change), "copied");
static_assert(sizeof(struct slot_bias) == sizeof(struct step_bias), "copied");

/* --- memory --- */

static void drop_graphs(struct cuda_device *d, uint32_t i)
{
    if (d->graphs[i]) cudaGraphExecDestroy(d->graphs[i]);
    if (d->short_graphs[i]) cudaGraphExecDestroy(d->short_graphs[i]);
    d->graphs[i] = d->short_graphs[i] = NULL;
}

/* Called again by close where compiling failed. */
void cuda_free_all(struct cuda_device *d)
{
    for (uint32_t i = 0; i < CUDA_BUCKETS_MAX; i++)
        drop_graphs(d, i);
    if (d->chain.graph) cudaGraphExecDestroy(d->chain.graph);
    d->chain.graph = NULL, d->chain.fits = false, d->chain.tokens = 0;
    for (uint32_t i = 0; i < CUDA_STEPS_MAX; i++) {
        if (d->flights[i].uploaded) cudaEventDestroy(d->flights[i].uploaded);
        if (d->flights[i].done) cudaEventDestroy(d->flights[i].done);
        d->flights[i].uploaded = d->flights[i].done = NULL;
    }
    cuda_gemm_close(d->gemm);
    cuda_memory_give_back(&d->memory);
    free(d->skinny_weights), free(d->medium_weights), free(d->gemm_ids), free(d->b.stages);
    d->skinny_weights = NULL, d->medium_weights = NULL, d->gemm_ids = NULL, d->b.stages = NULL,
    d->gemm = NULL;
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

static enum status make_skinny_weights(struct cuda_device *d, struct error *err)
{
    if (d->ctx.capability < 90) return STATUS_OK;
    d->skinny_weights = calloc(d->b.weight_count, sizeof *d->skinny_weights);
    if (!d->skinny_weights)
        return error_set(err, STATUS_NOMEM, "no memory for the weights' tensor maps");
    for (uint32_t i = 0; i < d->plan->stage_count; i++) {
        const struct cuda_stage *s = &d->b.stages[i];
        if (!s->weight.rows) continue;
        cudaError_t e = skinny_weight_init(&d->skinny_weights[s->index], s->weight.at,
                                           s->weight.rows, s->weight.cols_padded, d->ctx.type);
        if (e)
            return error_set(err, STATUS_DEVICE, "tensor map of a weight: %s",
                             cudaGetErrorString(e));
    }
    return STATUS_OK;
}

/* --- library products --- */

/* A stage's product as the library does it: its shape and the buffers of its rows. */
struct library_product {
    struct cuda_gemm_shape shape;
    const void *x;
    void *y;
    uint32_t rows; /* at most */
};

static struct library_product product_of(const struct cuda_device *d, const struct cuda_stage *s)
{
    const struct cuda_buffers *b = &d->b;
    struct library_product p = {{.N = s->weight.rows,
                                 .K = s->weight.cols_padded,
                                 .ldx = b->hidden_stride,
                                 .ldy = b->hidden_stride},
                                b->h,
                                b->delta,
                                b->rows};

    switch (s->plan->kind) {
    case STAGE_ATTN_IN: p.y = b->qkv, p.shape.ldy = b->qkv_stride; break;
    case STAGE_FFN_IN: p.y = b->glu, p.shape.ldy = b->glu_stride; break;
    case STAGE_ATTN_OUT: p.x = b->attn, p.shape.ldx = b->attn_stride; break;
    case STAGE_FFN_OUT: p.x = b->ffn, p.shape.ldx = b->ffn_stride; break;
    default:
        p.y = b->logits, p.shape.ldy = b->logits_stride, p.shape.y_float = true;
        p.rows = b->outputs;
    }
    return p;
}

uint32_t cuda_stages_alike(const struct cuda_device *d, const struct cuda_stage *s,
                           const struct cuda_stage *out[CUDA_ALIKE_MAX])
{
    uint32_t n = 0;

    for (uint32_t i = 0; n < CUDA_ALIKE_MAX && i < d->plan->stage_count; i++) {
        const struct cuda_stage *o = &d->b.stages[i];
        if (o->plan->kind == s->plan->kind && o->weight.rows == s->weight.rows &&
            o->weight.cols == s->weight.cols)
            out[n++] = o;
    }
    return n;
}

static enum status choose_algorithm(struct cuda_device *d, const struct cuda_stage *s,
                                    struct error *err)
{
    struct library_product p = product_of(d, s);
    const struct cuda_stage *alike[CUDA_ALIKE_MAX];
    const void *weights[CUDA_ALIKE_MAX];
    uint32_t count = cuda_stages_alike(d, s, alike);

    for (uint32_t i = 0; i < count; i++)
        weights[i] = alike[i]->weight.at;
    return cuda_gemm_prepare(d->gemm, &p.shape, weights, count, p.x, p.y, p.rows,
                             d->options.batch_invariant, d->ctx.stream, &d->gemm_ids[s->index],
                             err);
}

static enum status choose_algorithms(struct cuda_device *d, struct error *err)
{
    enum status st = cuda_gemm_open(d->compute_dtype, d->b.workspace, d->b.workspace_bytes,
                                    d->options.cache_folder, &d->gemm, err);

    d->gemm_ids = calloc(d->b.weight_count, sizeof *d->gemm_ids);
    if (!st && !d->gemm_ids) st = error_set(err, STATUS_NOMEM, "no memory for product ids");
    if (!st) st = cuda_medium_choose(d, err);
    for (uint32_t i = 0; !st && i < d->plan->stage_count; i++)
        if (d->b.stages[i].weight.rows) st = choose_algorithm(d, &d->b.stages[i], err);
    if (!st) d->products_measured += cuda_gemm_settle(d->gemm);
    return st;
}

/* --- graphs --- */

static cudaError_t capture(struct cuda_device *d, const struct cuda_forward *f,
                           cudaGraphExec_t *out, uint32_t *launches)
{
    cudaGraph_t graph = NULL;
    size_t nodes = 0;
    cudaError_t e = cudaStreamBeginCapture(d->ctx.stream, cudaStreamCaptureModeThreadLocal), inside;

    if (e) return e;
    inside = cuda_forward_run(d, f);
    e = cudaStreamEndCapture(d->ctx.stream, &graph);
    if (!e) e = inside;
    if (!e) e = cudaGraphGetNodes(graph, NULL, &nodes);
    *launches = (uint32_t)nodes;
    if (!e) e = cudaGraphInstantiate(out, graph, 0);
    if (!e) e = cudaGraphUpload(*out, d->ctx.stream);
    if (graph) cudaGraphDestroy(graph);
    return e;
}

/* Once to load its kernels, then for replay. */
static cudaError_t run_and_capture(struct cuda_device *d, const struct cuda_forward *f,
                                   cudaGraphExec_t *out, uint32_t *launches)
{
    cudaError_t e = cuda_forward_run(d, f);

    if (!e) e = cudaStreamSynchronize(d->ctx.stream);
    return e || d->options.enforce_eager ? e : capture(d, f, out, launches);
}

/* The body as steps with a part of a prompt run it, on padding. Which fused product runs depends on the number of rows, and
 * such steps are not rounded up to a bucket: each number of the few that have their own, then one each for the next kind and
 * the library's. */
static cudaError_t pass_chunks(struct cuda_device *d, const struct prefill_tile *tiles)
{
    struct cuda_forward f = {.tiles = tiles,
                             .tile_count = 1,
                             .last_tiles = tiles,
                             .last_tile_count = 1,
                             .has_chunks = true};
    cudaError_t e = cudaSuccess;

    for (uint32_t i = 1; !e && i <= CUDA_SKINNY_ROWS + 2; i++) {
        f.rows = i <= CUDA_SKINNY_ROWS ? i : (i - CUDA_SKINNY_ROWS) * CUDA_MEDIUM_ROWS;
        if (f.rows > d->b.rows) f.rows = d->b.rows;
        /* the last time not all of them, which are then packed together */
        f.outputs = i == CUDA_SKINNY_ROWS + 2 && f.rows > 1 ? f.rows - 1 : f.rows;
        if (f.outputs > d->b.outputs) f.outputs = d->b.outputs;
        e = cuda_forward_run(d, &f);
    }
    return e;
}

cudaError_t cuda_pad_rows(struct cuda_device *d)
{
    uint64_t bytes = d->b.rows * sizeof(int32_t);
    cudaError_t e = cudaMemsetAsync(d->b.positions, 0xff, bytes, d->ctx.stream);

    if (!e) e = cudaMemsetAsync(d->b.tokens, 0xff, bytes, d->ctx.stream);
    for (uint32_t g = 0; !e && g < d->plan->group_count; g++)
        e = cudaMemsetAsync(d->b.groups[g].kv_slots, 0xff, bytes, d->ctx.stream);
    return e;
}

/* What stands around the body, on an image of zeros: the parameters of slot 0, block 0 copied to itself, and a row to sample whose
 * round never comes. */
static cudaError_t pass_around(struct cuda_device *d, const void *image)
{
    const struct cuda_group *groups = d->b.groups;
    struct slot_state state = cuda_slot_state(d);
    struct state_rows_args no_rows = {0};
    struct sample_args sample = {.rows = 1,
                                 .round = UINT32_MAX,
                                 .in = image,
                                 .vocab_rows = d->plan->vocab_rows,
                                 .state = state};
    cudaError_t e = state_rows(&d->ctx, &no_rows);

    if (!e) e = sample_rows(&d->ctx, &sample);
    if (!e) e = state_open(&d->ctx, &state, image, 1, NULL, NULL);
    for (uint32_t g = 0; !e && g < d->plan->group_count; g++)
        e = state_copy_blocks(&d->ctx, groups[g].pool, 1, groups[g].blocks, groups[g].block_bytes,
                              image, 1);
    return e ? e
             : state_gather_block(&d->ctx, groups[0].pool, 1, groups[0].blocks,
                                  groups[0].block_bytes, 0, d->b.staging[0], false);
}

/* Runs every kernel that a step may want, on padding alone: the first launch of a kernel loads it, which takes device
 * memory and must not happen while serving or inside a capture. */
static cudaError_t first_pass(struct cuda_device *d)
{
    void *image = d->b.flights[0].image;
    cudaError_t e = cuda_pad_rows(d);

    if (!e) e = cudaMemsetAsync(image, 0, d->b.image_bytes, d->ctx.stream);
    if (!e) e = pass_chunks(d, image); /* a tile of no rows */
    if (!e) e = pass_around(d, image);
    return e ? e : cudaStreamSynchronize(d->ctx.stream);
}

cudaError_t cuda_capture(struct cuda_device *d, uint32_t i, uint32_t left_out)
{
    uint32_t rows = d->b.buckets[i];
    struct cuda_forward f = {.rows = rows,
                             .decode_rows = rows,
                             .decode_tokens = d->limits.context_tokens,
                             .outputs = rows < d->b.outputs ? rows : d->b.outputs,
                             .left_out = left_out};
    cudaError_t e;

    drop_graphs(d, i);
    e = run_and_capture(d, &f, &d->graphs[i], &d->graph_launches[i]);
    if (e || !cuda_short_helps(&d->options, d->plan, &d->limits, rows)) return e;
    f.decode_tokens = CUDA_SHORT_TOKENS;
    return run_and_capture(d, &f, &d->short_graphs[i], &d->graph_launches[i]);
}

static enum status capture_graphs(struct cuda_device *d, struct error *err)
{
    struct cuda_forward one = {.rows = 1,
                               .decode_rows = 1,
                               .decode_tokens = d->limits.context_tokens,
                               .outputs = 1,
                               .chain = true};
    cudaError_t e = first_pass(d);

    if (!e && d->chain.fits) e = cuda_forward_run(d, &one);
    if (!e) e = cudaStreamSynchronize(d->ctx.stream);
    if (!e) e = cuda_memory_phase(&d->memory, CUDA_PHASE_KERNELS);
    for (uint32_t i = 0; !e && i < d->b.bucket_count; i++)
        e = cuda_capture(d, i, 0);
    if (!e && d->chain.fits) e = run_and_capture(d, &one, &d->chain.graph, &d->chain.launches);
    if (!e) e = cudaStreamSynchronize(d->ctx.stream);
    return e ? error_set(err, STATUS_DEVICE, "the first pass: %s", cudaGetErrorString(e))
             : cuda_chain_choose(d, err);
}

static enum status make_events(struct cuda_device *d, struct error *err)
{
    cudaError_t e = cudaSuccess;

    for (uint32_t i = 0; !e && i < d->limits.steps_inflight; i++) {
        e = cudaEventCreateWithFlags(&d->flights[i].uploaded, cudaEventDisableTiming);
        if (!e) e = cudaEventCreateWithFlags(&d->flights[i].done, cudaEventDisableTiming);
    }
    return e ? error_set(err, STATUS_DEVICE, "events of steps: %s", cudaGetErrorString(e))
             : STATUS_OK;
}

/* --- all of it --- */

/* Planned against taken: our own to the byte, the driver's so far as free memory tells it. */
static enum status compare_memory(struct cuda_device *d, struct error *err)
{
    const struct cuda_memory *m = &d->memory;
    struct device_memory planned;
    enum status st = cuda_memory_plan(&d->options, d->plan, &d->limits, &planned, err);
    uint64_t own = st ? 0 : planned.device_bytes - planned.estimate_bytes;

    if (st) return st;
    assert(m->taken_bytes == own); /* one layout, run twice */
    const char *others = cuda_memory_others(m, planned.estimate_bytes);
    log_info(
        "memory compared",
        "own_planned=%llu own_taken=%llu driver_planned=%llu %s=%llu context=%lld "
        "rounding=%lld library=%lld code=%lld graphs=%lld free=%llu total=%llu%s%s%s",
        (unsigned long long)own, (unsigned long long)m->taken_bytes,
        (unsigned long long)planned.estimate_bytes, others ? "driver_and_others" : "driver_taken",
        (unsigned long long)cuda_memory_beside(m), (long long)m->phase_bytes[CUDA_PHASE_CONTEXT],
        (long long)m->phase_bytes[CUDA_PHASE_REGIONS] - (long long)m->taken_bytes,
        (long long)m->phase_bytes[CUDA_PHASE_LIBRARY],
        (long long)m->phase_bytes[CUDA_PHASE_KERNELS], (long long)m->phase_bytes[CUDA_PHASE_GRAPHS],
        (unsigned long long)m->free_bytes, (unsigned long long)m->total_bytes,
        others ? " note=\"" : "", others ? others : "", others ? "\"" : "");
    return STATUS_OK;
}

static enum status after_phase(struct cuda_device *d, enum cuda_phase phase, struct error *err)
{
    cudaError_t e = cuda_memory_phase(&d->memory, phase);

    return e ? error_set(err, STATUS_DEVICE, "asking for free memory: %s", cudaGetErrorString(e))
             : STATUS_OK;
}

static enum status take_memory(struct cuda_device *d, const struct plan *plan, struct error *err)
{
    struct cuda_driver_memory driver = cuda_driver_memory(&d->options, plan, &d->limits);
    uint64_t opened = (uint64_t)d->memory.phase_bytes[CUDA_PHASE_CONTEXT];
    enum status st;

    d->b.stages = calloc(plan->stage_count, sizeof *d->b.stages);
    if (!d->b.stages) return error_set(err, STATUS_NOMEM, "no memory for the stages");
    cuda_layout(&d->options, plan, &d->limits, d->memory.regions, &d->b);
    st = cuda_memory_take(&d->memory, cuda_driver_wants(&driver, opened), err);
    if (!st) cuda_layout(&d->options, plan, &d->limits, d->memory.regions, &d->b);
    return st;
}

static enum status prepare_weights(struct cuda_device *d, struct error *err)
{
    enum status st;

    nvtxRangePushA("weights");
    st = cuda_load_weights(d, err);
    if (!st) st = fill_ropes(d, err);
    if (!st) st = after_phase(d, CUDA_PHASE_KERNELS, err);
    nvtxRangePop();
    return st;
}

static enum status prepare_products(struct cuda_device *d, struct error *err)
{
    enum status st;

    nvtxRangePushA("product algorithms");
    st = make_skinny_weights(d, err);
    if (!st) st = choose_algorithms(d, err);
    if (!st) st = cuda_chain_open(d, err);
    if (!st) st = after_phase(d, CUDA_PHASE_LIBRARY, err);
    nvtxRangePop();
    return st;
}

static enum status prepare_steps(struct cuda_device *d, struct error *err)
{
    enum status st;

    nvtxRangePushA("graphs");
    st = make_events(d, err);
    if (!st) st = capture_graphs(d, err);
    if (!st) st = after_phase(d, CUDA_PHASE_GRAPHS, err);
    nvtxRangePop();
    return st;
}

static uint32_t graph_count(const struct cuda_device *d)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->b.bucket_count; i++)
        n += (d->graphs[i] != NULL) + (d->short_graphs[i] != NULL);
    return n;
}

enum status cuda_compile(struct cuda_device *d, const struct plan *plan,
                         const struct device_limits *limits, struct error *err)
{
    int64_t begun = clock_mono_ns(), loaded, chosen;
    enum status st = cuda_plan_check(&d->options, plan, limits, err);

    assert(!d->plan);
    if (st) return st;
    d->limits = *limits;
    d->compute_dtype = cuda_compute_dtype(&d->options, plan);
    d->ctx.type = d->compute_dtype == DTYPE_F16 ? KERNEL_F16 : KERNEL_BF16;
    st = take_memory(d, plan, err);
    d->plan = plan;
    d->last_attention = plan_last_attention(plan);
    if (!st) st = prepare_weights(d, err);
    loaded = clock_mono_ns();
    if (!st) st = prepare_products(d, err);
    chosen = clock_mono_ns();
    if (!st) st = prepare_steps(d, err);
    if (!st) st = compare_memory(d, err);
    if (st) {
        cuda_free_all(d);
        d->plan = NULL;
        return st;
    }
    cuda_memory_seal(&d->memory);
    log_info("device compiled",
             "weights_s=%.2f products_s=%.2f measured=%u graphs_s=%.2f graphs=%u",
             (double)(loaded - begun) * 1e-9, (double)(chosen - loaded) * 1e-9,
             d->products_measured, (double)(clock_mono_ns() - chosen) * 1e-9, graph_count(d));
    return STATUS_OK;
}
