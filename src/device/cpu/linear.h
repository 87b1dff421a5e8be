/* linear.h - y = x W^T on the CPU, for every stored format, both numerics and every instruction set.
 *
 * A `struct linear` is one weight packed (once, by device_compile) for the kernels in use, or used in place where packing
 * gains nothing. Rows of x are prepared once and shared by the linears that read them (q, k, v; gate, up): in `exact`
 * they stay float32; in `fast`, for quantised weights, they become int8 with a scale per 32 (linear_prepare).
 *
 * Invariant: y[r][n] depends on x[r], on W and on the numerics only - never on how many rows there are, on the split of
 * n over threads, on the row's place in the batch, or on the instruction set. Few rows (decode) and many rows (prefill)
 * are two loops around the same order of sums (linear_kernel.h), and so are the instruction sets.
 * NaN or infinity in x[r] makes all of y[r] NaN or infinite where it meets a weight's block.
 * Thread: linear_run may be called by many threads at once on disjoint tile ranges. Memory: the caller's. */
#pragma once

#include <stdint.h>

#include "device/device.h"
#include "device/plan.h"

enum cpu_isa {
    CPU_ISA_GENERIC,
    CPU_ISA_AVX2,
    CPU_ISA_AVX512,
    CPU_ISA_AVX512_VNNI,
    CPU_ISA_AMX,
    CPU_ISA_COUNT
};
/* The best that this processor and operating system allow (AMX: asks the kernel for permission once). */
enum cpu_isa cpu_isa_best(void);
const char *cpu_isa_name(enum cpu_isa isa);

/* What form of x a linear reads. Linears of one stage that agree share one prepared input. */
enum linear_input { LINEAR_INPUT_F32, LINEAR_INPUT_Q8, LINEAR_INPUT_COUNT };

struct linear {
    struct plan_weight weight;
    enum cpu_numerics numerics;
    enum cpu_isa isa;
    const void *packed; /* in the layout of the kernel; or weight.data where used in place */
    uint32_t
        tiles; /* the unit in which threads share the work: tile t covers outputs [t * tile_rows, ...) */
    uint32_t tile_rows;
    enum linear_input input;
    bool in_rows;       /* packed is row-major as stored; else in the layout of linear_kernel.h */
    uint64_t row_bytes; /* between rows, where in_rows */
    void (*run)(const struct linear *linear, const void *input, uint32_t rows, float *y,
                uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end);
};

/* Bytes that linear_pack_tiles will fill; 0: the weight is used in place. Known without the data (but for data being NULL:
 * made-up values, dummy_weights.h, always need room). */
uint64_t linear_packed_bytes(const struct plan_weight *weight, enum cpu_numerics numerics,
                             enum cpu_isa isa);
/* Sets up *out; `packed` has linear_packed_bytes bytes, 64-byte aligned (NULL when 0). Packing itself is done by
 * linear_pack_tiles over disjoint ranges of tiles, so that threads can share it. */
void linear_init(struct linear *out, const struct plan_weight *weight, enum cpu_numerics numerics,
                 enum cpu_isa isa, void *packed);
void linear_pack_tiles(struct linear *linear, void *packed, uint32_t tile_begin, uint32_t tile_end);

enum linear_input linear_input_kind(const struct linear *linear);
/* Bytes per row of a prepared input of `cols` values, a multiple of 64. */
uint64_t linear_input_row_bytes(enum linear_input kind, uint32_t cols);
/* Prepares rows [row_begin, row_end) of x [rows, cols] (stride in floats) into `input`; rows are independent. */
void linear_prepare(enum linear_input kind, enum cpu_isa isa, const float *x, uint64_t x_stride,
                    uint32_t cols, void *input, uint32_t row_begin, uint32_t row_end);

/* LINEAR_INPUT_Q8 alone: residual[k] = x[k] - what prepared row `row` of input holds of it. Prepared in its turn, it gives
 * the activation in two int8 parts, 15 bits in all. residual may be x. */
void linear_residual(const float *x, uint32_t cols, const void *input, uint32_t row,
                     float *residual);

/* y[r][n] = sum_k x[r][k] W[n][k] for all rows and the n of tiles [tile_begin, tile_end). y_stride in floats. */
void linear_run(const struct linear *linear, const void *input, uint32_t rows, float *y,
                uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end);
