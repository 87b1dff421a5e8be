/* test_quant_blocks.c - stored weights have exactly the values that gguf-py and ml_dtypes give them.
 * Method: 64 blocks of random and special bytes per format against tests/golden/quants; all codes of the
 * 8-bit floats and halves both ways; the encoders against golden lists of ties, subnormals, overflow and NaN,
 * and each against a search for the nearest code. Rows lie at odd addresses that end at an unmapped page. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "base/file_map.h"
#include "formats/quant_blocks.h"
#include "golden_read.h"

static uint32_t bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static bool same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

static void check_format(enum dtype dtype)
{
    const struct dtype_info *info = dtype_info(dtype);
    char path[64], *bytes;
    uint64_t len;
    struct npy want;
    struct error err;

    snprintf(path, sizeof path, "quants/%s.bin", info->name);
    EXPECT_TRUE(test_golden(path) != NULL);
    EXPECT_OK_ERR(file_read(test_golden(path), 1 << 20, &bytes, &len, &err), &err);
    snprintf(path, sizeof path, "quants/%s.f32.npy", info->name);
    npy_read(path, &want);
    EXPECT_EQ(len, 64 * info->block_bytes);
    EXPECT_EQ(want.count, 64 * info->block_elements);
    EXPECT_EQ(dtype_row_bytes(dtype, want.count), len);

    unsigned char *row = test_guarded_copy(bytes, len);
    float *got = malloc(want.count * sizeof *got);
    quant_row_to_f32(dtype, row, want.count, got);
    for (size_t i = 0; i < want.count; i++)
        if (!same(got[i], ((float *)want.data)[i]))
            fail_msg("%s, block %zu, weight %zu is %.9g; expected %.9g", info->name,
                     i / info->block_elements, i % info->block_elements, (double)got[i],
                     (double)((float *)want.data)[i]);
    test_guarded_free(row, len);
    free(got);
    free(bytes);
    npy_free(&want);
}

TEST(every_block_format_has_gguf_pys_values_to_the_bit)
{
    for (enum dtype dtype = DTYPE_Q4_0; dtype <= DTYPE_MXFP4; dtype++)
        check_format(dtype);
}

TEST(all_codes_of_the_small_floats_decode)
{
    struct npy bits, want;
    uint8_t codes[256];
    float got[256];
    static const struct {
        enum dtype dtype;
        const char *path;
    } rows[] = {{DTYPE_F8_E4M3, "quants/E4M3.f32.npy"}, {DTYPE_F8_E5M2, "quants/E5M2.f32.npy"}};

    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (int r = 0; r < 2; r++) {
        npy_read(rows[r].path, &want);
        EXPECT_EQ(want.count, 256);
        quant_row_to_f32(rows[r].dtype, codes, 256, got);
        for (int i = 0; i < 256; i++)
            if (!same(got[i], ((float *)want.data)[i]))
                fail_msg("%s, code 0x%02x", rows[r].path, i);
        npy_free(&want);
    }
    npy_read("quants/F16.bits.npy", &bits);
    npy_read("quants/F16.f32.npy", &want);
    EXPECT_EQ(bits.count, want.count);
    for (size_t i = 0; i < bits.count; i++)
        if (!same(f16_to_f32(((uint16_t *)bits.data)[i]), ((float *)want.data)[i]))
            fail_msg("f16 0x%04x", ((uint16_t *)bits.data)[i]);
    npy_free(&bits);
    npy_free(&want);
}

/* Every half and every bf16 survives the way to f32 and back. */
TEST(halves_go_to_f32_and_back_unchanged)
{
    for (uint32_t i = 0; i < 0x10000; i++) {
        uint16_t bits = (uint16_t)i;
        float half = f16_to_f32(bits), brain = bf16_to_f32(bits);
        if (isnan(half))
            EXPECT_TRUE(isnan(f16_to_f32(f32_to_f16(half))));
        else
            EXPECT_EQ(f32_to_f16(half), bits);
        if (isnan(brain))
            EXPECT_TRUE(isnan(bf16_to_f32(f32_to_bf16(brain))));
        else
            EXPECT_EQ(f32_to_bf16(brain), bits);
    }
}

static uint32_t convert(int to, float value)
{
    switch (to) {
    case 0: return f32_to_f16(value);
    case 1: return f32_to_bf16(value);
    case 2: return f32_to_f8_e4m3_saturate(value);
    default: return f32_to_f8_e5m2_saturate(value);
    }
}

static float back(int to, uint32_t bits)
{
    switch (to) {
    case 0: return f16_to_f32((uint16_t)bits);
    case 1: return bf16_to_f32((uint16_t)bits);
    case 2: return f8_e4m3_to_f32((uint8_t)bits);
    default: return f8_e5m2_to_f32((uint8_t)bits);
    }
}

TEST(floats_encode_as_the_golden_lists_say)
{
    static const char *const paths[] = {"quants/convert.f16.npy", "quants/convert.bf16.npy",
                                        "quants/convert.e4m3_saturate.npy",
                                        "quants/convert.e5m2_saturate.npy"};
    struct npy from, want;

    npy_read("quants/convert.f32.npy", &from);
    for (int to = 0; to < 4; to++) {
        npy_read(paths[to], &want);
        EXPECT_EQ(want.count, from.count);
        for (size_t i = 0; i < from.count; i++) {
            float value = ((float *)from.data)[i];
            uint32_t bits = want.item_bytes == 1 ? ((uint8_t *)want.data)[i]
                                                 : ((uint16_t *)want.data)[i],
                     got = convert(to, value);
            if (got != bits && !(isnan(value) && isnan(back(to, got))))
                fail_msg("%s: %.9g (0x%08x) is 0x%x; expected 0x%x", paths[to], (double)value,
                         bits_of(value), got, bits);
        }
        npy_free(&want);
    }
    npy_free(&from);
}

/* Random floats of all exponents: no other code is nearer, and of two equally near the even one is taken.
 * Neighbours in code order are neighbours in value, so comparing with both is enough. */
TEST(encoders_take_the_nearest_code_and_the_even_one_of_two)
{
    static const uint32_t largest[] = {0x7bff, 0x7f7f, 0x7e, 0x7b};
    int rounds = test_long() ? 10000000 : 200000;

    for (int i = 0; i < rounds; i++) {
        int to = i % 4;
        uint32_t random = (uint32_t)test_rand() & 0x7fffffff;
        float value;
        if (i % 3) random = (random & 0x07ffffff) + 0x38000000; /* where the small formats live */
        if (i % 5 == 0) random &= 0xfffff000u;                  /* ties */
        memcpy(&value, &random, 4);
        if (!isfinite(value)) continue;
        uint32_t code = convert(to, value);
        if (to >= 2 && value >= back(to, largest[to])) { /* clamped, however far away */
            EXPECT_EQ(code, largest[to]);
            continue;
        }
        if (code > largest[to]) { /* infinity: beyond half a step over the largest */
            double top = (double)back(to, largest[to]), below = (double)back(to, largest[to] - 1);
            EXPECT_TRUE((double)value >= top + (top - below) / 2);
            continue;
        }
        double here = fabs((double)value - (double)back(to, code));
        double under = code ? fabs((double)value - (double)back(to, code - 1)) : INFINITY;
        double over =
            code < largest[to] ? fabs((double)value - (double)back(to, code + 1)) : INFINITY;
        if (under < here || over < here || ((under == here || over == here) && code % 2))
            fail_msg("to %d: %.9g (0x%08x) became 0x%x", to, (double)value, random, code);
        EXPECT_EQ(convert(to, -value), code | (to < 2 ? 0x8000 : 0x80));
    }
}

TEST(rows_of_halves_are_what_single_numbers_give)
{
    enum { COUNT = 1037 };
    float from[COUNT];
    uint16_t to[COUNT + 1];
    int rounds = test_long() ? 20000 : 400;

    for (int round = 0; round < rounds; round++) {
        uint32_t count = test_rand_below(COUNT + 1), start = round % 8;
        for (uint32_t i = 0; i < COUNT;
             i++) { /* any bits; round the limits of f16; halves and ties between them */
            uint32_t bits = (uint32_t)test_rand();
            if (i % 4 == 1) bits = (bits & 0x80ffffff) | (bits >> 25 & 31) << 24 | 0x30000000;
            if (i % 4 == 2) bits = bits & 0xffff1000;
            if (i % 4 == 3) bits = (bits & 0x80000fff) | 0x47700000 | (bits & 0xff000);
            memcpy(&from[i], &bits, sizeof bits);
        }
        if (start > count) start = count;
        for (int bf16 = 0; bf16 < 2; bf16++) {
            to[count - start] = 0xabcd;
            f32_row_to_half(bf16 ? DTYPE_BF16 : DTYPE_F16, from + start, count - start, to);
            EXPECT_EQ(to[count - start], 0xabcd);
            for (uint32_t i = start; i < count; i++)
                EXPECT_EQ(to[i - start], bf16 ? f32_to_bf16(from[i]) : f32_to_f16(from[i]));
        }
    }
}

TEST(row_bytes_are_right_or_zero)
{
    EXPECT_EQ(dtype_row_bytes(DTYPE_Q4_1, 64), 40);
    EXPECT_EQ(dtype_row_bytes(DTYPE_Q4_1, 48), 0);
    EXPECT_EQ(dtype_row_bytes(DTYPE_Q6_K, 512), 420);
    EXPECT_EQ(dtype_row_bytes(DTYPE_BF16, 7), 14);
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        EXPECT_TRUE(info->name && info->block_elements && info->block_bytes);
    }
}

TEST(ggml_numbers_map_to_the_types_of_the_same_name)
{
    enum dtype dtype;

    EXPECT_OK(dtype_from_ggml(3, &dtype));
    EXPECT_EQ(dtype, DTYPE_Q4_1);
    EXPECT_OK(dtype_from_ggml(30, &dtype));
    EXPECT_EQ(dtype, DTYPE_BF16);
    EXPECT_OK(dtype_from_ggml(39, &dtype));
    EXPECT_EQ(dtype, DTYPE_MXFP4);
    EXPECT_EQ(dtype_from_ggml(4, &dtype), STATUS_UNSUPPORTED);  /* Q4_2, retired */
    EXPECT_EQ(dtype_from_ggml(34, &dtype), STATUS_UNSUPPORTED); /* TQ1_0 */
    EXPECT_EQ(dtype_from_ggml(UINT32_MAX, &dtype), STATUS_UNSUPPORTED);
}
