/* test_row_ops.c - embedding, norms, gated activation, RoPE with KV write and slot state equal plain float64 loops.
 * Method: widths that are no multiple of anything, strides padded with zeros that must stay zeros; outputs poisoned. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/dummy_weights.h"
#include "gpu.h"
#include "kv_layout.h"
#include "row_ops.h"
#include "step_state.h"

static void norm_case(enum kernel_type type, uint32_t rows, uint32_t H, bool delta, bool post)
{
    uint32_t stride = (H + 63) / 64 * 64;
    size_t n = (size_t)rows * stride;
    NEED_GPU(type);
    float *x = random_floats(n, 3), *gain = random_floats(stride, 1),
          *post_gain = random_floats(stride, 1);
    float *bias = random_floats(stride, 1), *got = malloc(n * 4), *rounded = malloc(n * 4);
    uint16_t *d = random_values(type, n, 2), *bits = malloc(n * 2);
    double *want = malloc(n * sizeof *want), *want_y = malloc(n * sizeof *want_y);

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = H; i < stride; i++)
            x[r * stride + i] = 0, d[r * stride + i] = 0;
    for (uint32_t i = H; i < stride; i++)
        gain[i] = post_gain[i] = bias[i] = 0;
    for (uint32_t r = 0; r < rows; r++) {
        double ss = 0, sd = 0;
        for (uint32_t i = 0; i < H; i++) {
            double v = type_value(type, d[r * stride + i]) + (double)bias[i];
            sd += v * v;
        }
        for (uint32_t i = 0; i < stride; i++) {
            double v = type_value(type, d[r * stride + i]) + (double)bias[i];
            if (post) v *= post_gain[i] / sqrt(sd / H + 1e-6);
            want[r * stride + i] = x[r * stride + i] + (delta ? v : 0);
            ss += want[r * stride + i] * want[r * stride + i];
        }
        for (uint32_t i = 0; i < stride; i++)
            want_y[r * stride + i] = want[r * stride + i] * gain[i] / sqrt(ss / H + 1e-5);
    }
    struct norm_args a = {.rows = rows,
                          .hidden = H,
                          .x = gpu_upload(x, n * 4),
                          .x_stride = stride,
                          .delta = delta ? gpu_upload(d, n * 2) : NULL,
                          .delta_stride = stride,
                          .delta_bias = gpu_upload(bias, stride * 4),
                          .post_gain = post ? gpu_upload(post_gain, stride * 4) : NULL,
                          .post_eps = 1e-6f,
                          .gain = gpu_upload(gain, stride * 4),
                          .eps = 1e-5f,
                          .y = gpu_zeroed(n * 2),
                          .y_stride = stride};
    EXPECT_CUDA(rmsnorm(&ctx, &a));
    gpu_download(&ctx, a.x, got, n * 4);
    EXPECT_TRUE(relative_error(want, got, n) < 1e-6);
    gpu_download(&ctx, a.y, bits, n * 2);
    for (size_t i = 0; i < n; i++)
        rounded[i] = type_value(type, bits[i]);
    EXPECT_TRUE(relative_error(want_y, rounded, n) < (type == KERNEL_BF16 ? 2.5e-3 : 4e-4));
    free(x), free(gain), free(post_gain), free(bias), free(got), free(rounded), free(d), free(bits);
    free(want), free(want_y);
    gpu_end(&ctx);
}

TEST(norm_adds_the_residual_and_normalises)
{
    static const uint32_t widths[] = {20, 576, 1536, 4096, 7168, 12288, 20000};

    for (size_t i = 0; i < 7; i++)
        for (int k = 0; k < 3; k++)
            norm_case((i + (size_t)k) % 2 ? KERNEL_F16 : KERNEL_BF16, 3, widths[i], k > 0, k > 1);
}

/* More rows than a grid has in its second dimension. */
TEST(glu_runs_more_rows_than_a_grid_is_high)
{
    NEED_GPU(KERNEL_BF16);
    enum { ROWS = 65600, F = 8 };
    uint16_t *gu = random_values(ctx.type, (size_t)ROWS * 2 * F, 1),
             *bits = malloc((size_t)ROWS * F * 2);
    struct glu_args a = {ROWS, F, gpu_upload(gu, (size_t)ROWS * 2 * F * 2), 2 * F,
                         NULL, 0, gpu_poisoned((size_t)ROWS * F * 2),       F};

    EXPECT_CUDA(glu(&ctx, &a));
    gpu_download(&ctx, a.y, bits, (size_t)ROWS * F * 2);
    for (size_t i = 0; i < (size_t)ROWS * F; i++) {
        double g = type_value(ctx.type, gu[2 * i]), u = type_value(ctx.type, gu[2 * i + 1]);
        EXPECT_NEAR(type_value(ctx.type, bits[i]), g / (1 + exp(-g)) * u,
                    1e-6 + 0.005 * fabs(g / (1 + exp(-g)) * u));
    }
    free(gu), free(bits);
    gpu_end(&ctx);
}

TEST(glu_multiplies_the_activated_gate_with_up)
{
    for (int act = 0; act < 2; act++) {
        NEED_GPU(act ? KERNEL_F16 : KERNEL_BF16);
        enum { ROWS = 5, F = 1002 };
        uint16_t *gu = random_values(ctx.type, (size_t)ROWS * 2 * 1024, 2),
                 *bits = malloc(ROWS * 1024 * 2);
        float *bias = random_floats(2 * F, 1);
        struct glu_args a = {ROWS,
                             F,
                             gpu_upload(gu, (size_t)ROWS * 2048 * 2),
                             2048,
                             gpu_upload(bias, 2 * F * 4),
                             act,
                             gpu_zeroed(ROWS * 1024 * 2),
                             1024};
        EXPECT_CUDA(glu(&ctx, &a));
        gpu_download(&ctx, a.y, bits, ROWS * 1024 * 2);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t i = 0; i < 1024; i++) {
                double g = 0, u = 0;
                if (i < F) {
                    g = type_value(ctx.type, gu[r * 2048 + 2 * i]) + (double)bias[2 * i];
                    u = type_value(ctx.type, gu[r * 2048 + 2 * i + 1]) + (double)bias[2 * i + 1];
                }
                double t =
                    act ? 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
                        : g / (1 + exp(-g));
                EXPECT_NEAR(type_value(ctx.type, bits[r * 1024 + i]), t * u,
                            1e-6 + 0.005 * fabs(t * u));
            }
        free(gu), free(bits), free(bias);
        gpu_end(&ctx);
    }
}

TEST(picked_rows_are_packed_with_their_tails)
{
    for (int type = 0; type < 2; type++) {
        enum { ROWS = 300, OUT = 37, X = 192, A = 64 };
        NEED_GPU(type ? KERNEL_F16 : KERNEL_BF16);
        float *x = random_floats(ROWS * X, 3), got[X];
        uint16_t *v = random_values(ctx.type, ROWS * A, 2), bits[A];
        int32_t rows[OUT];
        for (int i = 0; i < OUT; i++)
            rows[i] = i * 8 + i % 5;
        struct pack_args a = {
            .rows = OUT,
            .row_index = gpu_upload(rows, sizeof rows),
            .x = gpu_upload(x, (size_t)ROWS * X * 4),
            .x_to = gpu_poisoned(OUT * X * 4),
            .x_stride = X,
            .a = gpu_upload(v, (size_t)ROWS * A * 2),
            .a_to = gpu_poisoned(OUT * A * 2),
            .a_stride = A,
        };
        EXPECT_CUDA(pack_rows(&ctx, &a));
        for (int i = 0; i < OUT; i++) {
            gpu_download(&ctx, a.x_to + i * X, got, sizeof got);
            EXPECT_TRUE(memcmp(got, x + rows[i] * X, sizeof got) == 0);
            gpu_download(&ctx, (const uint16_t *)a.a_to + i * A, bits, sizeof bits);
            EXPECT_TRUE(memcmp(bits, v + rows[i] * A, sizeof bits) == 0);
        }
        free(x), free(v);
        gpu_end(&ctx);
    }
}

/* in_order: tokens of a chunk, which lie side by side in their blocks, from the middle of one on; rows 5 and 9 miss. */
static void rope_case(enum kernel_type type, uint32_t D, uint32_t dim, bool norm, bool in_order)
{
    enum { ROWS = 37, H = 5, G = 2, BLOCKS = 9 };
    NEED_GPU(type);
    uint32_t N = (H + 2 * G) * D, stride = (N + 63) / 64 * 64, q_stride = (H * D + 63) / 64 * 64;
    uint16_t *x = random_values(type, (size_t)ROWS * stride, 2),
             *q = malloc((size_t)ROWS * q_stride * 2);
    size_t kv_n = BLOCKS * kv_block_elements(G, D);
    uint16_t *kv = malloc(kv_n * 2), *clean = malloc(kv_n * 2);
    float *bias = random_floats(N, 1), *gains = random_floats(2 * D, 1), inv_freq[256];
    int32_t positions[ROWS], slots[ROWS];

    for (uint32_t i = 0; i < dim / 2; i++)
        inv_freq[i] = powf(10000, -2.0f * (float)i / (float)dim);
    for (uint32_t r = 0; r < ROWS; r++) {
        positions[r] = r == 5 ? -1 : (int32_t)(r * 11);
        slots[r] = r == 5 || r == 9 ? -1 : (int32_t)(in_order ? r + 35 : (r * 5) % (BLOCKS * 16));
    }
    float2 *table = gpu_poisoned(500 * (dim / 2) * sizeof *table);
    EXPECT_CUDA(rope_table(&ctx, gpu_upload(inv_freq, dim / 2 * 4), dim / 2, 500, 1.25f, table));
    memset(clean, 0xff, kv_n * 2);
    struct rope_kv_args a = {.rows = ROWS,
                             .heads = H,
                             .kv_heads = G,
                             .head_dim = D,
                             .qkv = gpu_upload(x, (size_t)ROWS * stride * 2),
                             .qkv_stride = stride,
                             .bias = gpu_upload(bias, N * 4),
                             .q_eps = 1e-6f,
                             .k_eps = 1e-6f,
                             .rope_dim = dim,
                             .rope = table,
                             .positions = gpu_upload(positions, sizeof positions),
                             .kv_slots = gpu_upload(slots, sizeof slots),
                             .q_out = gpu_poisoned((size_t)ROWS * q_stride * 2),
                             .q_stride = q_stride,
                             .kv = gpu_poisoned(kv_n * 2)};
    if (norm) a.q_gain = gpu_upload(gains, D * 4), a.k_gain = gpu_upload(gains + D, D * 4);
    EXPECT_CUDA(rope_kv(&ctx, &a));
    gpu_download(&ctx, a.q_out, q, (size_t)ROWS * q_stride * 2);
    gpu_download(&ctx, a.kv, kv, kv_n * 2);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t u = 0; u < H + 2 * G; u++) {
            double v[512], ss = 0;
            for (uint32_t e = 0; e < D; e++) {
                v[e] = type_value(type, x[r * stride + u * D + e]) + (double)bias[u * D + e];
                ss += v[e] * v[e];
            }
            for (uint32_t e = 0; norm && u < H + G && e < D; e++)
                v[e] *= gains[(u < H ? 0 : D) + e] / sqrt(ss / D + 1e-6);
            for (uint32_t i = 0; u < H + G && i < dim / 2 && positions[r] >= 0; i++) {
                float angle = (float)positions[r] * inv_freq[i];
                double c = cos(angle) * 1.25, s = sin(angle) * 1.25, p = v[2 * i], o = v[2 * i + 1];
                v[2 * i] = p * c - o * s, v[2 * i + 1] = o * c + p * s;
            }
            for (uint32_t e = 0; e < D; e++) {
                uint16_t *at = &q[r * q_stride + u * D + e];
                if (u >= H) {
                    if (slots[r] < 0) continue;
                    uint32_t g = u < H + G ? u - H : u - H - G, t = (uint32_t)slots[r] % 16;
                    at = &kv[((uint32_t)slots[r] / 16 * G + g) * kv_record_elements(D) +
                             (u < H + G ? t * D + e : 16 * D + (t / 8 * D + e) * 8 + t % 8)];
                }
                if (positions[r] < 0) {
                    EXPECT_EQ(*at, 0xffff);
                    continue;
                }
                EXPECT_NEAR(type_value(type, *at), v[e], 0.01 + 0.005 * fabs(v[e]));
                *at = 0xffff;
            }
        }
    EXPECT_TRUE(memcmp(kv, clean, kv_n * 2) == 0);
    free(x), free(q), free(kv), free(clean), free(bias), free(gains);
    gpu_end(&ctx);
}

TEST(rope_turns_neighbours_and_writes_pages)
{
    static const uint32_t dims[][2] = {{128, 128}, {64, 32}, {20, 20},
                                       {256, 128}, {80, 80}, {96, 24}};

    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 4; k++)
            rope_case((i + k / 2) % 2 ? KERNEL_F16 : KERNEL_BF16, dims[i][0], dims[i][1], k % 2,
                      k > 1);
}

TEST(embedding_reads_tokens_and_padding_is_zero)
{
    NEED_GPU(KERNEL_BF16);
    enum { V = 50, H = 100, STRIDE = 128, ROWS = 4 };
    uint16_t *table = random_values(ctx.type, V * STRIDE, 1);
    int32_t tokens[ROWS] = {0, 49, -1, 7};
    float got[ROWS * STRIDE];
    struct embed_args a = {ROWS,
                           H,
                           gpu_upload(tokens, sizeof tokens),
                           gpu_upload(table, V * STRIDE * 2),
                           STRIDE,
                           2.5f,
                           gpu_zeroed(sizeof got),
                           STRIDE};
    EXPECT_CUDA(embed(&ctx, &a));
    gpu_download(&ctx, a.x, got, sizeof got);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < STRIDE; i++)
            EXPECT_NEAR(got[r * STRIDE + i],
                        i < H && tokens[r] >= 0
                            ? type_value(ctx.type, table[tokens[r] * STRIDE + (int32_t)i]) * 2.5f
                            : 0,
                        1e-6);
    free(table);
    gpu_end(&ctx);
}

TEST(dummy_weights_are_those_of_the_host)
{
    NEED_GPU(KERNEL_BF16);
    enum { N = 33, K = 77, STRIDE = 128 };
    struct plan_weight w = {
        .name = "w", .dummy_seed = 12345, .dtype = DTYPE_BF16, .rows = N, .cols = K};
    uint32_t map[N];
    uint16_t *got = malloc(N * STRIDE * 2), row[K];
    for (uint32_t i = 0; i < N; i++)
        map[i] = (i * 5) % N;
    void *out = gpu_zeroed(N * STRIDE * 2);
    EXPECT_CUDA(fill_dummy(&ctx, out, STRIDE, N, K, gpu_upload(map, sizeof map), w.dummy_seed));
    gpu_download(&ctx, out, got, N * STRIDE * 2);
    for (uint32_t r = 0; r < N; r++) {
        dummy_weight_row(&w, r, row);
        EXPECT_TRUE(memcmp(row, got + map[r] * STRIDE, K * 2) == 0);
        EXPECT_EQ(got[map[r] * STRIDE + K], 0);
    }
    free(got);
    gpu_end(&ctx);
}

TEST(rows_of_a_step_get_their_token_position_and_place)
{
    NEED_GPU(KERNEL_BF16);
    enum { SLOTS = 3, STRIDE = 8, ROWS = 3, PADDED = 6 };
    int32_t last[SLOTS * STATE_REFS] = {0}, table[SLOTS * STRIDE];
    for (int i = 0; i < SLOTS * STRIDE; i++)
        table[i] = 100 + i;
    last[2 * STATE_REFS + 1] = 77;
    struct state_row rows[ROWS] = {
        {5, 0, 0}, {(int32_t)(0x80000000u | 2u << 4 | 1u), 33, 2}, {9, 127, 1}};
    struct state_table_change change = {2, 0, 2, 555};
    int32_t out_rows[2] = {2, 1}, got[PADDED];
    struct state_rows_args a = {.rows = ROWS,
                                .padded_rows = PADDED,
                                .in = gpu_upload(rows, sizeof rows),
                                .outputs = 2,
                                .padded_outputs = 4,
                                .out_rows_in = gpu_upload(out_rows, sizeof out_rows),
                                .table_count = 1,
                                .tables_in = gpu_upload(&change, sizeof change),
                                .last = gpu_upload(last, sizeof last),
                                .group_count = 1,
                                .tables = {gpu_upload(table, sizeof table)},
                                .table_stride = STRIDE,
                                .tokens = gpu_poisoned(PADDED * 4),
                                .positions = gpu_poisoned(PADDED * 4),
                                .slots = gpu_poisoned(PADDED * 4),
                                .kv_slots = {gpu_poisoned(PADDED * 4)},
                                .out_rows = gpu_poisoned(4 * 4)};
    EXPECT_CUDA(state_rows(&ctx, &a));
    static const int32_t tokens[PADDED] = {5, 77, 9, -1, -1, -1},
                         positions[PADDED] = {0, 33, 127, -1, -1, -1};
    const int32_t places[PADDED] = {100 * 16, 555 * 16 + 1, (100 + STRIDE + 7) * 16 + 15,
                                    -1,       -1,           -1};
    gpu_download(&ctx, a.tokens, got, sizeof got);
    EXPECT_TRUE(memcmp(got, tokens, sizeof got) == 0);
    gpu_download(&ctx, a.positions, got, sizeof got);
    EXPECT_TRUE(memcmp(got, positions, sizeof got) == 0);
    gpu_download(&ctx, a.kv_slots[0], got, sizeof got);
    EXPECT_TRUE(memcmp(got, places, sizeof got) == 0);
    gpu_download(&ctx, a.out_rows, got, 16);
    EXPECT_TRUE(got[0] == 2 && got[1] == 1 && got[2] == 0 && got[3] == 0);
    gpu_end(&ctx);
}
