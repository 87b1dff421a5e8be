#include "device/cuda/cuda_breakdown.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_device.h"

enum { REPEATS_MAX = 99 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One pass: us[kind] of this pass. */
static cudaError_t pass(struct cuda_device *d, const struct cuda_forward *f, cudaEvent_t begin,
                        double us[CUDA_BREAKDOWN_KINDS])
{
    cudaError_t e = cudaEventRecord(begin, d->ctx.stream);
    cudaEvent_t before = begin;

    if (!e) e = cuda_forward_run(d, f);
    if (!e) e = cudaStreamSynchronize(d->ctx.stream);
    memset(us, 0, CUDA_BREAKDOWN_KINDS * sizeof *us);
    for (uint32_t i = 0; !e && i < d->plan->stage_count; i++) {
        float ms = 0;
        e = cudaEventElapsedTime(&ms, before, f->marks[i]);
        us[d->plan->stages[i].kind] += (double)ms * 1e3;
        before = f->marks[i];
    }
    return e;
}

enum status cuda_breakdown(struct device *device, uint32_t rows, uint32_t repeats,
                           double us[CUDA_BREAKDOWN_KINDS], struct error *err)
{
    struct cuda_device *d = (struct cuda_device *)device;
    struct cuda_forward f = {.rows = rows,
                             .decode_rows = rows,
                             .decode_tokens = d->limits.context_tokens,
                             .outputs = rows};
    double(*all)[CUDA_BREAKDOWN_KINDS] = calloc(repeats, sizeof *all), column[REPEATS_MAX];
    cudaEvent_t begin = NULL;
    cudaError_t e = cudaEventCreate(&begin);

    assert(repeats >= 1 && repeats <= REPEATS_MAX && rows <= d->b.outputs);
    f.marks = calloc(d->plan->stage_count, sizeof *f.marks);
    if (!all || !f.marks) e = cudaErrorMemoryAllocation;
    for (uint32_t i = 0; !e && i < d->plan->stage_count; i++)
        e = cudaEventCreate(&f.marks[i]);
    for (uint32_t r = 0; !e && r < repeats; r++)
        e = pass(d, &f, begin, all[r]);
    for (uint32_t k = 0; !e && k < CUDA_BREAKDOWN_KINDS; k++) {
        for (uint32_t r = 0; r < repeats; r++)
            column[r] = all[r][k];
        qsort(column, repeats, sizeof *column, by_value);
        us[k] = column[repeats / 2];
    }
    for (uint32_t i = 0; f.marks && i < d->plan->stage_count; i++)
        if (f.marks[i]) cudaEventDestroy(f.marks[i]);
    if (begin) cudaEventDestroy(begin);
    free(f.marks), free(all);
    return e ? error_set(err, STATUS_DEVICE, "breakdown: %s", cudaGetErrorString(e)) : STATUS_OK;
}

void cuda_use_graphs(struct device *device, bool on)
{
    ((struct cuda_device *)device)->options.enforce_eager = !on;
}

bool cuda_use_chain(struct device *device, bool on)
{
    struct cuda_device *d = (struct cuda_device *)device;

    d->chain.tokens = d->chain.fits && on ? DECODE_CHAIN_TOKENS_MAX : 0;
    return d->chain.fits;
}

bool cuda_leave_out(struct device *device, uint32_t rows, uint32_t kinds)
{
    struct cuda_device *d = (struct cuda_device *)device;
    uint32_t i = 0;

    while (i < d->b.bucket_count && d->b.buckets[i] < rows)
        i++;
    if (i == d->b.bucket_count || !d->graphs[i] || (rows == 1 && d->chain.tokens)) return false;
    return cuda_capture(d, i, kinds) == cudaSuccess;
}

uint32_t cuda_graph_launches(const struct device *device, uint32_t rows)
{
    const struct cuda_device *d = (const struct cuda_device *)device;

    if (rows == 1 && d->chain.tokens) return d->chain.launches;
    for (uint32_t i = 0; i < d->b.bucket_count; i++)
        if (d->b.buckets[i] >= rows && d->graphs[i]) return d->graph_launches[i];
    return 0;
}
