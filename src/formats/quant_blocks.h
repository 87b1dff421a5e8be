/* quant_blocks.h - the number formats that weights are stored in, and their exact values.
 *
 * A tensor's row is a run of blocks; a block holds `block_elements` weights in `block_bytes` bytes. The
 * float formats are blocks of one element. Rows are never padded: row bytes = cols / block_elements *
 * block_bytes, and cols is a multiple of block_elements (the readers refuse others).
 * Source: ggml's block layouts (ggml-common.h, gguf-py quants.py); values are equal to gguf-py's
 * (tests/golden/quants). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_IQ4_NL,
    DTYPE_IQ4_XS,
    DTYPE_MXFP4,
    DTYPE_I8,
    DTYPE_I16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8, /* these last are only carried: no stage takes them */
    DTYPE_U16,
    DTYPE_U32,
    DTYPE_U64,
    DTYPE_BOOL,
    DTYPE_F64,
    DTYPE_F8_E8M0,
    DTYPE_COUNT
};

struct dtype_info {
    const char *name;        /* "Q4_1" */
    uint32_t block_elements; /* weights per block, 1 for plain numbers */
    uint32_t block_bytes;
    bool is_float;   /* F32, F16, BF16 */
    bool has_values; /* quant_row_to_f32() decodes it in this build */
};

/* Never NULL for a member of enum dtype. */
const struct dtype_info *dtype_info(enum dtype dtype);

/* Bytes of a row of `cols` weights, or 0 when cols is no multiple of the block. */
uint64_t dtype_row_bytes(enum dtype dtype, uint64_t cols);

/* ggml's type number (GGUF tensor_info.type) to ours; STATUS_UNSUPPORTED for one we do not know. */
enum status dtype_from_ggml(uint32_t ggml_type, enum dtype *out);

/* Decodes `count` weights (a multiple of the block) that start at a block border. src needs no
 * alignment. dtype must have has_values. */
void quant_row_to_f32(enum dtype dtype, const void *src, uint64_t count, float *dst);

/* Single numbers. Rounding is to nearest, ties to even; NaN stays NaN. */
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);
/* `count` of them, to the same bits, at the processor's own speed. half: DTYPE_F16 or DTYPE_BF16. */
void f32_row_to_half(enum dtype half, const float *from, uint64_t count, uint16_t *to);
/* OCP 8-bit floats: E4M3 has no infinity and its NaN is 0x7F or 0xFF; E5M2 is the upper byte of an f16. */
float f8_e4m3_to_f32(uint8_t bits);
float f8_e5m2_to_f32(uint8_t bits);
/* What overflows, infinities included, becomes the largest finite number of its sign (448, 57344). */
uint8_t f32_to_f8_e4m3_saturate(float value);
uint8_t f32_to_f8_e5m2_saturate(float value);
