/* gpu.h - memory and numbers for kernel tests: outputs poisoned, canaries behind every buffer, references in float64. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/context.h"
#include "test.h"

/* Skips the running test (by name, in cmocka's report) where no CUDA device answers. */
#define NEED_GPU(ctx_type)                                             \
    struct kernel_context ctx;                                         \
    if (!gpu_begin(&ctx, ctx_type)) {                                  \
        print_message("skipped: no CUDA device (%s)\n", gpu_reason()); \
        skip();                                                        \
    }

bool gpu_begin(struct kernel_context *ctx,
               enum kernel_type type); /* a fresh stream; seeds test_rand as usual */
const char *gpu_reason(void);

/* Few and small shapes: INFERD_GPU_SMALL, for tools that make a kernel a hundred times slower. */
bool gpu_small(void);

/* Device memory filled with NaN patterns (0xff) and canaries behind; all freed by gpu_end, which checks the canaries. */
void *gpu_poisoned(size_t bytes);
/* The same for what kernels keep to themselves, but with INFERD_GPU_RAW as cudaMalloc gave it, so that initcheck sees who reads what
 * nobody wrote. */
void *gpu_scratch(size_t bytes);
void *gpu_zeroed(size_t bytes);
void *gpu_upload(const void *host, size_t bytes);
void gpu_download(const struct kernel_context *ctx, const void *device, void *host, size_t bytes);
void gpu_end(struct kernel_context *ctx);

#define EXPECT_CUDA(call)                                                                         \
    do {                                                                                          \
        cudaError_t e_ = (call);                                                                  \
        if (e_) fail_msg("%s:%d: %s gave %s", __FILE__, __LINE__, #call, cudaGetErrorString(e_)); \
    } while (0)

float type_round(enum kernel_type type, float v); /* to bf16 or f16 and back */
uint16_t type_bits(enum kernel_type type, float v);
float type_value(enum kernel_type type, uint16_t bits);
/* n values of T, uniform in +-amplitude, one in 64 eight times as large (tolerances are proved by outliers). */
uint16_t *random_values(enum kernel_type type, size_t n, float amplitude);
float *random_floats(size_t n, float amplitude);

/* ||a - b|| / ||b||; fails on NaN. */
double relative_error(const double *want, const float *got, size_t n);
