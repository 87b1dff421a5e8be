/* linear_pack.c - from rows of stored blocks to the tiles of linear_kernel.h, and back for one block.
 * Source of the stored layouts: ggml-common.h (see formats/quant_blocks.h). Both directions are tested against
 * quant_row_to_f32. */
#include "device/cpu/linear_kernel.h"

#include <assert.h>

static const struct quant_layout layouts[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = {32, 1, 256, 8, false},      [DTYPE_Q4_1] = {64, 1, 256, 0, true},
    [DTYPE_Q5_0] = {32, 1, 320, 16, false},     [DTYPE_Q5_1] = {64, 1, 320, 0, true},
    [DTYPE_Q8_0] = {32, 1, 512, 128, false},    [DTYPE_IQ4_NL] = {32, 1, 256, 128, false},
    [DTYPE_MXFP4] = {32, 1, 256, 128, false},   [DTYPE_Q2_K] = {320, 8, 128, 0, true},
    [DTYPE_Q3_K] = {288, 8, 192, 4, false},     [DTYPE_Q4_K] = {320, 8, 256, 0, true},
    [DTYPE_Q5_K] = {320, 8, 320, 0, true},      [DTYPE_Q6_K] = {288, 8, 384, 32, false},
    [DTYPE_IQ4_XS] = {160, 8, 256, 128, false},
};

/* Codebooks, moved up by 128 so that they are unsigned. Source: ggml-common.h kvalues_iq4nl, kvalues_mxfp4. */
const uint8_t linear_iq4nl_table[16] = {
    128 - 127, 128 - 104, 128 - 83, 128 - 65, 128 - 49, 128 - 35, 128 - 22, 128 - 10,
    128 + 1,   128 + 13,  128 + 25, 128 + 38, 128 + 53, 128 + 69, 128 + 89, 128 + 113};
const uint8_t linear_mxfp4_table[16] = {128,     128 + 1,  128 + 2, 128 + 3, 128 + 4, 128 + 6,
                                        128 + 8, 128 + 12, 128,     128 - 1, 128 - 2, 128 - 3,
                                        128 - 4, 128 - 6,  128 - 8, 128 - 12};

const struct quant_layout *quant_layout(enum dtype dtype)
{
    return layouts[dtype].quant_bytes ? &layouts[dtype] : NULL;
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* --- stored block to plain codes --- */

/* Codes that are indices of 4 bits with element k low and k + 16 high in byte k. */
static void codes_nibbles(const uint8_t *qs, uint8_t u[QBLOCK])
{
    for (int k = 0; k < 16; k++) {
        u[k] = qs[k] & 15;
        u[k + 16] = qs[k] >> 4;
    }
}

static void codes_add_bits(uint32_t bits, uint8_t value, uint8_t u[QBLOCK])
{
    for (int k = 0; k < QBLOCK; k++)
        u[k] |= (bits >> k & 1) ? value : 0;
}

/* Sub-block s (32 weights) of a 256-weight block. */
static void codes_q2_k(const uint8_t *block, uint32_t s, uint8_t u[QBLOCK])
{
    const uint8_t *qs = block + 16 + 32 * (s / 4);
    for (int k = 0; k < QBLOCK; k++)
        u[k] = qs[k] >> 2 * (s % 4) & 3;
}

static void codes_q3_k(const uint8_t *block, uint32_t s, uint8_t u[QBLOCK])
{
    const uint8_t *hmask = block, *qs = block + 32 + 32 * (s / 4);
    for (int k = 0; k < QBLOCK; k++)
        u[k] = (uint8_t)((qs[k] >> 2 * (s % 4) & 3) | (hmask[k] >> s & 1) << 2);
}

static void codes_q4_k(const uint8_t *qs, uint32_t s, uint8_t u[QBLOCK])
{
    for (int k = 0; k < QBLOCK; k++)
        u[k] = qs[32 * (s / 2) + (uint32_t)k] >> 4 * (s % 2) & 15;
}

static void codes_q6_k(const uint8_t *block, uint32_t s, uint8_t u[QBLOCK])
{
    uint32_t n = s / 4, j = s % 4;
    const uint8_t *ql = block + 64 * n + 32 * (j & 1), *qh = block + 128 + 32 * n;
    for (int k = 0; k < QBLOCK; k++)
        u[k] = (uint8_t)((ql[k] >> 4 * (j >> 1) & 15) | (qh[k] >> 2 * j & 3) << 4);
}

/* Codes of block b (32 weights) of a row. */
static void row_codes(enum dtype dtype, const uint8_t *row, uint32_t b, uint8_t u[QBLOCK])
{
    const struct dtype_info *info = dtype_info(dtype);
    uint32_t per_block = info->block_elements / QBLOCK, s = b % per_block;
    const uint8_t *block = row + (uint64_t)(b / per_block) * info->block_bytes;

    switch (dtype) {
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL: codes_nibbles(block + 2, u); break;
    case DTYPE_Q4_1: codes_nibbles(block + 4, u); break;
    case DTYPE_MXFP4: codes_nibbles(block + 1, u); break;
    case DTYPE_IQ4_XS: codes_nibbles(block + 8 + 16 * s, u); break;
    case DTYPE_Q5_0:
        codes_nibbles(block + 6, u);
        codes_add_bits(load_u32(block + 2), 16, u);
        break;
    case DTYPE_Q5_1:
        codes_nibbles(block + 8, u);
        codes_add_bits(load_u32(block + 4), 16, u);
        break;
    case DTYPE_Q8_0:
        for (int k = 0; k < QBLOCK; k++)
            u[k] = block[2 + k] ^ 0x80;
        break;
    case DTYPE_Q2_K: codes_q2_k(block, s, u); break;
    case DTYPE_Q3_K: codes_q3_k(block, s, u); break;
    case DTYPE_Q4_K: codes_q4_k(block + 16, s, u); break;
    case DTYPE_Q5_K:
        codes_q4_k(block + 48, s, u);
        for (int k = 0; k < QBLOCK; k++)
            u[k] |= (uint8_t)((block[16 + k] >> s & 1) << 4);
        break;
    case DTYPE_Q6_K: codes_q6_k(block, s, u); break;
    default: assert(!"no codes for this dtype");
    }
}

/* --- plain codes to a tile --- */

static bool has_nibbles(enum dtype dtype)
{
    return dtype != DTYPE_Q8_0 && dtype != DTYPE_Q2_K && dtype != DTYPE_Q3_K;
}

/* quants: this block's bytes of the tile, zeroed before. */
static void put_codes(enum dtype dtype, const uint8_t u[QBLOCK], uint32_t lane, uint8_t *quants)
{
    uint32_t bits = 0, planes = 0;

    if (dtype == DTYPE_Q8_0) {
        for (uint32_t k = 0; k < QBLOCK; k++)
            quants[k / 4 * 64 + lane * 4 + k % 4] = u[k];
        return;
    }
    if (has_nibbles(dtype)) {
        for (uint32_t k = 0; k < 16; k++)
            quants[k / 4 * 64 + lane * 4 + k % 4] = (uint8_t)((u[k] & 15) | u[k + 16] << 4);
        bits = 4;
        quants += 256;
    }
    planes = (quant_layout(dtype)->quant_bytes - 64 * bits) / 64;
    for (uint32_t p = 0; p < planes; p++, quants += 64)
        for (uint32_t k = 0; k < QBLOCK; k++) {
            uint32_t bit = lane * 4 + k % 4;
            quants[k / 4 * 8 + bit / 8] |= (uint8_t)((u[k] >> (bits + p) & 1) << bit % 8);
        }
}

/* The 4-bit formats of 32 keep the file's bytes, so whole dwords move: loading a model is mostly this. */
static void move_dwords(const uint8_t *qs, uint32_t count, uint32_t flip, uint32_t lane,
                        uint8_t *quants)
{
    for (uint32_t j = 0; j < count; j++) {
        uint32_t v = load_u32(qs + 4 * j) ^ flip;
        memcpy(quants + 64 * j + 4 * lane, &v, 4);
    }
}

static void pack_quants(enum dtype dtype, const uint8_t *row, uint32_t blocks, uint32_t lane,
                        uint8_t *quants)
{
    const struct quant_layout *layout = quant_layout(dtype);
    const uint32_t block_bytes = dtype_info(dtype)->block_bytes;
    uint8_t u[QBLOCK];

    for (uint32_t b = 0; b < blocks; b++, quants += layout->quant_bytes) {
        const uint8_t *block = row + (uint64_t)b * block_bytes;
        switch (dtype) {
        case DTYPE_Q4_0:
        case DTYPE_IQ4_NL: move_dwords(block + 2, 4, 0, lane, quants); break;
        case DTYPE_Q4_1: move_dwords(block + 4, 4, 0, lane, quants); break;
        case DTYPE_MXFP4: move_dwords(block + 1, 4, 0, lane, quants); break;
        case DTYPE_Q8_0: move_dwords(block + 2, 8, 0x80808080u, lane, quants); break;
        default: row_codes(dtype, row, b, u); put_codes(dtype, u, lane, quants);
        }
    }
}

static void put_u16(uint8_t *scales, uint32_t lane, uint16_t bits)
{
    memcpy(scales + 2 * lane, &bits, 2);
}

/* MXFP4's 2^(e - 128) as bfloat16 bits, which hold every one of them (e 0 and 1 are subnormal). */
static uint16_t e8m0_half_bits(uint8_t e)
{
    return e < 2 ? (uint16_t)(0x20u << e) : (uint16_t)((uint32_t)(e - 1) << 7);
}

static void scale_min_k4(const uint8_t *q, uint32_t j, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = q[j] & 63;
        *min = q[j + 4] & 63;
    } else {
        *scale = (uint8_t)((q[j + 4] & 15) | q[j - 4] >> 6 << 4);
        *min = (uint8_t)(q[j + 4] >> 4 | q[j] >> 6 << 4);
    }
}

static uint8_t scale_q3_k(const uint8_t *q, uint32_t i)
{
    uint32_t low = i < 8 ? q[i] & 15u : q[i - 8] >> 4, high = q[8 + i % 4] >> 2 * (i / 4) & 3u;
    return (uint8_t)((low | high << 4) - 32);
}

static uint8_t scale_iq4_xs(const uint8_t *block, uint32_t i)
{
    uint32_t low = block[4 + i / 2] >> 4 * (i % 2) & 15u, high = load_u16(block + 2) >> 2 * i & 3u;
    return (uint8_t)((low | high << 4) - 32);
}

/* Scale group of one stored block. */
static void put_scales(enum dtype dtype, const uint8_t *block, uint32_t lane, uint8_t *scales)
{
    switch (dtype) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1: put_u16(scales + 32, lane, load_u16(block + 2)); /* fall through */
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL: put_u16(scales, lane, load_u16(block)); break;
    case DTYPE_MXFP4: put_u16(scales, lane, e8m0_half_bits(block[0])); break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        put_u16(scales, lane, load_u16(block));
        put_u16(scales + 32, lane, load_u16(block + 2));
        for (uint32_t i = 0; i < 8; i++)
            scale_min_k4(block + 4, i, &scales[64 + 32 * i + lane], &scales[80 + 32 * i + lane]);
        break;
    case DTYPE_Q2_K:
        put_u16(scales, lane, load_u16(block + 80));
        put_u16(scales + 32, lane, load_u16(block + 82));
        for (uint32_t i = 0; i < 16; i++)
            scales[64 + 16 * i + lane] = block[i];
        break;
    case DTYPE_Q3_K:
        put_u16(scales, lane, load_u16(block + 108));
        for (uint32_t i = 0; i < 16; i++)
            scales[32 + 16 * i + lane] = scale_q3_k(block + 96, i);
        break;
    case DTYPE_Q6_K:
        put_u16(scales, lane, load_u16(block + 208));
        for (uint32_t i = 0; i < 16; i++)
            scales[32 + 16 * i + lane] = block[192 + i];
        break;
    case DTYPE_IQ4_XS:
        put_u16(scales, lane, load_u16(block));
        for (uint32_t i = 0; i < 8; i++)
            scales[32 + 16 * i + lane] = scale_iq4_xs(block, i);
        break;
    default: assert(!"no scales for this dtype");
    }
}

void quant_lane_pack(const struct plan_weight *weight, const void *row, uint32_t lane,
                     uint8_t *packed)
{
    const struct quant_layout *layout = quant_layout(weight->dtype);
    const uint32_t blocks = weight->cols / QBLOCK, groups = blocks / layout->group_blocks;
    const uint32_t block_bytes = dtype_info(weight->dtype)->block_bytes;

    for (uint32_t g = 0; g < groups; g++)
        put_scales(weight->dtype, (const uint8_t *)row + (uint64_t)g * block_bytes, lane,
                   packed + (uint64_t)g * layout->scale_bytes);
    pack_quants(weight->dtype, row, blocks, lane, packed + quant_scales_bytes(layout, blocks));
}

void float_lane_pack(const struct plan_weight *weight, const void *row, uint32_t lane,
                     uint8_t *packed)
{
    const uint32_t size = dtype_info(weight->dtype)->block_bytes, cols = weight->cols;
    const uint8_t *from = row;
    uint8_t *to = packed + lane * size;

    if (size == 4)
        for (uint32_t k = 0; k < cols; k++)
            memcpy(to + (uint64_t)k * LANES * 4, from + (uint64_t)k * 4, 4);
    else
        for (uint32_t k = 0; k < cols; k++)
            memcpy(to + (uint64_t)k * LANES * 2, from + (uint64_t)k * 2, 2);
}

/* --- a tile's block back to plain codes and scales --- */

static void get_codes(enum dtype dtype, const uint8_t *quants, struct quant_block *out)
{
    uint32_t bits = 0;

    memset(out->u, 0, sizeof out->u);
    if (dtype == DTYPE_Q8_0) {
        memcpy(out->u, quants, sizeof out->u);
        return;
    }
    if (has_nibbles(dtype)) {
        uint8_t *low = &out->u[0][0][0], *high = &out->u[4][0][0];
        for (int i = 0; i < 256; i++) {
            low[i] = quants[i] & 15;
            high[i] = quants[i] >> 4;
        }
        bits = 4;
    }
    uint32_t planes = (quant_layout(dtype)->quant_bytes - 64 * bits) / 64;
    const uint8_t *plane = quants + 64 * bits;
    uint8_t *u = &out->u[0][0][0];
    for (uint32_t p = 0; p < planes; p++, plane += 64)
        for (uint32_t i = 0; i < 512; i++)
            u[i] |= (uint8_t)((plane[i / 8] >> i % 8 & 1) << (bits + p));
    const uint8_t *table = dtype == DTYPE_MXFP4                             ? linear_mxfp4_table
                           : dtype == DTYPE_IQ4_NL || dtype == DTYPE_IQ4_XS ? linear_iq4nl_table
                                                                            : NULL;
    for (uint32_t i = 0; table && i < 512; i++)
        u[i] = table[u[i]];
}

static float get_f16(const uint8_t *scales, uint32_t lane)
{
    return f16_to_f32(load_u16(scales + 2 * lane));
}

static void get_scales(enum dtype dtype, const uint8_t *scales, uint32_t s, uint32_t lane,
                       struct quant_block *out)
{
    float d =
        dtype == DTYPE_MXFP4 ? bf16_to_f32(load_u16(scales + 2 * lane)) : get_f16(scales, lane);

    out->parts = 1;
    switch (dtype) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1: out->m[0][lane] = get_f16(scales + 32, lane); /* fall through */
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
    case DTYPE_MXFP4: out->d[0][lane] = d; break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        out->d[0][lane] = d * scales[64 + 32 * s + lane];
        out->m[0][lane] = -(get_f16(scales + 32, lane) * scales[80 + 32 * s + lane]);
        break;
    case DTYPE_Q2_K:
        out->parts = 2;
        for (uint32_t h = 0; h < 2; h++) {
            uint8_t code = scales[64 + 32 * s + 16 * h + lane];
            out->d[h][lane] = d * (code & 15);
            out->m[h][lane] = -(get_f16(scales + 32, lane) * (code >> 4));
        }
        break;
    case DTYPE_Q3_K:
    case DTYPE_Q6_K:
        out->parts = 2;
        for (uint32_t h = 0; h < 2; h++)
            out->d[h][lane] = d * (int8_t)scales[32 + 32 * s + 16 * h + lane];
        break;
    case DTYPE_IQ4_XS: out->d[0][lane] = d * (int8_t)scales[32 + 16 * s + lane]; break;
    default: assert(!"no scales for this dtype");
    }
}

void quant_block_load(enum dtype dtype, const uint8_t *tile, uint32_t block, uint32_t blocks,
                      struct quant_block *out)
{
    const struct quant_layout *layout = quant_layout(dtype);
    const uint8_t *scales = tile + (uint64_t)(block / layout->group_blocks) * layout->scale_bytes;

    get_codes(dtype,
              tile + quant_scales_bytes(layout, blocks) + (uint64_t)block * layout->quant_bytes,
              out);
    for (uint32_t lane = 0; lane < LANES; lane++)
        get_scales(dtype, scales, block % layout->group_blocks, lane, out);
}
