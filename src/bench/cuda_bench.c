#include "bench/cuda_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    enum status st =
        cuda_gemm_open(DTYPE_BF16, j->memory + 4 * matrix, 64u << 20, NULL, &j->gemm, err);

    if (!st)
        st = cuda_gemm_prepare(j->gemm, &shape, weights, 1, j->memory + matrix,
                               j->memory + 2 * matrix, PRODUCT_SIDE, false, j->ctx->stream, &j->id,
                               err);
    if (!st) {
        double us = bench_graph_us(j->ctx, product_body, j, 8);
        out->product_tflop_s = 2.0 * PRODUCT_SIDE * PRODUCT_SIDE * (double)PRODUCT_SIDE / us * 1e-6;
    }
    cuda_gemm_close(j->gemm);
    return st;
}

enum status bench_limits(struct kernel_context *ctx, bool products, struct cuda_limits *out,
                         struct error *err)
{
    struct limit_job j = {.ctx = ctx, .bytes = 1ull << 30};
    cudaError_t e = cudaMalloc((void **)&j.memory, 2 * j.bytes + 4096);
    enum status st = STATUS_OK;

    if (!e) e = bandwidth_fill(ctx, j.memory, 2 * j.bytes, 1);
    if (e) return error_set(err, STATUS_DEVICE, "limits: %s", cudaGetErrorString(e));
    out->read_gb_s = (double)j.bytes / bench_graph_us(ctx, read_body, &j, 8) * 1e-3;
    out->copy_gb_s = 2.0 * (double)j.bytes / bench_graph_us(ctx, copy_body, &j, 8) * 1e-3;
    if (products) st = measure_product(&j, out, err);
    cudaFree(j.memory);
    printf("{\"bench\": \"limits\", \"read_gb_s\": %.0f, \"copy_gb_s\": %.0f, "
           "\"bf16_product_tflop_s\": %.0f}\n",
           out->read_gb_s, out->copy_gb_s, out->product_tflop_s);
    fprintf(stderr, "limits: read %.0f GB/s, copy %.0f GB/s", out->read_gb_s, out->copy_gb_s);
    if (products) fprintf(stderr, ", bf16 products %.0f TFLOP/s", out->product_tflop_s);
    fprintf(stderr, "\n");
    return st;
}

/* --- options --- */

static const char usage[] =
    "usage: bench limits\n"
    "       bench kernels [--only NAME]\n"
    "       bench decode --model FOLDER [--batch N] [--context N] [--steps N] [--eager 1]\n"
    "             [--limit N]: longest sequence that the device is made for, as a server's\n"
    "       bench breakdown --model FOLDER ... as decode, and µs by kind of stage\n"
    "       bench graphs --model FOLDER [--batches 1,2,4,8,16,32,64] [--context N] [--steps N]\n"
    "       bench load --model FOLDER_OR_GGUF [--cold 1]: real files; cold: out of the page cache "
    "first\n"
    "       bench prefill --model FOLDER [--prompt N] [--repeats N] [--rows N] [--idle MS]\n"
    "FOLDER has a config.json; weights are made up. [--f16 1]: f16 instead of bf16. "
    "[--chain 0]: never all\n"
    "layers in one launch\n";

static bool parse_count(const char *text, uint32_t *out)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    *out = (uint32_t)value;
    return *text >= '0' && *text <= '9' && !*end && value <= 1u << 24;
}

static bool parse_option(struct cuda_bench_options *o, const char *name, const char *value)
{
    uint32_t flag = 0;

    if (!strcmp(name, "--model")) return (o->model = value) != NULL;
    if (!strcmp(name, "--batches")) return (o->batches = value) != NULL;
    if (!strcmp(name, "--cold") && parse_count(value, &flag))
        return (o->cold = flag) == (flag != 0);
    if (!strcmp(name, "--only")) return (o->only = value) != NULL;
    if (!strcmp(name, "--batch"))
        return parse_count(value, &o->batch) && o->batch >= 1 && o->batch <= 1024;
    if (!strcmp(name, "--limit")) return parse_count(value, &o->limit);
    if (!strcmp(name, "--context")) return parse_count(value, &o->context) && o->context >= 1;
    if (!strcmp(name, "--prompt")) return parse_count(value, &o->prompt) && o->prompt >= 1;
    if (!strcmp(name, "--steps")) return parse_count(value, &o->steps) && o->steps >= 1;
    if (!strcmp(name, "--repeats"))
        return parse_count(value, &o->repeats) && o->repeats >= 1 && o->repeats <= 200;
    if (!strcmp(name, "--idle")) return parse_count(value, &o->idle_ms) && o->idle_ms <= 10000;
    if (!strcmp(name, "--rows")) return parse_count(value, &o->rows_max) && o->rows_max >= 1;
    if (!strcmp(name, "--eager") && parse_count(value, &flag))
        return (o->eager = flag) == (flag != 0);
    if (!strcmp(name, "--chain") && parse_count(value, &flag))
        return (o->no_chain = !flag) == !flag;
    if (!strcmp(name, "--f16") && parse_count(value, &flag)) return (o->f16 = flag) == (flag != 0);
    return false;
}

static int no_gpu(const char *what, const char *why)
{
    fprintf(stderr,
            "inferd: bench %s measures a GPU, and none answers here (%s): a CUDA device of compute "
            "capability 8.0 and up with its driver is right. The CPU is measured by `inferd bench "
            "device MODEL`, a server by `inferd bench serve --url URL`\n",
            what, why);
    return 1;
}

int bench_cuda_main(int argc, char **argv)
{
    struct cuda_bench_options o = {.batch = 1,
                                   .context = 1024,
                                   .prompt = 1024,
                                   .steps = 128,
                                   .repeats = 20,
                                   .rows_max = 2048,
                                   .batches = "1,2,4,8,16,32,64"};
    const char *what = argc > 0 ? argv[0] : "";
    bool steps = !strcmp(what, "decode") || !strcmp(what, "prefill") ||
                 !strcmp(what, "breakdown") || !strcmp(what, "graphs") || !strcmp(what, "load");
    struct cuda_limits limits = {0};
    struct kernel_context ctx;
    struct error err = {0};

    setvbuf(stdout, NULL, _IOLBF,
            0); /* a record stays whole in a file that stderr goes to as well */
    if (argc == 2 && !strcmp(argv[1], "--help")) return fputs(usage, stdout) < 0;
    for (int i = 1; i + 1 < argc; i += 2)
        if (!parse_option(&o, argv[i], argv[i + 1])) return fputs(usage, stderr), 2;
    if (argc % 2 == 0 || (steps && !o.model) ||
        (!steps && strcmp(what, "limits") && strcmp(what, "kernels")))
        return fputs(usage, stderr), 2;
    int count;
    if (cuda_driver_count(&count, &err)) return no_gpu(what, err.message);
    cudaError_t e = kernel_context_init(&ctx);
    ctx.type = o.f16 ? KERNEL_F16 : KERNEL_BF16;
    if (!e) e = cudaStreamCreateWithFlags(&ctx.stream, cudaStreamNonBlocking);
    if (e) return no_gpu(what, cudaGetErrorString(e));
    enum status st = bench_limits(&ctx, !steps, &limits, &err);
    if (!st && !strcmp(what, "kernels")) st = bench_kernels(&ctx, &limits, &o, &err);
    o.breakdown = !strcmp(what, "breakdown");
    if (!st && (!strcmp(what, "decode") || o.breakdown)) st = bench_decode(&limits, &o, &err);
    if (!st && !strcmp(what, "graphs")) st = bench_graphs(&o, &err);
    if (!st && !strcmp(what, "load")) st = bench_load(&ctx, &o, &err);
    if (!st && !strcmp(what, "prefill")) st = bench_prefill(&limits, &o, &err);
    cudaStreamDestroy(ctx.stream);
    if (st) shown_error(what, &err);
    return st ? 1 : 0;
}
