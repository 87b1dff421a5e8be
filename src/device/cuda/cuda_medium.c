/* cuda_medium.c - how the products of up to 64 rows are cut (kernels/medium_gemm.h): timed once per shape of weight at start, on the
 * model's own weights and with the end that each has in a step, and kept on disk beside the library's choices; where bits
 * must be the same after every start, by rule. */
#include <stdlib.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/gemm_cache.h"

/* KERNEL: counts up when kernels/medium_wgmma.cu is changed so that another cut may be the fastest: choices kept of before are not for it. */
enum { CUTS = 12, TIMED_RUNS = 3, KERNEL = 3 };

struct timing {
    struct cuda_device *d;
    const struct cuda_stage *alike[CUDA_ALIKE_MAX];
    uint32_t count, rows;
    cudaEvent_t begin, end;
};

/* One product with the end that it has in a step; on whatever the buffers hold. */
static cudaError_t run_one(struct timing *t, const struct cuda_stage *s,
                           const struct medium_weight *weight)
{
    struct cuda_buffers *b = &t->d->b;
    struct medium_args a = {.weight = weight,
                            .M = t->rows,
                            .x = b->h,
                            .x_stride = b->hidden_stride,
                            .scale = 1,
                            .bias = s->bias};

    switch (s->plan->kind) {
    case STAGE_ATTN_IN: a.y = b->qkv, a.y_stride = b->qkv_stride; break;
    case STAGE_FFN_IN:
        a.epilogue = MEDIUM_GLU, a.y = b->ffn, a.y_stride = b->ffn_stride;
        a.act = s->plan->ffn_in.act == ACT_GELU_TANH;
        break;
    case STAGE_HEAD:
        a.epilogue = MEDIUM_LOGITS, a.y = b->logits, a.y_stride = b->logits_stride;
        break;
    default:
        if (s->plan->kind == STAGE_ATTN_OUT)
            a.x = b->attn, a.x_stride = b->attn_stride;
        else
            a.x = b->ffn, a.x_stride = b->ffn_stride;
        a.epilogue = MEDIUM_RESIDUAL, a.y = b->x, a.y_stride = b->hidden_stride;
    }
    return medium_gemm(&t->d->ctx, &a);
}

/* Best time of all `alike`, one behind the other, cut so. The first run warms up. */
static cudaError_t time_cut(struct timing *t, const struct medium_shape *shape, float *best)
{
    struct medium_weight weights[CUDA_ALIKE_MAX];
    cudaStream_t stream = t->d->ctx.stream;
    cudaError_t e = cudaSuccess;
    float ms;

    for (uint32_t i = 0; !e && i < t->count; i++) {
        const struct cuda_matrix *w = &t->alike[i]->weight;
        e = medium_weight_init(&weights[i], &t->d->ctx, w->at, w->rows, w->cols_padded, shape);
    }
    for (uint32_t run = 0; !e && run <= TIMED_RUNS; run++) {
        e = cudaEventRecord(t->begin, stream);
        for (uint32_t i = 0; !e && i < t->count; i++)
            e = run_one(t, t->alike[i], &weights[i]);
        if (!e) e = cudaEventRecord(t->end, stream);
        if (!e) e = cudaEventSynchronize(t->end);
        if (!e) e = cudaEventElapsedTime(&ms, t->begin, t->end);
        if (run <= 1 || ms < *best) *best = ms;
    }
    return e;
}

static cudaError_t time_cuts(struct timing *t, const struct medium_shape *shapes, uint32_t count,
                             struct medium_shape *chosen)
{
    cudaError_t e = cudaSuccess;
    float best = 0, ms = 0;

    for (uint32_t i = 0; !e && i < count; i++) {
        e = time_cut(t, &shapes[i], &ms);
        if (i == 0 || ms < best * 0.98f) /* noise picks the earlier */
            best = ms, *chosen = shapes[i];
    }
    return e;
}

/* What is kept of it: told from a library's choice by its rows, which those never have. */
static struct gemm_choice choice_of(const struct cuda_stage *s, const struct medium_shape *shape)
{
    return (struct gemm_choice){.N = s->weight.rows,
                                .K = s->weight.cols_padded,
                                .ldx = (uint64_t)s->plan->kind,
                                .ldy = KERNEL,
                                .rows = 0,
                                .algorithm = {shape->tile, shape->splits, shape->share}};
}

static bool recall(const struct cuda_device *d, const struct cuda_stage *s,
                   const struct medium_shape *shapes, uint32_t count, struct medium_shape *chosen)
{
    struct gemm_choice choice = choice_of(s, chosen);

    if (!gemm_cache_find(cuda_gemm_cache(d->gemm), &choice)) return false;
    for (uint32_t i = 0; i < count; i++)
        if (choice.algorithm[0] == shapes[i].tile && choice.algorithm[1] == shapes[i].splits &&
            choice.algorithm[2] == shapes[i].share) {
            *chosen = shapes[i];
            return true;
        }
    return false;
}

/* The cut of a stage's weight, for itself and t->alike. */
static cudaError_t choose(struct timing *t, const struct cuda_stage *s, struct medium_shape *chosen)
{
    struct cuda_device *d = t->d;
    struct medium_shape shapes[CUTS];
    uint32_t count = medium_shapes(&d->ctx, s->weight.rows, s->weight.cols_padded, shapes, CUTS);
    uint32_t room = s->plan->kind == STAGE_HEAD ? d->b.outputs : d->b.rows;
    cudaError_t e;

    *chosen = shapes[0];
    if (d->options.batch_invariant || count < 2) return cudaSuccess;
    if (recall(d, s, shapes, count, chosen)) return cudaSuccess;
    t->rows = room < CUDA_MEDIUM_ROWS ? room : CUDA_MEDIUM_ROWS;
    e = time_cuts(t, shapes, count, chosen);
    if (!e) {
        struct gemm_choice choice = choice_of(s, chosen);
        gemm_cache_add(cuda_gemm_cache(d->gemm), &choice);
        d->products_measured++;
    }
    return e;
}

static cudaError_t cut_all(struct timing *t)
{
    struct cuda_device *d = t->d;
    cudaError_t e = cudaSuccess;

    for (uint32_t i = 0; !e && i < d->plan->stage_count; i++) {
        const struct cuda_stage *s = &d->b.stages[i];
        struct medium_weight *out = &d->medium_weights[s->index];
        struct medium_shape shape;
        if (!s->weight.rows || !medium_gemm_fits(&d->ctx, 1, s->weight.rows, s->weight.cols_padded))
            continue;
        t->count = cuda_stages_alike(d, s, t->alike);
        if (t->alike[0] != s)
            shape = d->medium_weights[t->alike[0]->index].shape;
        else
            e = choose(t, s, &shape);
        if (!e)
            e = medium_weight_init(out, &d->ctx, s->weight.at, s->weight.rows,
                                   s->weight.cols_padded, &shape);
    }
    return e;
}

static bool all_skinny(const struct cuda_device *d, uint32_t rows)
{
    for (uint32_t i = 0; i < d->plan->stage_count; i++) {
        const struct cuda_stage *s = &d->b.stages[i];
        bool norm = s->gain != NULL;
        if (s->weight.rows && !skinny_gemm_fits(&d->ctx, rows, s->weight.cols_padded, norm))
            return false;
    }
    return true;
}

/* A step's products up to its last attention are all of one kind, so that each can prepare the next; so are those behind it, for the
 * rows that want logits. Those of this kind give a row the same bits up to 64 rows: where that is asked for, they run all. Without
 * them, each product is skinny that can be. */
static uint32_t choose_skinny_rows(const struct cuda_device *d)
{
    uint32_t rows = CUDA_SKINNY_ROWS;

    for (uint32_t i = 0; i < d->plan->stage_count; i++)
        if (d->b.stages[i].weight.rows && !d->medium_weights[d->b.stages[i].index].N) return rows;
    if (d->options.batch_invariant) return 0;
    while (rows > 0 && !all_skinny(d, rows))
        rows--;
    return rows;
}

enum status cuda_medium_choose(struct cuda_device *d, struct error *err)
{
    struct timing t = {.d = d};
    cudaError_t e;

    d->skinny_rows = CUDA_SKINNY_ROWS;
    if (d->ctx.capability < 90) return STATUS_OK;
    d->medium_weights = calloc(d->b.weight_count, sizeof *d->medium_weights);
    if (!d->medium_weights)
        return error_set(err, STATUS_NOMEM, "no memory for the cuts of products");
    e = cudaEventCreate(&t.begin);
    if (!e) e = cudaEventCreate(&t.end);
    if (!e) e = cut_all(&t);
    if (t.begin) cudaEventDestroy(t.begin);
    if (t.end) cudaEventDestroy(t.end);
    d->skinny_rows = choose_skinny_rows(d);
    return e ? error_set(err, STATUS_DEVICE, "cutting products: %s", cudaGetErrorString(e))
             : STATUS_OK;
}
