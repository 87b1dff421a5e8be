/* cuda_bench_parts.h - what the files of the CUDA benchmark share. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "common/context.h"

struct cuda_limits {
    double read_gb_s, copy_gb_s, product_tflop_s;
};

struct cuda_bench_options {
    const char *model; /* folder with config.json */
    uint32_t batch, context, prompt, steps, repeats, rows_max;
    uint32_t
        limit; /* decode, graphs: of a sequence's tokens, as a server has it; 0: what the run needs */
    uint32_t idle_ms;    /* prefill: without work in front of each prompt */
    const char *batches; /* graphs: "1,8,64" */
    bool eager, f16, breakdown, cold;
    bool no_chain;    /* a launch for each part, also where all layers could be one */
    const char *only; /* kernels: those whose name contains it */
};

/* Median µs of one item of `items`, launched by body(arg, i) and replayed as a graph; < 0 on an error, which is printed. */
double bench_graph_us(struct kernel_context *ctx, cudaError_t (*body)(void *arg, uint32_t i),
                      void *arg, uint32_t items);

/* Ways to do an item that are measured in turns, so that a slow moment meets all. */
struct bench_way {
    cudaError_t (*body)(void *arg, uint32_t i);
    void *arg;
    double us; /* out: median of an item */
};
enum { BENCH_WAYS_MAX = 2 };
/* False on an error, which is printed. */
bool bench_ways_us(struct kernel_context *ctx, struct bench_way *ways, uint32_t count,
                   uint32_t items);

/* Whether products are measured too (they load the library). */
enum status bench_limits(struct kernel_context *ctx, bool products, struct cuda_limits *out,
                         struct error *err);
enum status bench_kernels(struct kernel_context *ctx, const struct cuda_limits *limits,
                          const struct cuda_bench_options *o, struct error *err);
enum status bench_decode(const struct cuda_limits *limits, const struct cuda_bench_options *o,
                         struct error *err);
enum status bench_graphs(const struct cuda_bench_options *o, struct error *err);
/* --- cuda_bench_load.c --- */
enum status bench_load(struct kernel_context *ctx, const struct cuda_bench_options *o,
                       struct error *err);
enum status bench_prefill(const struct cuda_limits *limits, const struct cuda_bench_options *o,
                          struct error *err);
