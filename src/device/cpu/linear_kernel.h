/* linear_kernel.h - private to linear*.c: the packed layout that every instruction set reads, and the order of sums.
 *
 * A tile is LANES = 16 outputs; a SIMD lane owns one output and adds its blocks one after the other. Nothing is summed
 * across lanes, so an output's sum does not know who its neighbours are, and every instruction set, for one row or many,
 * does the same operations in the same order: all give equal bytes.
 *
 * Quantised, `fast` (B = cols / 32 blocks):
 *     acc = 0;  for b in 0..B-1, for each part of the block (one of 32 weights, or two of 16):
 *         acc = fma((float)dot, d[b] * dx[b], acc)       dot = sum_k (u[k] - zero) q[k], exact in int32
 *         acc = fma(m[b], sx[b], acc)                    where the format has a minimum
 *   with w = d (u - zero) + m, u unsigned, x ~ dx q, sx = dx * sum(q).
 * A tile is [scales][quants], each rounded up to 64 bytes; see struct quant_layout.
 *   quants of 4 bits: 4 x 64 bytes a block; dword `lane` of vector j has the weights k = 4j..4j+3 in its low nibbles and
 *   16+4j..16+4j+3 in its high ones: GGUF's own 16 bytes of a row, so that packing only moves dwords.
 *   quants of 8 bits: 8 x 64 bytes; dword `lane` of vector g has k = 4g..4g+3. This is also the order that VNNI and the
 *   B operand of an AMX tile want.
 *   5th bits: 64 bytes a block, a 64-bit mask for each of the eight vectors above, bit 4 lane + i for k = 4g + i.
 *
 * Floats and `exact` (chunks of CHUNK = 256 columns; the last may be shorter):
 *     y = 0;  for each chunk: { a = 0; for k in chunk: a = fma(w[k], x[k], a);  y = y + a }
 *   Chunks keep the rounding error near sqrt(256) + sqrt(cols / 256) units instead of sqrt(cols).
 *   A packed float tile is [cols][16] elements as stored. Quantised weights in `exact` are decoded into that order a chunk of a
 *   tile at a time: (float)(u - zero) * d, then + m. */
#pragma once

#include <stddef.h>
#include <string.h>

#include "device/cpu/linear.h"

enum { LANES = 16, QBLOCK = 32, CHUNK = 256 };

typedef void linear_run_fn(const struct linear *linear, const void *input, uint32_t rows, float *y,
                           uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end);

/* How a quantised format lies in a packed tile. */
struct quant_layout {
    uint16_t scale_bytes;  /* per SCALE GROUP of group_blocks blocks, for all 16 lanes */
    uint16_t group_blocks; /* 1, or 8 for the 256-weight formats */
    uint16_t quant_bytes;  /* per block of 32, for all 16 lanes */
    uint8_t zero;          /* of the unsigned quants: w = d (u - zero) + m */
    bool has_min;
};
/* NULL for a dtype that has no fast kernel. */
const struct quant_layout *quant_layout(enum dtype dtype);

static inline uint64_t round_up_64(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

static inline uint64_t quant_scales_bytes(const struct quant_layout *layout, uint32_t blocks)
{
    return round_up_64((uint64_t)layout->scale_bytes * (blocks / layout->group_blocks));
}

static inline uint64_t quant_tile_bytes(const struct quant_layout *layout, uint32_t blocks)
{
    return quant_scales_bytes(layout, blocks) + (uint64_t)layout->quant_bytes * blocks;
}

extern const uint8_t linear_iq4nl_table[16], linear_mxfp4_table[16];

/* One block of a tile, decoded the plain way: what the vector kernels' registers hold. */
struct quant_block {
    uint8_t u[8][LANES][4]; /* u[g][lane][i]: weight k = 4g + i */
    float d[2][LANES], m[2][LANES];
    uint32_t parts; /* 1: d[0], m[0] for all 32; 2: d[h], m[h] for k / 16 == h */
};
void quant_block_load(enum dtype dtype, const uint8_t *tile, uint32_t block, uint32_t blocks,
                      struct quant_block *out);
/* A stored row into its lane of a tile that was zeroed before. */
void quant_lane_pack(const struct plan_weight *weight, const void *row, uint32_t lane,
                     uint8_t *packed);
void float_lane_pack(const struct plan_weight *weight, const void *row, uint32_t lane,
                     uint8_t *packed);

/* What a block of 32 int8 activations needs beside them: x ~ dx q, sx = dx sum(q), off = -128 sum(q), off_low = the same
 * of the first 16. */
struct q8_block {
    float dx, sx;
    int32_t off, off_low;
};

/* A prepared row: q[cols] int8, then a struct q8_block for each 32 of them, rounded up to 64 bytes. */
static inline uint64_t q8_row_bytes(uint32_t cols)
{
    return round_up_64((uint64_t)cols + (uint64_t)(cols / QBLOCK) * sizeof(struct q8_block));
}
static inline const int8_t *q8_row_q(const void *input, uint32_t row, uint32_t cols)
{
    return (const int8_t *)input + row * q8_row_bytes(cols);
}
static inline const struct q8_block *q8_row_blocks(const void *input, uint32_t row, uint32_t cols)
{
    return (const struct q8_block *)(const void *)(q8_row_q(input, row, cols) + cols);
}

/* Decodes columns [col, col + count) of a tile's 16 outputs into out[k][16] from stored rows (linear.in_rows); outputs past
 * the last are 0. */
void decode_rows_chunk(const struct linear *linear, uint32_t tile, uint32_t col, uint32_t count,
                       float *out);

/* Per instruction set: the run function, or NULL where a lower one serves. */
linear_run_fn *linear_generic_quant(enum dtype dtype);
linear_run_fn *linear_generic_float(enum dtype dtype);
linear_run_fn *linear_avx2_quant(enum dtype dtype);
linear_run_fn *linear_avx2_float(enum dtype dtype);
linear_run_fn *linear_avx512_float(enum dtype dtype);
linear_run_fn *linear_vnni_quant(enum dtype dtype);
linear_run_fn *linear_amx_quant(enum dtype dtype);
linear_run_fn linear_generic_exact, linear_avx2_exact, linear_avx512_exact;

void quantise_block_generic(const float *x, int8_t *q, struct q8_block *block);
void quantise_row_generic(const float *x, uint32_t cols, void *row);
void quantise_row_avx2(const float *x, uint32_t cols, void *row);
void quantise_row_avx512(const float *x, uint32_t cols, void *row);
