/* quant_blocks.c - one decoder per format; every sum and product is in f32, in gguf-py's order, so that the
 * values are equal to its to the bit. Blocks are read byte by byte: they have no alignment. */
#include "formats/quant_blocks.h"

#include <assert.h>
#include <string.h>

enum { QK = 32, QK_K = 256 }; /* weights per block of the plain and of the K formats */

static const struct dtype_info infos[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 1, 4, true, true},
    [DTYPE_F16] = {"F16", 1, 2, true, true},
    [DTYPE_BF16] = {"BF16", 1, 2, true, true},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1, 1, false, true},
    [DTYPE_F8_E5M2] = {"F8_E5M2", 1, 1, false, true},
    [DTYPE_Q4_0] = {"Q4_0", QK, 2 + QK / 2, false, true},
    [DTYPE_Q4_1] = {"Q4_1", QK, 4 + QK / 2, false, true},
    [DTYPE_Q5_0] = {"Q5_0", QK, 2 + 4 + QK / 2, false, true},
    [DTYPE_Q5_1] = {"Q5_1", QK, 4 + 4 + QK / 2, false, true},
    [DTYPE_Q8_0] = {"Q8_0", QK, 2 + QK, false, true},
    [DTYPE_Q2_K] = {"Q2_K", QK_K, 16 + 64 + 4, false, true},
    [DTYPE_Q3_K] = {"Q3_K", QK_K, 32 + 64 + 12 + 2, false, true},
    [DTYPE_Q4_K] = {"Q4_K", QK_K, 4 + 12 + 128, false, true},
    [DTYPE_Q5_K] = {"Q5_K", QK_K, 4 + 12 + 32 + 128, false, true},
    [DTYPE_Q6_K] = {"Q6_K", QK_K, 128 + 64 + 16 + 2, false, true},
    [DTYPE_IQ4_NL] = {"IQ4_NL", QK, 2 + QK / 2, false, true},
    [DTYPE_IQ4_XS] = {"IQ4_XS", QK_K, 2 + 2 + 4 + 128, false, true},
    [DTYPE_MXFP4] = {"MXFP4", QK, 1 + QK / 2, false, true},
    [DTYPE_I8] = {"I8", 1, 1, false, false},
    [DTYPE_I16] = {"I16", 1, 2, false, false},
    [DTYPE_I32] = {"I32", 1, 4, false, false},
    [DTYPE_I64] = {"I64", 1, 8, false, false},
    [DTYPE_U8] = {"U8", 1, 1, false, false},
    [DTYPE_U16] = {"U16", 1, 2, false, false},
    [DTYPE_U32] = {"U32", 1, 4, false, false},
    [DTYPE_U64] = {"U64", 1, 8, false, false},
    [DTYPE_BOOL] = {"BOOL", 1, 1, false, false},
    [DTYPE_F64] = {"F64", 1, 8, false, false},
    [DTYPE_F8_E8M0] = {"F8_E8M0", 1, 1, false, false},
};

const struct dtype_info *dtype_info(enum dtype dtype)
{
    assert((unsigned)dtype < DTYPE_COUNT);
    return &infos[dtype];
}

uint64_t dtype_row_bytes(enum dtype dtype, uint64_t cols)
{
    const struct dtype_info *info = dtype_info(dtype);

    return cols % info->block_elements ? 0 : cols / info->block_elements * info->block_bytes;
}

/* Numbers of enum ggml_type (ggml.h); what is missing here is retired or not known to this build. */
enum status dtype_from_ggml(uint32_t ggml_type, enum dtype *out)
{
    static const struct {
        uint8_t ggml, dtype;
    } pairs[] = {{0, DTYPE_F32},     {1, DTYPE_F16},     {2, DTYPE_Q4_0},  {3, DTYPE_Q4_1},
                 {6, DTYPE_Q5_0},    {7, DTYPE_Q5_1},    {8, DTYPE_Q8_0},  {10, DTYPE_Q2_K},
                 {11, DTYPE_Q3_K},   {12, DTYPE_Q4_K},   {13, DTYPE_Q5_K}, {14, DTYPE_Q6_K},
                 {20, DTYPE_IQ4_NL}, {23, DTYPE_IQ4_XS}, {24, DTYPE_I8},   {25, DTYPE_I16},
                 {26, DTYPE_I32},    {27, DTYPE_I64},    {28, DTYPE_F64},  {30, DTYPE_BF16},
                 {39, DTYPE_MXFP4}};

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (pairs[i].ggml != ggml_type) continue;
        *out = (enum dtype)pairs[i].dtype;
        return STATUS_OK;
    }
    return STATUS_UNSUPPORTED;
}

/* --- single numbers --- */

static float float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float half(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;

    if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | rest << 13); /* infinity, NaN */
    if (rest >= 0x0400) return float_of(sign | ((rest << 13) + (112u << 23)));
    return float_of(sign | bits_of((float)rest * 0x1p-24f)); /* subnormal in f16, normal here */
}

float f16_to_f32(uint16_t bits)
{
    return half(bits);
}

float bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

/* Rounds a finite magnitude (sign cleared) to a small float of `man` mantissa bits and exponent bias `bias`,
 * ties to even; overflow runs on into codes past the largest. */
static uint32_t round_small(uint32_t magnitude, unsigned man, unsigned bias)
{
    unsigned drop = 23 - man;
    uint32_t normal_min = (128 - bias) << 23, step;

    if (magnitude >= normal_min) {
        magnitude += ((1u << (drop - 1)) - 1) + (magnitude >> drop & 1);
        return (magnitude >> drop) - ((127 - bias) << man);
    }
    /* Subnormal: adding a float whose last bit is worth one step lets the adder round. */
    step = (127 + 23 + 1 - bias - man) << 23;
    return bits_of(float_of(magnitude) + float_of(step)) - step;
}

uint16_t f32_to_f16(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000, code;

    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    code = magnitude == 0x7f800000 ? 0x7c00 : round_small(magnitude, 10, 15);
    return (uint16_t)(sign | (code < 0x7c00 ? code : 0x7c00));
}

uint16_t f32_to_bf16(float value)
{
    uint32_t bits = bits_of(value);

    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40); /* a quiet NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float f8_e4m3_to_f32(uint8_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x80) << 24, rest = bits & 0x7f;

    if (rest == 0x7f) return float_of(sign | 0x7fc00000);
    if (rest >= 0x08) return float_of(sign | ((rest << 20) + (120u << 23)));
    return float_of(sign | bits_of((float)rest * 0x1p-9f));
}

float f8_e5m2_to_f32(uint8_t bits)
{
    return half((uint16_t)(bits << 8));
}

static uint8_t saturate_f8(float value, unsigned man, unsigned bias, uint32_t largest)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80, code;

    if (magnitude > 0x7f800000) return (uint8_t)(sign | 0x7f);
    code = magnitude == 0x7f800000 ? largest : round_small(magnitude, man, bias);
    return (uint8_t)(sign | (code < largest ? code : largest));
}

uint8_t f32_to_f8_e4m3_saturate(float value)
{
    return saturate_f8(value, 3, 7, 0x7e);
}

uint8_t f32_to_f8_e5m2_saturate(float value)
{
    return saturate_f8(value, 2, 15, 0x7b);
}

/* --- rows --- */

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t u32_at(const uint8_t *p)
{
    return u16_at(p) | (uint32_t)u16_at(p + 2) << 16;
}

static float half_at(const uint8_t *p)
{
    return half(u16_at(p));
}

static void row_f32(const uint8_t *src, uint64_t blocks, float *dst)
{
    if (blocks) memcpy(dst, src, blocks * sizeof *dst);
}

static void row_f16(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (uint64_t i = 0; i < blocks; i++)
        dst[i] = half_at(src + 2 * i);
}

static void row_bf16(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (uint64_t i = 0; i < blocks; i++)
        dst[i] = bf16_to_f32(u16_at(src + 2 * i));
}

static void row_f8_e4m3(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (uint64_t i = 0; i < blocks; i++)
        dst[i] = f8_e4m3_to_f32(src[i]);
}

static void row_f8_e5m2(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (uint64_t i = 0; i < blocks; i++)
        dst[i] = f8_e5m2_to_f32(src[i]);
}

/* In the plain formats the low nibbles are the first half of a block, the high ones the second. */

static void row_q4_0(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 18, dst += QK) {
        float d = half_at(src);
        for (int i = 0; i < QK / 2; i++) {
            dst[i] = d * (float)((src[2 + i] & 15) - 8);
            dst[i + QK / 2] = d * (float)((src[2 + i] >> 4) - 8);
        }
    }
}

static void row_q4_1(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 20, dst += QK) {
        float d = half_at(src), m = half_at(src + 2);
        for (int i = 0; i < QK / 2; i++) {
            dst[i] = d * (float)(src[4 + i] & 15) + m;
            dst[i + QK / 2] = d * (float)(src[4 + i] >> 4) + m;
        }
    }
}

/* Five bits: four in the nibbles, the fifth of weight i is bit i of a 32-bit word. */
static int five_bits(const uint8_t *nibbles, uint32_t high, int i)
{
    int nibble = i < QK / 2 ? nibbles[i] & 15 : nibbles[i - QK / 2] >> 4;

    return nibble | (int)(high >> i & 1) << 4;
}

static void row_q5_0(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 22, dst += QK) {
        float d = half_at(src);
        uint32_t high = u32_at(src + 2);
        for (int i = 0; i < QK; i++)
            dst[i] = d * (float)(five_bits(src + 6, high, i) - 16);
    }
}

static void row_q5_1(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 24, dst += QK) {
        float d = half_at(src), m = half_at(src + 2);
        uint32_t high = u32_at(src + 4);
        for (int i = 0; i < QK; i++)
            dst[i] = d * (float)five_bits(src + 8, high, i) + m;
    }
}

static void row_q8_0(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 34, dst += QK) {
        float d = half_at(src);
        for (int i = 0; i < QK; i++)
            dst[i] = d * (float)(int8_t)src[2 + i];
    }
}

/* K formats: 256 weights, in halves of 128 whose 2-bit parts share 32 bytes: weight 32 s + l of a half is in
 * bits 2s.. of byte l. Scales are per 16 or 32 weights, so the loops go by 16 (g): what depends on g alone
 * stands outside, and the inner loop is plain enough for the compiler to vectorise. */

static const uint8_t *two_bits(const uint8_t *quants, int g, int *shift)
{
    *shift = g % 8 / 2 * 2;
    return quants + g / 8 * 32 + g % 2 * 16;
}

/* scales [16] (low nibble scale, high nibble minimum), quants [64], d, dmin */
static void row_q2_k(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 84) {
        float d = half_at(src + 80), dmin = half_at(src + 82);
        for (int g = 0; g < 16; g++, dst += 16) {
            float scale = d * (float)(src[g] & 15), minimum = dmin * (float)(src[g] >> 4);
            int shift;
            const uint8_t *quants = two_bits(src + 16, g, &shift);
            for (int i = 0; i < 16; i++)
                dst[i] = scale * (float)(quants[i] >> shift & 3) - minimum;
        }
    }
}

/* 16 scales of 6 bits less 32: the low four bits are nibbles of bytes 0..7, the high two are in 8..11. */
static void unpack_q3_k_scales(const uint8_t *packed, int scales[16])
{
    for (int i = 0; i < 16; i++) {
        int low = packed[i % 8] >> (i / 8 * 4) & 15, high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        scales[i] = (low | high << 4) - 32;
    }
}

/* high bits [32] (0 takes 4 away), quants [64], scales [12], d */
static void row_q3_k(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 110) {
        float d = half_at(src + 108);
        int scales[16];
        unpack_q3_k_scales(src + 96, scales);
        for (int g = 0; g < 16; g++, dst += 16) {
            float scale = d * (float)scales[g];
            int shift;
            const uint8_t *quants = two_bits(src + 32, g, &shift), *high = src + g % 2 * 16;
            for (int i = 0; i < 16; i++)
                dst[i] = scale * (float)((quants[i] >> shift & 3) + (high[i] >> g / 2 & 1) * 4 - 4);
        }
    }
}

/* 8 scales and 8 minima of 6 bits in 12 bytes: bytes 0..3 and 4..7 have the first four of each and, in their
 * top bits, the top bits of the last four, whose low nibbles are bytes 8..11. */
static void unpack_q4_k_scales(const uint8_t *packed, int scales[8], int minima[8])
{
    for (int i = 0; i < 4; i++) {
        scales[i] = packed[i] & 63;
        minima[i] = packed[4 + i] & 63;
        scales[4 + i] = (packed[8 + i] & 15) | (packed[i] >> 2 & 0x30);
        minima[4 + i] = packed[8 + i] >> 4 | (packed[4 + i] >> 2 & 0x30);
    }
}

/* d, dmin, scales [12], quants [128]: 32 bytes are the nibbles of 64 weights, low ones first */
static void row_q4_k(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 144, dst += QK_K) {
        float d = half_at(src), dmin = half_at(src + 2);
        int scales[8], minima[8];
        unpack_q4_k_scales(src + 4, scales, minima);
        for (int g = 0; g < 8; g++) {
            const uint8_t *quants = src + 16 + g / 2 * 32;
            float scale = d * (float)scales[g], minimum = dmin * (float)minima[g];
            for (int i = 0; i < 32; i++)
                dst[32 * g + i] = scale * (float)(quants[i] >> (g % 2 * 4) & 15) - minimum;
        }
    }
}

/* d, dmin, scales [12], fifth bits [32] (bit g of byte i for weight 32 g + i), quants [128] */
static void row_q5_k(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 176, dst += QK_K) {
        const uint8_t *high = src + 16;
        float d = half_at(src), dmin = half_at(src + 2);
        int scales[8], minima[8];
        unpack_q4_k_scales(src + 4, scales, minima);
        for (int g = 0; g < 8; g++) {
            const uint8_t *quants = src + 48 + g / 2 * 32;
            float scale = d * (float)scales[g], minimum = dmin * (float)minima[g];
            for (int i = 0; i < 32; i++) {
                int q = (quants[i] >> (g % 2 * 4) & 15) | (high[i] >> g & 1) << 4;
                dst[32 * g + i] = scale * (float)q - minimum;
            }
        }
    }
}

/* low nibbles [128], high pairs [64], scales [16] int8, d; a half's nibbles stand in 64 bytes */
static void row_q6_k(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 210) {
        float d = half_at(src + 208);
        for (int g = 0; g < 16; g++, dst += 16) {
            float scale = d * (float)(int8_t)src[192 + g];
            int shift, nibble = g % 8 / 4 * 4;
            const uint8_t *low = src + g / 8 * 64 + g % 4 * 16,
                          *high = two_bits(src + 128, g, &shift);
            for (int i = 0; i < 16; i++)
                dst[i] =
                    scale * (float)(((low[i] >> nibble & 15) | (high[i] >> shift & 3) << 4) - 32);
        }
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

/* 16 bytes whose nibbles choose from a table of 16 values, times d. */
static void table_nibbles(const uint8_t *nibbles, const int8_t table[16], float d, float *dst)
{
    for (int i = 0; i < QK / 2; i++) {
        dst[i] = d * (float)table[nibbles[i] & 15];
        dst[i + QK / 2] = d * (float)table[nibbles[i] >> 4];
    }
}

static void row_iq4_nl(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 18, dst += QK)
        table_nibbles(src + 2, iq4_values, half_at(src), dst);
}

/* d, high pairs of 8 scales u16, low nibbles [4], quants [128] */
static void row_iq4_xs(const uint8_t *src, uint64_t blocks, float *dst)
{
    for (; blocks > 0; blocks--, src += 136, dst += QK_K) {
        float d = half_at(src);
        for (int g = 0; g < 8; g++) {
            int low = src[4 + g / 2] >> (g % 2 * 4) & 15, high = u16_at(src + 2) >> (2 * g) & 3;
            table_nibbles(src + 8 + 16 * g, iq4_values, d * (float)((low | high << 4) - 32),
                          dst + QK * g);
        }
    }
}

/* Half of 2^(e-127), exact down to the subnormals: the table below holds doubled E2M1 values. */
static float e8m0_half(uint8_t e)
{
    return float_of(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static void row_mxfp4(const uint8_t *src, uint64_t blocks, float *dst)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

    for (; blocks > 0; blocks--, src += 17, dst += QK)
        table_nibbles(src + 1, doubled, e8m0_half(src[0]), dst);
}

void quant_row_to_f32(enum dtype dtype, const void *src, uint64_t count, float *dst)
{
    static void (*const decoders[DTYPE_COUNT])(const uint8_t *, uint64_t, float *) = {
        [DTYPE_F32] = row_f32,         [DTYPE_F16] = row_f16,         [DTYPE_BF16] = row_bf16,
        [DTYPE_F8_E4M3] = row_f8_e4m3, [DTYPE_F8_E5M2] = row_f8_e5m2, [DTYPE_Q4_0] = row_q4_0,
        [DTYPE_Q4_1] = row_q4_1,       [DTYPE_Q5_0] = row_q5_0,       [DTYPE_Q5_1] = row_q5_1,
        [DTYPE_Q8_0] = row_q8_0,       [DTYPE_Q2_K] = row_q2_k,       [DTYPE_Q3_K] = row_q3_k,
        [DTYPE_Q4_K] = row_q4_k,       [DTYPE_Q5_K] = row_q5_k,       [DTYPE_Q6_K] = row_q6_k,
        [DTYPE_IQ4_NL] = row_iq4_nl,   [DTYPE_IQ4_XS] = row_iq4_xs,   [DTYPE_MXFP4] = row_mxfp4,
    };
    const struct dtype_info *info = dtype_info(dtype);

    assert(info->has_values && decoders[dtype]);
    assert(count % info->block_elements == 0);
    decoders[dtype](src, count / info->block_elements, dst);
}
