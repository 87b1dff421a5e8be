/* test_linear.c - y = x W^T is right for every format, instruction set and numerics, and is the same bytes however it is asked.
 * Method: random weights in every stored format (decoded by quant_row_to_f32, which has its own golden test) and
 * activations with outliers, against sums in float64. Bytes are compared across row counts, tile splits and instruction
 * sets, which linear.h promises to be equal. Packed weights, inputs and stored weights end at an unmapped page. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "device/cpu/linear.h"
#include "device/dummy_weights.h"

static const enum dtype quantised[] = {
    DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1,   DTYPE_Q8_0,   DTYPE_Q2_K,  DTYPE_Q3_K,
    DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4,
};
static const enum dtype floats[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
enum { QUANTISED = sizeof quantised / sizeof quantised[0], FLOATS = 3 };

/* --- inputs --- */

static float random_normal(void)
{
    double u = test_rand_unit() + 1e-12, v = test_rand_unit();
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* One in 100 is 50 times as large, as hidden states of real models are; some blocks are all zero. */
static void random_activations(float *x, uint32_t rows, uint32_t cols)
{
    for (uint32_t i = 0; i < rows * cols; i++) {
        x[i] = random_normal() * (test_rand_below(100) == 0 ? 50.0f : 1.0f);
        if ((i / 32) % 23 == 5) x[i] = 0;
    }
}

/* Bytes of `dtype` blocks: random codes, scales of sensible size. */
static void random_block(enum dtype dtype, uint8_t *block)
{
    const uint32_t bytes = dtype_info(dtype)->block_bytes;
    uint16_t d = f32_to_f16((float)(test_rand_unit() - 0.3) * 0.02f),
             m = f32_to_f16(random_normal() * 0.1f);

    for (uint32_t i = 0; i < bytes; i++)
        block[i] = (uint8_t)test_rand();
    switch (dtype) {
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2: block[0] &= 0xbb; break; /* neither NaN nor infinity */
    case DTYPE_MXFP4:
        block[0] = (uint8_t)(test_rand_below(8) ? 118 + test_rand_below(6) : test_rand_below(3));
        break;
    case DTYPE_Q2_K:
        memcpy(block + 80, &d, 2);
        memcpy(block + 82, &m, 2);
        break;
    case DTYPE_Q3_K: memcpy(block + 108, &d, 2); break;
    case DTYPE_Q6_K: memcpy(block + 208, &d, 2); break;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: memcpy(block + 2, &m, 2); /* fall through */
    default: memcpy(block, &d, 2);
    }
}

static void random_float(enum dtype dtype, uint8_t *p)
{
    float v = random_normal() * (test_rand_below(200) == 0 ? 5.0f : 0.1f);
    uint16_t half = dtype == DTYPE_F16 ? f32_to_f16(v) : f32_to_bf16(v);

    if (dtype == DTYPE_F32)
        memcpy(p, &v, 4);
    else
        memcpy(p, &half, 2);
}

struct example {
    struct plan_weight weight;
    uint8_t *stored; /* guarded */
    size_t stored_bytes;
    double *w; /* [rows, cols] exact values */
    float *x;  /* [x_rows, cols] */
    uint32_t x_rows;
};

/* Rows are `gap` bytes apart beyond their own length, as in a slice of columns. */
static void example_init(struct example *e, enum dtype dtype, uint32_t rows, uint32_t cols,
                         uint32_t x_rows, uint32_t gap)
{
    const struct dtype_info *info = dtype_info(dtype);
    const uint64_t row_bytes = dtype_row_bytes(dtype, cols), stride = row_bytes + gap;
    float *decoded = malloc(cols * sizeof(float));

    e->stored_bytes = stride * (rows - 1) + row_bytes;
    uint8_t *bytes = malloc(e->stored_bytes);
    memset(bytes, 0xee, e->stored_bytes);
    for (uint32_t r = 0; r < rows; r++)
        for (uint64_t at = 0; at < row_bytes; at += info->block_bytes) {
            uint8_t *block = bytes + r * stride + at;
            if (info->is_float)
                random_float(dtype, block);
            else
                random_block(dtype, block);
        }
    e->stored = test_guarded_copy(bytes, e->stored_bytes);
    free(bytes);
    e->weight = (struct plan_weight){.name = "w",
                                     .data = e->stored,
                                     .dtype = dtype,
                                     .rows = rows,
                                     .cols = cols,
                                     .row_stride = stride};
    e->w = malloc((size_t)rows * cols * sizeof(double));
    for (uint32_t r = 0; r < rows; r++) {
        quant_row_to_f32(dtype, e->stored + r * stride, cols, decoded);
        for (uint32_t k = 0; k < cols; k++)
            e->w[(size_t)r * cols + k] = decoded[k];
    }
    free(decoded);
    e->x_rows = x_rows;
    e->x = malloc((size_t)x_rows * cols * sizeof(float));
    random_activations(e->x, x_rows, cols);
}

static void example_fini(struct example *e)
{
    test_guarded_free(e->stored, e->stored_bytes);
    free(e->w);
    free(e->x);
}

/* --- one product --- */

struct product {
    struct linear linear;
    uint8_t *packed; /* guarded */
    uint64_t packed_bytes;
};

static void product_init(struct product *p, const struct example *e, enum cpu_numerics numerics,
                         enum cpu_isa isa)
{
    p->packed_bytes = linear_packed_bytes(&e->weight, numerics, isa);
    EXPECT_EQ(p->packed_bytes % 64, 0);
    uint8_t *zero = calloc(1, p->packed_bytes + 1);
    p->packed = p->packed_bytes ? test_guarded_copy(zero, p->packed_bytes) : NULL;
    free(zero);
    linear_init(&p->linear, &e->weight, numerics, isa, p->packed);
    EXPECT_EQ(p->linear.tiles, (e->weight.rows + p->linear.tile_rows - 1) / p->linear.tile_rows);
    uint32_t half = p->linear.tiles / 2;
    linear_pack_tiles(&p->linear, p->packed, half, p->linear.tiles);
    linear_pack_tiles(&p->linear, p->packed, 0, half);
}

static void product_fini(struct product *p)
{
    if (p->packed) test_guarded_free(p->packed, p->packed_bytes);
}

/* y [rows, weight.rows] of rows [first, first + rows) of x, tiles in `pieces` calls. Outputs lie with a gap whose bytes
 * must survive. */
static void product_run(const struct product *p, const struct example *e, uint32_t first,
                        uint32_t rows, uint32_t pieces, float *y)
{
    const uint32_t cols = e->weight.cols, outputs = e->weight.rows, stride = outputs + 3;
    const uint64_t row_bytes = linear_input_row_bytes(linear_input_kind(&p->linear), cols);
    uint8_t *blank = calloc(rows, row_bytes);
    uint8_t *input = test_guarded_copy(blank, rows * row_bytes);
    float *wide = malloc((size_t)rows * stride * sizeof(float));

    EXPECT_EQ(row_bytes % 64, 0);
    linear_prepare(linear_input_kind(&p->linear), p->linear.isa, e->x + (size_t)first * cols, cols,
                   cols, input, 0, rows);
    memset(wide, 0x5a, (size_t)rows * stride * sizeof(float));
    for (uint32_t i = 0; i < pieces; i++)
        linear_run(&p->linear, input, rows, wide, stride, p->linear.tiles * i / pieces,
                   p->linear.tiles * (i + 1) / pieces);
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(y + (size_t)r * outputs, wide + (size_t)r * stride, outputs * sizeof(float));
        for (uint32_t i = outputs; i < stride; i++) {
            uint32_t bits;
            memcpy(&bits, &wide[(size_t)r * stride + i], 4);
            EXPECT_EQ(bits, 0x5a5a5a5a);
        }
    }
    test_guarded_free(input, rows * row_bytes);
    free(blank);
    free(wide);
}

/* What `fast` makes of x, in float64: the nearest multiple of max / 127 in each 32. */
static void round_activations(const float *x, uint32_t cols, double *out)
{
    for (uint32_t b = 0; b < cols; b += 32) {
        float largest = 0;
        for (uint32_t k = b; k < b + 32; k++)
            largest = fmaxf(largest, fabsf(x[k]));
        float scale = largest > 0 ? 127.0f / largest : 0, dx = largest / 127.0f;
        for (uint32_t k = b; k < b + 32; k++) {
            out[k] = (double)dx * rint((double)(x[k] * scale));
            /* three roundings to float32 of numbers up to 127: each half of 2^-24 of it at most, 8e-6 */
            EXPECT_TRUE(fabs(out[k] - x[k]) <= 0.50003 * dx);
        }
    }
}

/* 3e-6 of the sum of magnitudes: some 25 float32 roundings of the largest partial sum. */
static void expect_right(const struct product *p, const struct example *e, const float *y)
{
    const uint32_t cols = e->weight.cols, outputs = e->weight.rows;
    double *x = malloc(cols * sizeof(double));

    for (uint32_t r = 0; r < e->x_rows; r++) {
        if (linear_input_kind(&p->linear) == LINEAR_INPUT_Q8)
            round_activations(e->x + (size_t)r * cols, cols, x);
        else
            for (uint32_t k = 0; k < cols; k++)
                x[k] = e->x[(size_t)r * cols + k];
        for (uint32_t n = 0; n < outputs; n++) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < cols; k++) {
                sum += x[k] * e->w[(size_t)n * cols + k];
                size += fabs(x[k]) * (fabs(e->w[(size_t)n * cols + k]) + 1e-3);
            }
            if (!(fabs(y[(size_t)r * outputs + n] - sum) <= 3e-6 * size * 4))
                fail_msg("%s %s row %u output %u: %.9g, expected %.9g (size %.3g)",
                         dtype_info(e->weight.dtype)->name, cpu_isa_name(p->linear.isa), r, n,
                         (double)y[(size_t)r * outputs + n], sum, size);
        }
    }
    free(x);
}

/* --- the claims --- */

static uint32_t random_cols(enum dtype dtype)
{
    const uint32_t block = dtype_info(dtype)->block_elements;
    if (block == 1) return 1 + test_rand_below(600);
    if (block == 256) return 256 * (1 + test_rand_below(10));
    return 32 * (1 + test_rand_below(80));
}

/* All instruction sets on one example: right against float64 (the first), equal bytes (the others). */
static void check_format(enum dtype dtype, enum cpu_numerics numerics, uint32_t rows, uint32_t cols,
                         uint32_t x_rows)
{
    struct example e;
    struct product p;
    const size_t count = (size_t)x_rows * rows;
    float *first = malloc(count * sizeof(float)), *y = malloc(count * sizeof(float));

    example_init(&e, dtype, rows, cols, x_rows, 34 * test_rand_below(2));
    for (enum cpu_isa isa = CPU_ISA_GENERIC; isa <= cpu_isa_best(); isa++) {
        product_init(&p, &e, numerics, isa);
        product_run(&p, &e, 0, x_rows, 1, isa == CPU_ISA_GENERIC ? first : y);
        if (isa == CPU_ISA_GENERIC) expect_right(&p, &e, first);
        if (isa != CPU_ISA_GENERIC && memcmp(first, y, count * sizeof(float)) != 0)
            fail_msg("%s [%u, %u] x %u rows: %s differs from generic", dtype_info(dtype)->name,
                     rows, cols, x_rows, cpu_isa_name(isa));
        /* parts of the batch, parts of the outputs */
        product_run(&p, &e, 0, x_rows, 3, y);
        EXPECT_TRUE(memcmp(first, y, count * sizeof(float)) == 0);
        for (uint32_t row = 0; row < x_rows;) {
            uint32_t n = 1 + test_rand_below(x_rows - row < 21 ? x_rows - row : 21);
            product_run(&p, &e, row, n, 1, y);
            if (memcmp(first + (size_t)row * rows, y, (size_t)n * rows * sizeof(float)) != 0)
                fail_msg("%s [%u, %u] %s: rows %u..%u of %u differ when run alone",
                         dtype_info(dtype)->name, rows, cols, cpu_isa_name(isa), row, row + n - 1,
                         x_rows);
            row += n;
        }
        product_fini(&p);
    }
    example_fini(&e);
    free(first);
    free(y);
}

static void check_random_shapes(const enum dtype *dtypes, uint32_t count,
                                enum cpu_numerics numerics)
{
#ifdef INFERD_SANITIZED
    const uint32_t rounds = test_long() ? 10 : 1;
#else
    const uint32_t rounds = test_long() ? 40 : 3;
#endif
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t round = 0; round < rounds; round++)
            check_format(dtypes[i], numerics, 1 + test_rand_below(70), random_cols(dtypes[i]),
                         1 + test_rand_below(65));
}

TEST(fast_products_of_quantised_weights_are_right_and_the_same_bytes_everywhere)
{
    check_random_shapes(quantised, QUANTISED, CPU_FAST);
}

TEST(exact_products_of_quantised_weights_are_right_and_the_same_bytes_everywhere)
{
    check_random_shapes(quantised, QUANTISED, CPU_EXACT);
}

TEST(products_of_weights_that_are_decoded_from_their_rows_are_right_and_the_same_bytes_everywhere)
{
    const enum dtype dtypes[] = {DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    check_random_shapes(dtypes, 2, CPU_FAST);
    check_random_shapes(dtypes, 2, CPU_EXACT);
}

TEST(products_of_float_weights_are_right_and_the_same_bytes_everywhere)
{
    check_random_shapes(floats, FLOATS, CPU_FAST);
    check_random_shapes(floats, FLOATS, CPU_EXACT);
}

TEST(every_count_of_rows_gives_the_bytes_of_one_row_at_a_time)
{
    const enum dtype dtypes[] = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_F16};
    enum { OUTPUTS = 33, COLS = 96, ROWS = 65 };
    static float alone[ROWS * OUTPUTS], y[ROWS * OUTPUTS];

    for (uint32_t i = 0; i < 3; i++) {
        struct example e;
        example_init(&e, dtypes[i], OUTPUTS, COLS, ROWS, 0);
        for (enum cpu_isa isa = CPU_ISA_GENERIC; isa <= cpu_isa_best(); isa++) {
            struct product p;
            product_init(&p, &e, CPU_FAST, isa);
            for (uint32_t r = 0; r < ROWS; r++)
                product_run(&p, &e, r, 1, 1, alone + r * OUTPUTS);
            for (uint32_t n = 1; n <= ROWS; n++) {
                product_run(&p, &e, ROWS - n, n, 1, y);
                EXPECT_TRUE(memcmp(alone + (ROWS - n) * OUTPUTS, y, n * OUTPUTS * sizeof(float)) ==
                            0);
            }
            product_fini(&p);
        }
        example_fini(&e);
    }
}

/* Largest codes against largest activations: 16-bit intermediate sums must not saturate. */
TEST(extreme_codes_do_not_overflow)
{
    enum { OUTPUTS = 16, COLS = 512 };
    static float first[OUTPUTS], y[OUTPUTS];

    for (uint32_t i = 0; i < QUANTISED; i++)
        for (uint32_t fill = 0; fill < 3; fill++) {
            struct example e;
            const struct dtype_info *info = dtype_info(quantised[i]);
            const uint8_t bytes[3] = {0xff, 0x80, 0x00};
            example_init(&e, quantised[i], OUTPUTS, COLS, 1, 0);
            for (size_t at = 0; at < e.stored_bytes; at += info->block_bytes) {
                uint8_t block[256];
                random_block(quantised[i], block);
                /* keep the scales (four bytes at either end hold them), overwrite the rest */
                for (uint32_t k = 4; k + 4 < info->block_bytes; k++)
                    block[k] = bytes[fill];
                memcpy(e.stored + at, block, info->block_bytes);
            }
            float decoded[COLS];
            for (uint32_t r = 0; r < OUTPUTS; r++) {
                quant_row_to_f32(quantised[i], e.stored + r * e.weight.row_stride, COLS, decoded);
                for (uint32_t k = 0; k < COLS; k++)
                    e.w[r * COLS + k] = decoded[k];
            }
            for (uint32_t k = 0; k < COLS; k++)
                e.x[k] = k / 64 % 2 ? -3.0f : 3.0f;
            for (enum cpu_isa isa = CPU_ISA_GENERIC; isa <= cpu_isa_best(); isa++) {
                struct product p;
                product_init(&p, &e, CPU_FAST, isa);
                product_run(&p, &e, 0, 1, 1, isa == CPU_ISA_GENERIC ? first : y);
                if (isa == CPU_ISA_GENERIC)
                    expect_right(&p, &e, first);
                else
                    EXPECT_TRUE(memcmp(first, y, sizeof y) == 0);
                product_fini(&p);
            }
            example_fini(&e);
        }
}

/* A fault upstream must stay visible in the logits, whatever the format does to activations. */
TEST(nan_and_infinity_in_the_activations_are_not_lost)
{
    const enum dtype dtypes[] = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q6_K, DTYPE_F16};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    enum { OUTPUTS = 20, COLS = 256, ROWS = 17 };
    static float y[ROWS * OUTPUTS];

    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t b = 0; b < 3; b++)
            for (enum cpu_isa isa = CPU_ISA_GENERIC; isa <= cpu_isa_best(); isa++) {
                struct example e;
                struct product p;
                example_init(&e, dtypes[i], OUTPUTS, COLS, ROWS, 0);
                e.x[3 * COLS + 40] = bad[b];
                product_init(&p, &e, CPU_FAST, isa);
                product_run(&p, &e, 0, ROWS, 1, y);
                for (uint32_t r = 0; r < ROWS; r++)
                    for (uint32_t n = 0; n < OUTPUTS; n++)
                        EXPECT_EQ(!isfinite(y[r * OUTPUTS + n]), r == 3);
                product_fini(&p);
                example_fini(&e);
            }
}

TEST(made_up_weights_are_those_of_dummy_weight_row)
{
    const enum dtype dtypes[] = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q6_K, DTYPE_BF16};
    enum { OUTPUTS = 37, COLS = 256, ROWS = 3 };
    static float y[ROWS * OUTPUTS], made[ROWS * OUTPUTS];

    for (uint32_t i = 0; i < 4; i++)
        for (int numerics = CPU_EXACT; numerics <= CPU_FAST; numerics++) {
            struct example e;
            struct product p;
            example_init(&e, dtypes[i], OUTPUTS, COLS, ROWS, 0);
            for (uint32_t r = 0; r < OUTPUTS; r++)
                dummy_weight_row(&e.weight, r, e.stored + r * e.weight.row_stride);
            product_init(&p, &e, (enum cpu_numerics)numerics, cpu_isa_best());
            product_run(&p, &e, 0, ROWS, 1, y);
            product_fini(&p);
            e.weight.data = NULL;
            product_init(&p, &e, (enum cpu_numerics)numerics, cpu_isa_best());
            product_run(&p, &e, 0, ROWS, 1, made);
            product_fini(&p);
            EXPECT_TRUE(memcmp(y, made, sizeof y) == 0);
            EXPECT_TRUE(y[5] != 0);
            example_fini(&e);
        }
}

TEST(instruction_sets_have_names)
{
    EXPECT_STR(cpu_isa_name(CPU_ISA_GENERIC), "generic");
    EXPECT_STR(cpu_isa_name(CPU_ISA_AVX512_VNNI), "avx512-vnni");
    EXPECT_TRUE(cpu_isa_best() < CPU_ISA_COUNT);
}
