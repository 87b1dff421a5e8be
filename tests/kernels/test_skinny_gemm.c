/* test_skinny_gemm.c - products of few rows equal float64 within one rounding, and a row's bits do not depend on its batch.
 * Method: random W and x with outliers over N, K, M and both number types; every epilogue against plain loops; each
 * row of a batch of 16 bit for bit equal to the row run alone; outputs poisoned, canaries behind all buffers. */
#include <math.h>
#include <stdlib.h>

#include "gpu.h"
#include "kv_layout.h"
#include "skinny_gemm.h"

enum { ROWS = SKINNY_ROWS_MAX };

struct problem {
    struct kernel_context *ctx;
    uint32_t N, K, x_cols;
    uint16_t *W;    /* [N, K], zeros past x_cols */
    uint16_t *x;    /* [ROWS, K] T */
    float *x32;     /* [ROWS, K] */
    float *gain;    /* [K] */
    float *bias;    /* [N] */
    double *plain;  /* [ROWS, N] of x */
    double *normed; /* [ROWS, N] of the norm of x32 */
    struct skinny_weight weight;
    void *dW, *dx, *dx32, *dgain, *dbias;
};

static void reference(struct problem *p)
{
    enum kernel_type type = p->ctx->type;
    double *w = malloc(p->K * sizeof *w);
    double inv[ROWS];

    for (uint32_t m = 0; m < ROWS; m++) {
        double ss = 0;
        for (uint32_t k = 0; k < p->x_cols; k++)
            ss += (double)p->x32[m * p->K + k] * p->x32[m * p->K + k];
        inv[m] = 1 / sqrt(ss / p->x_cols + 1e-5);
    }
    for (uint32_t n = 0; n < p->N; n++) {
        for (uint32_t k = 0; k < p->K; k++)
            w[k] = type_value(type, p->W[(size_t)n * p->K + k]);
        for (uint32_t m = 0; m < ROWS; m++) {
            double a = 0, b = 0;
            for (uint32_t k = 0; k < p->x_cols; k++) {
                a += w[k] * type_value(type, p->x[m * p->K + k]);
                b += w[k] * p->x32[m * p->K + k] * p->gain[k] * inv[m];
            }
            p->plain[m * p->N + n] = a;
            p->normed[m * p->N + n] = b;
        }
    }
    free(w);
}

static void make(struct problem *p, struct kernel_context *ctx, uint32_t N, uint32_t x_cols)
{
    uint32_t K = (x_cols + 63) / 64 * 64;

    *p = (struct problem){.ctx = ctx, .N = N, .K = K, .x_cols = x_cols};
    p->W = random_values(ctx->type, (size_t)N * K, 1.0f / sqrtf((float)x_cols));
    p->x = random_values(ctx->type, (size_t)ROWS * K, 1);
    p->x32 = random_floats((size_t)ROWS * K, 3);
    p->gain = random_floats(K, 1);
    p->bias = random_floats(N, 0.5f);
    for (uint32_t k = x_cols; k < K; k++) {
        for (uint32_t n = 0; n < N; n++)
            p->W[(size_t)n * K + k] = 0;
        for (uint32_t m = 0; m < ROWS; m++)
            p->x[m * K + k] = 0, p->x32[m * K + k] = 0;
        p->gain[k] = 0;
    }
    p->plain = malloc((size_t)ROWS * N * sizeof(double));
    p->normed = malloc((size_t)ROWS * N * sizeof(double));
    reference(p);
    p->dW = gpu_upload(p->W, (size_t)N * K * 2);
    p->dx = gpu_upload(p->x, (size_t)ROWS * K * 2);
    p->dx32 = gpu_upload(p->x32, (size_t)ROWS * K * 4);
    p->dgain = gpu_upload(p->gain, K * 4);
    p->dbias = gpu_upload(p->bias, N * 4);
    EXPECT_CUDA(skinny_weight_init(&p->weight, p->dW, N, K, ctx->type));
}

static void drop(struct problem *p)
{
    free(p->W), free(p->x), free(p->x32), free(p->gain), free(p->bias), free(p->plain),
        free(p->normed);
}

static struct skinny_args args_of(const struct problem *p, uint32_t M, bool norm)
{
    return (struct skinny_args){
        .weight = &p->weight,
        .M = M,
        .x = norm ? p->dx32 : p->dx,
        .x_stride = p->K,
        .x_cols = p->x_cols,
        .norm_gain = norm ? p->dgain : NULL,
        .norm_eps = 1e-5f,
        .scale = 1,
        .y_stride = p->N,
    };
}

static void run_logits(struct problem *p, uint32_t M, bool norm, float *got)
{
    struct skinny_args a = args_of(p, M, norm);

    a.epilogue = SKINNY_LOGITS;
    a.y = gpu_poisoned((size_t)M * p->N * 4);
    EXPECT_CUDA(skinny_gemm(p->ctx, &a));
    gpu_download(p->ctx, a.y, got, (size_t)M * p->N * 4);
}

static void check_shape(struct kernel_context *ctx, uint32_t N, uint32_t x_cols)
{
    static const uint32_t Ms[] = {1, 2, 3, 7, 8, 9, 15, 16};
    struct problem p;
    float *got = malloc((size_t)ROWS * N * 4), *first[2] = {NULL, NULL};

    make(&p, ctx, N, x_cols);
    for (int i = (int)(sizeof Ms / sizeof *Ms) - 1; i >= 0;
         i -= gpu_small() ? 3 : 1) /* the largest first: the rows to compare with */
        for (int norm = 0; norm < 2; norm++) {
            if (!skinny_gemm_fits(ctx, Ms[i], p.K, norm)) continue;
            run_logits(&p, Ms[i], norm, got);
            double e = relative_error(norm ? p.normed : p.plain, got, (size_t)Ms[i] * N);
            double limit =
                norm ? (ctx->type == KERNEL_BF16 ? 4e-3 : 5e-4) : 2e-6; /* x * gain is rounded */
            if (N < 16) limit *= 10; /* a few numbers are no average */
            if (!(e <= limit))
                fail_msg("N %u K %u M %u norm %d: relative error %.2e, limit %.1e", N, x_cols,
                         Ms[i], norm, e, limit);
            if (!first[norm]) {
                first[norm] = malloc((size_t)ROWS * N * 4);
                memcpy(first[norm], got, (size_t)Ms[i] * N * 4);
            } else if (memcmp(first[norm], got, (size_t)Ms[i] * N * 4) != 0) {
                fail_msg(
                    "N %u K %u norm %d: rows of M %u differ from the same rows of a larger batch",
                    N, x_cols, norm, Ms[i]);
            }
        }
    free(got), free(first[0]), free(first[1]);
    drop(&p);
    gpu_end(ctx);
}

static void check_shapes(enum kernel_type type)
{
    static const uint32_t shapes[][2] = {{960, 576},  {576, 1536}, {17, 64},     {1280, 4096},
                                         {896, 3584}, {100, 2400}, {512, 14336}, {4000, 1000},
                                         {48, 18944}, {1, 8192}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += gpu_small() ? 2 : 1) {
        NEED_GPU(type);
        if (ctx.capability < 90) skip();
        check_shape(&ctx, shapes[i][0], shapes[i][1]);
    }
}

TEST(bf16_products_equal_float64_and_do_not_depend_on_the_batch)
{
    check_shapes(KERNEL_BF16);
}

TEST(f16_products_equal_float64_and_do_not_depend_on_the_batch)
{
    check_shapes(KERNEL_F16);
}

TEST(residual_store_glu_and_picked_rows_are_what_they_say)
{
    NEED_GPU(KERNEL_BF16);
    if (ctx.capability < 90) skip();
    struct problem p;
    uint32_t N = 704, M = 5;
    make(&p, &ctx, N, 1024);
    double *want = malloc((size_t)ROWS * N * sizeof *want);
    float *got = malloc((size_t)ROWS * N * sizeof *got);
    uint16_t *bits = malloc((size_t)ROWS * N * 2);

    struct skinny_args a = args_of(&p, M, false);
    float *x = random_floats((size_t)M * N, 2);
    a.epilogue = SKINNY_RESIDUAL, a.bias = p.dbias, a.y = gpu_upload(x, (size_t)M * N * 4);
    EXPECT_CUDA(skinny_gemm(&ctx, &a));
    gpu_download(&ctx, a.y, got, (size_t)M * N * 4);
    for (uint32_t i = 0; i < M * N; i++)
        want[i] = p.plain[i] + p.bias[i % N] + x[i];
    EXPECT_TRUE(relative_error(want, got, (size_t)M * N) < 2e-6);

    for (int act = 0; act < 2; act++) {
        a = args_of(&p, M, true);
        a.epilogue = SKINNY_GLU, a.bias = p.dbias, a.act = act, a.y_stride = N / 2;
        a.y = gpu_poisoned((size_t)M * N / 2 * 2);
        EXPECT_CUDA(skinny_gemm(&ctx, &a));
        gpu_download(&ctx, a.y, bits, (size_t)M * N);
        for (uint32_t m = 0; m < M; m++)
            for (uint32_t i = 0; i < N / 2; i++) {
                double g = p.normed[m * N + 2 * i] + p.bias[2 * i];
                double u = p.normed[m * N + 2 * i + 1] + p.bias[2 * i + 1];
                double t =
                    act ? 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
                        : g / (1 + exp(-g));
                want[m * (N / 2) + i] = t * u;
                got[m * (N / 2) + i] = type_value(ctx.type, bits[m * (N / 2) + i]);
            }
        double e = relative_error(want, got, (size_t)M * N / 2);
        if (!(e < 5e-3)) fail_msg("act %d: %.2e", act, e);
    }

    int32_t rows[3] = {11, 0, 4};
    a = args_of(&p, 3, true);
    a.epilogue = SKINNY_LOGITS, a.scale = 0.5f, a.softcap = 2,
    a.row_index = gpu_upload(rows, sizeof rows);
    a.y = gpu_poisoned((size_t)3 * N * 4);
    EXPECT_CUDA(skinny_gemm(&ctx, &a));
    gpu_download(&ctx, a.y, got, (size_t)3 * N * 4);
    for (uint32_t i = 0; i < 3 * N; i++)
        want[i] = 2 * tanh(p.normed[rows[i / N] * N + i % N] * 0.5 / 2);
    EXPECT_TRUE(relative_error(want, got, (size_t)3 * N) < 6e-3);
    free(x), free(want), free(got), free(bits);
    drop(&p);
    gpu_end(&ctx);
}

static void qkv_case(enum kernel_type type, uint32_t H, uint32_t G, uint32_t D, uint32_t ROPE)
{
    NEED_GPU(type);
    if (ctx.capability < 90) skip();
    struct problem p;
    enum { M = 4, BLOCKS = 5 };
    uint32_t N = (H + 2 * G) * D;
    int32_t positions[M] = {0, 7, 300, -1}, slots[M] = {3 * 16 + 0, 1 * 16 + 7, 4 * 16 + 12, -1};
    float2 *rope = malloc(301 * (ROPE / 2) * sizeof *rope);
    size_t kv_elements = BLOCKS * kv_block_elements(G, D);
    uint16_t *q = malloc((size_t)M * H * D * 2), *kv = malloc(kv_elements * 2),
             *poison = malloc(kv_elements * 2);

    make(&p, &ctx, N, 576);
    for (uint32_t i = 0; i < 301 * (ROPE / 2); i++)
        rope[i] = (float2){cosf((float)i), sinf((float)i)};
    memset(poison, 0xff, kv_elements * 2);
    double difference = 0, size = 0;
    struct skinny_args a = args_of(&p, M, true);
    a.epilogue = SKINNY_QKV, a.bias = p.dbias, a.y_stride = H * D,
    a.y = gpu_poisoned((size_t)M * H * D * 2);
    a.qkv = (struct skinny_qkv){H,
                                G,
                                D,
                                ROPE,
                                gpu_upload(rope, 301 * (ROPE / 2) * sizeof *rope),
                                gpu_upload(positions, sizeof positions),
                                gpu_upload(slots, sizeof slots),
                                gpu_poisoned(kv_elements * 2)};
    EXPECT_CUDA(skinny_gemm(&ctx, &a));
    gpu_download(&ctx, a.y, q, (size_t)M * H * D * 2);
    gpu_download(&ctx, a.qkv.kv, kv, kv_elements * 2);
    for (uint32_t m = 0; m < 3; m++)
        for (uint32_t n = 0; n < N; n++) {
            uint32_t head = n / D, e = n % D;
            double v = p.normed[m * N + n] + p.bias[n],
                   other = p.normed[m * N + (n ^ 1)] + p.bias[n ^ 1];
            if (head < H + G && e < ROPE) {
                float2 cs = rope[positions[m] * (ROPE / 2) + e / 2];
                v = e & 1 ? v * cs.x + other * cs.y : v * cs.x - other * cs.y;
            }
            uint16_t *at = &q[m * H * D + n];
            if (head >= H) {
                bool is_k = head < H + G;
                uint32_t g = is_k ? head - H : head - H - G, token = (uint32_t)slots[m] % 16;
                at = &kv[((uint32_t)slots[m] / 16 * G + g) * kv_record_elements(D) +
                         (is_k ? token * D + e : 16 * D + ((token / 8) * D + e) * 8 + token % 8)];
            }
            double off =
                type_value(ctx.type, *at) - v; /* one large x * gain may be rounded by 0.8 */
            EXPECT_TRUE(fabs(off) < 0.8 + 0.02 * fabs(v));
            difference += off * off, size += v * v;
            *at = 0xffff; /* seen */
        }
    EXPECT_TRUE(sqrt(difference / size) < 5e-3);
    EXPECT_TRUE(memcmp(kv, poison, kv_elements * 2) == 0); /* nothing else was written */
    free(rope), free(q), free(kv), free(poison);
    drop(&p);
    gpu_end(&ctx);
}

TEST(qkv_rotates_neighbours_and_writes_keys_and_values_to_their_pages)
{
    /* heads, KV heads, head size, rotated: tiles of 16 rows that end in a head, and that reach over its end */
    static const uint32_t shapes[][4] = {{6, 2, 48, 32}, {3, 3, 64, 64},   {5, 1, 80, 80},
                                         {4, 2, 96, 24}, {7, 1, 128, 128}, {2, 1, 256, 64},
                                         {6, 2, 20, 10}, {16, 1, 64, 2}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += gpu_small() ? 3 : 1)
        qkv_case(i % 2 ? KERNEL_F16 : KERNEL_BF16, shapes[i][0], shapes[i][1], shapes[i][2],
                 shapes[i][3]);
}
