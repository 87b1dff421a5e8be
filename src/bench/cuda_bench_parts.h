/* cuda_bench_parts.h - what the files of the CUDA benchmark share. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "bench/cuda_bench_options.h"
#include "common/context.h"

struct cuda_limits {
    double read_gb_s, copy_gb_s;
    double product_tflop_s; /* 0: not measured */
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

/* Whether products are measured too (they load the library). Prints what was measured, or nothing on an error. */
enum status bench_limits(struct kernel_context *ctx, bool products, struct cuda_limits *out,
                         struct error *err);
/* Whether there is a kernel here whose name contains `only` (NULL: any); measures nothing. Error: STATUS_NOT_FOUND, with names that there
 * are. */
enum status bench_kernels_named(struct kernel_context *ctx, const char *only, struct error *err);
enum status bench_kernels(struct kernel_context *ctx, const struct cuda_limits *limits,
                          const struct cuda_bench_options *o, struct error *err);
enum status bench_decode(const struct cuda_limits *limits, const struct cuda_bench_options *o,
                         struct error *err);
enum status bench_graphs(const struct cuda_bench_options *o, struct error *err);
enum status bench_prefill(const struct cuda_bench_options *o, struct error *err);
/* --- cuda_bench_load.c --- */
enum status bench_load(struct kernel_context *ctx, const struct cuda_bench_options *o,
                       struct error *err);
