#include "bench/cuda_bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "bandwidth.h"
#include "base/shown.h"
#include "bench/cuda_bench_parts.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_gemm.h"

enum { REPLAYS = 9 };

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static cudaError_t capture(struct kernel_context *ctx, cudaError_t (*body)(void *, uint32_t),
                           void *arg, uint32_t items, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    cudaError_t e = body(arg, 0),
                inside = cudaSuccess; /* loads the kernel, which a capture forbids */

    if (!e) e = cudaStreamSynchronize(ctx->stream);
    if (!e) e = cudaStreamBeginCapture(ctx->stream, cudaStreamCaptureModeThreadLocal);
    for (uint32_t i = 0; !e && !inside && i < items; i++)
        inside = body(arg, i);
    if (!e) e = cudaStreamEndCapture(ctx->stream, &graph);
    if (!e) e = inside;
    if (!e) e = cudaGraphInstantiate(out, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    return e;
}

static cudaError_t replay(struct kernel_context *ctx, cudaGraphExec_t graph, cudaEvent_t begin,
                          cudaEvent_t end, float *ms)
{
    cudaError_t e = cudaEventRecord(begin, ctx->stream);

    if (!e) e = cudaGraphLaunch(graph, ctx->stream);
    if (!e) e = cudaEventRecord(end, ctx->stream);
    if (!e) e = cudaEventSynchronize(end);
    return e ? e : cudaEventElapsedTime(ms, begin, end);
}

bool bench_ways_us(struct kernel_context *ctx, struct bench_way *ways, uint32_t count,
                   uint32_t items)
{
    cudaGraphExec_t graphs[BENCH_WAYS_MAX] = {NULL};
    float ms[BENCH_WAYS_MAX][REPLAYS + 1];
    cudaEvent_t begin, end;
    cudaError_t e = cudaEventCreate(&begin);

    if (!e) e = cudaEventCreate(&end);
    for (uint32_t w = 0; !e && w < count; w++)
        e = capture(ctx, ways[w].body, ways[w].arg, items, &graphs[w]);
    for (uint32_t i = 0; !e && i <= REPLAYS; i++) /* the first warms up */
        for (uint32_t w = 0; !e && w < count; w++)
            e = replay(ctx, graphs[w], begin, end, &ms[w][i]);
    for (uint32_t w = 0; w < count; w++) {
        if (graphs[w]) cudaGraphExecDestroy(graphs[w]);
        if (e) continue;
        qsort(ms[w] + 1, REPLAYS, sizeof *ms[w], by_value);
        ways[w].us = (double)ms[w][1 + REPLAYS / 2] * 1e3 / items;
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    if (e) fprintf(stderr, "bench: %s\n", cudaGetErrorString(e));
    return !e;
}

double bench_graph_us(struct kernel_context *ctx, cudaError_t (*body)(void *, uint32_t), void *arg,
                      uint32_t items)
{
    struct bench_way way = {body, arg, 0};

    return bench_ways_us(ctx, &way, 1, items) ? way.us : -1;
}

/* --- limits --- */

struct limit_job {
    struct kernel_context *ctx;
    char *memory;
    uint64_t bytes;
    struct cuda_gemm *gemm;
    uint32_t id;
};

static cudaError_t read_body(void *arg, uint32_t i)
{
    struct limit_job *j = arg;

    return bandwidth_read(j->ctx, j->memory + (i % 2) * j->bytes, j->bytes,
                          (uint32_t *)(j->memory + 2 * j->bytes));
}

static cudaError_t copy_body(void *arg, uint32_t i)
{
    struct limit_job *j = arg;

    return bandwidth_copy(j->ctx, j->memory + (i % 2) * j->bytes,
                          j->memory + ((i + 1) % 2) * j->bytes, j->bytes);
}

enum { PRODUCT_SIDE = 8192 };

static cudaError_t product_body(void *arg, uint32_t i)
{
    struct limit_job *j = arg;
    uint64_t matrix = 2ull * PRODUCT_SIDE * PRODUCT_SIDE;

    (void)i;
    return cuda_gemm_run(j->gemm, j->id, j->memory, j->memory + matrix, PRODUCT_SIDE,
                         j->memory + 2 * matrix, 1, j->ctx->stream);
}

static enum status measure_product(struct limit_job *j, struct cuda_limits *out, struct error *err)
{
    struct cuda_gemm_shape shape = {PRODUCT_SIDE, PRODUCT_SIDE, PRODUCT_SIDE, PRODUCT_SIDE, false};
    uint64_t matrix = 2ull * PRODUCT_SIDE * PRODUCT_SIDE;
    const void *weights[1] = {j->memory};
    double us = -1;
    enum status st =
        cuda_gemm_open(DTYPE_BF16, j->memory + 4 * matrix, 64u << 20, NULL, &j->gemm, err);

    if (!st)
        st = cuda_gemm_prepare(j->gemm, &shape, weights, 1, j->memory + matrix,
                               j->memory + 2 * matrix, PRODUCT_SIDE, false, j->ctx->stream, &j->id,
                               err);
    if (!st) us = bench_graph_us(j->ctx, product_body, j, 8);
    if (!st && us <= 0)
        st = error_set(err, STATUS_DEVICE, "limits: the product could not be timed");
    out->product_tflop_s =
        st ? 0 : 2.0 * PRODUCT_SIDE * PRODUCT_SIDE * (double)PRODUCT_SIDE / us * 1e-6;
    cuda_gemm_close(j->gemm);
    return st;
}

static enum status measure_memory(struct limit_job *j, struct cuda_limits *out, struct error *err)
{
    double read = bench_graph_us(j->ctx, read_body, j, 8),
           copy = read > 0 ? bench_graph_us(j->ctx, copy_body, j, 8) : -1;

    if (read <= 0 || copy <= 0)
        return error_set(err, STATUS_DEVICE, "limits: reads and copies could not be timed");
    out->read_gb_s = (double)j->bytes / read * 1e-3;
    out->copy_gb_s = 2.0 * (double)j->bytes / copy * 1e-3;
    return STATUS_OK;
}

static void print_limits(const struct cuda_limits *l)
{
    printf("{\"bench\": \"limits\", \"read_gb_s\": %.0f, \"copy_gb_s\": %.0f", l->read_gb_s,
           l->copy_gb_s);
    fprintf(stderr, "limits: read %.0f GB/s, copy %.0f GB/s", l->read_gb_s, l->copy_gb_s);
    if (l->product_tflop_s > 0) {
        printf(", \"bf16_product_tflop_s\": %.0f", l->product_tflop_s);
        fprintf(stderr, ", bf16 products %.0f TFLOP/s", l->product_tflop_s);
    }
    fprintf(stderr, "\n"); /* first: the record goes out with its end, and not into this line */
    printf("}\n");
}

enum status bench_limits(struct kernel_context *ctx, bool products, struct cuda_limits *out,
                         struct error *err)
{
    struct limit_job j = {.ctx = ctx, .bytes = 1ull << 30};
    cudaError_t e = cudaMalloc((void **)&j.memory, 2 * j.bytes + 4096);
    enum status st = STATUS_OK;

    *out = (struct cuda_limits){0};
    if (!e) e = bandwidth_fill(ctx, j.memory, 2 * j.bytes, 1);
    if (e) st = error_set(err, STATUS_DEVICE, "limits: %s", cudaGetErrorString(e));
    if (!st) st = measure_memory(&j, out, err);
    if (!st && products) st = measure_product(&j, out, err);
    cudaFree(j.memory);
    if (!st) print_limits(out);
    return st;
}

/* --- all of them --- */

static int no_gpu(const char *what, const char *why)
{
    fprintf(stderr,
            "inferd: bench %s measures a GPU, and none answers here (%s): a CUDA device of compute "
            "capability 8.0 and up with its driver is right. The CPU is measured by `inferd bench "
            "device MODEL`, a server by `inferd bench serve --url URL`\n",
            what, why);
    return 1;
}

static enum status measure(struct kernel_context *ctx, const struct cuda_bench_options *o,
                           struct error *err)
{
    const bool kernels = o->what == CUDA_BENCH_KERNELS;
    struct cuda_limits limits;
    enum status st = kernels ? bench_kernels_named(ctx, o->only, err) : STATUS_OK;

    if (!st) st = bench_limits(ctx, kernels || o->what == CUDA_BENCH_LIMITS, &limits, err);
    if (st) return st;
    switch (o->what) {
    case CUDA_BENCH_LIMITS: return STATUS_OK;
    case CUDA_BENCH_KERNELS: return bench_kernels(ctx, &limits, o, err);
    case CUDA_BENCH_DECODE:
    case CUDA_BENCH_BREAKDOWN: return bench_decode(&limits, o, err);
    case CUDA_BENCH_GRAPHS: return bench_graphs(o, err);
    case CUDA_BENCH_PREFILL: return bench_prefill(o, err);
    case CUDA_BENCH_LOAD: return bench_load(ctx, o, err);
    }
    return STATUS_OK;
}

int bench_cuda_main(int argc, char **argv)
{
    struct cuda_bench_options o;
    struct kernel_context ctx;
    struct error err = {0};
    int done = cuda_bench_options(argc, argv, &o);

    if (done >= 0) return done;
    /* a record stays whole in a file that stderr goes to as well */
    setvbuf(stdout, NULL, _IOLBF, 0);
    int count;
    if (cuda_driver_count(&count, &err)) return no_gpu(o.name, err.message);
    cudaError_t e = kernel_context_init(&ctx);
    ctx.type = o.f16 ? KERNEL_F16 : KERNEL_BF16;
    if (!e) e = cudaStreamCreateWithFlags(&ctx.stream, cudaStreamNonBlocking);
    if (e) return no_gpu(o.name, cudaGetErrorString(e));
    enum status st = measure(&ctx, &o, &err);
    cudaStreamDestroy(ctx.stream);
    if (st) shown_error(o.name, &err);
    return st ? 1 : 0;
}
