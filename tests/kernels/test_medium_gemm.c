/* test_medium_gemm.c - products of up to 64 rows equal float64 within rounding, and a row's bits do not depend on its batch.
 * Method: random W and x with outliers over N, K, every height of tile and many numbers of splits, both number types; every end
 * against plain loops, the bound made of the sums' own sizes; with and without a norm in front; rows of smaller batches, at
 * other places, bit for bit equal to those of the batch of 64; a second run gives the same bytes; outputs poisoned, canaries
 * behind all buffers. The cut that the rule picks is always one that runs. */
#include <math.h>
#include <stdlib.h>

#include "gpu.h"
#include "kv_layout.h"
#include "medium_gemm.h"

enum { ROWS = MEDIUM_ROWS_MAX, HEADS = 4, KV_HEADS = 2, POSITIONS = 300, BLOCKS = 40 };
enum { ENDS = MEDIUM_QKV + 1, SUMS = 3 /* made-up tiles of the product before */ };
static const float EPS = 1e-5f;

struct problem {
    struct kernel_context *ctx;
    uint32_t N, K;
    bool norm;
    float *bias, *old, *gain, *rope; /* [N], [ROWS, N], [N], [POSITIONS, D / 2, 2] */
    double *sum, *sizes;             /* [ROWS, N] of w x, of |w x|, as the norm makes them */
    int32_t positions[ROWS], slots[ROWS];
    const void *dW, *dx, *dsums;
    const float *dbias, *dgain, *drope;
    const int32_t *dpositions, *dslots;
    struct medium_weight weight;
};

static uint32_t head_dim(const struct problem *p)
{
    return p->N / (HEADS + 2 * KV_HEADS);
}

static void make_sums(struct problem *p, const uint16_t *W, const uint16_t *x, const float *sums)
{
    enum kernel_type type = p->ctx->type;
    double *w = malloc(p->K * sizeof *w), *row = malloc((size_t)ROWS * p->K * sizeof *row);

    for (uint32_t m = 0; m < ROWS; m++) {
        double total = 0;
        for (uint32_t i = 0; i < SUMS; i++)
            total += (double)sums[m * SUMS + i];
        double factor = p->norm ? 1 / sqrt(total / p->K + (double)EPS) : 1;
        for (uint32_t k = 0; k < p->K; k++)
            row[(size_t)m * p->K + k] = factor * (double)type_value(type, x[(size_t)m * p->K + k]);
    }
    for (uint32_t n = 0; n < p->N; n++) {
        for (uint32_t k = 0; k < p->K; k++)
            w[k] = (double)type_value(type, W[(size_t)n * p->K + k]);
        for (uint32_t m = 0; m < ROWS; m++) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < p->K; k++)
                sum += w[k] * row[(size_t)m * p->K + k],
                    size += fabs(w[k] * row[(size_t)m * p->K + k]);
            p->sum[(size_t)m * p->N + n] = sum, p->sizes[(size_t)m * p->N + n] = size;
        }
    }
    free(w), free(row);
}

static void make(struct problem *p, struct kernel_context *ctx, uint32_t N, uint32_t K, bool norm)
{
    uint16_t *W = random_values(ctx->type, (size_t)N * K, 1.0f / sqrtf((float)K));
    uint16_t *x = random_values(ctx->type, (size_t)ROWS * K, 1);
    float sums[ROWS * SUMS];
    uint32_t angles = POSITIONS * (N / (HEADS + 2 * KV_HEADS)) / 2;

    *p = (struct problem){.ctx = ctx, .N = N, .K = K, .norm = norm};
    for (uint32_t i = 0; i < ROWS * SUMS; i++)
        sums[i] = (float)(test_rand_unit() * K);
    p->bias = random_floats(N, 0.5f), p->old = random_floats((size_t)ROWS * N, 2);
    p->gain = random_floats(N, 1), p->rope = malloc(angles * 2 * sizeof(float));
    for (uint32_t i = 0; i < angles; i++)
        p->rope[2 * i] = cosf((float)i), p->rope[2 * i + 1] = sinf((float)i);
    for (uint32_t m = 0; m < ROWS; m++) {
        p->positions[m] = m % 13 == 5 ? -1 : (int32_t)(m * 37 % POSITIONS);
        p->slots[m] = m % 13 == 5 ? -1 : (int32_t)(m * 9 % (BLOCKS * KV_BLOCK_TOKENS));
    }
    p->sum = malloc((size_t)ROWS * N * sizeof(double));
    p->sizes = malloc((size_t)ROWS * N * sizeof(double));
    make_sums(p, W, x, sums);
    p->dx = gpu_upload(x, (size_t)ROWS * K * 2), p->dsums = gpu_upload(sums, sizeof sums);
    p->dbias = gpu_upload(p->bias, N * 4), p->dgain = gpu_upload(p->gain, N * 4);
    p->drope = gpu_upload(p->rope, angles * 2 * sizeof(float));
    p->dpositions = gpu_upload(p->positions, sizeof p->positions);
    p->dslots = gpu_upload(p->slots, sizeof p->slots);
    p->dW = gpu_upload(W, (size_t)N * K * 2);
    free(W), free(x);
}

static void drop(struct problem *p)
{
    free(p->bias), free(p->old), free(p->gain), free(p->rope), free(p->sum), free(p->sizes);
}

/* What one run leaves. */
struct results {
    char *y, *h, *kv;
    float *sums;
    size_t row_bytes, kv_bytes;
};

static size_t row_bytes(const struct problem *p, int end)
{
    return end == MEDIUM_GLU                          ? p->N
           : end == MEDIUM_STORE || end == MEDIUM_QKV ? 2 * p->N
                                                      : 4 * p->N;
}

static struct results run(const struct problem *p, uint32_t first, uint32_t M, int end)
{
    uint32_t tiles = medium_tiles(&p->weight);
    struct results r = {.row_bytes = row_bytes(p, end),
                        .kv_bytes = 2 * BLOCKS * kv_block_elements(KV_HEADS, head_dim(p))};
    struct medium_args a = {.weight = &p->weight,
                            .M = M,
                            .x = (const char *)p->dx + (size_t)first * p->K * 2,
                            .x_stride = p->K,
                            .norm_sums = p->norm ? (const float *)p->dsums + first * SUMS : NULL,
                            .norm_tiles = SUMS,
                            .norm_cols = p->K,
                            .norm_eps = EPS,
                            .bias = end == MEDIUM_LOGITS ? NULL : p->dbias,
                            .epilogue = end,
                            .act = p->N % 256 == 0,
                            .scale = 0.5f,
                            .softcap = end == MEDIUM_LOGITS ? 3 : 0,
                            .y_stride = end == MEDIUM_GLU ? p->N / 2 : p->N};

    a.y = end == MEDIUM_RESIDUAL ? gpu_upload(p->old + (size_t)first * p->N, M * r.row_bytes)
                                 : gpu_poisoned(M * r.row_bytes);
    if (end == MEDIUM_RESIDUAL && p->ctx->type == KERNEL_BF16) {
        a.next_gain = p->dgain, a.h = gpu_poisoned((size_t)M * p->N * 2), a.h_stride = p->N;
        a.sums = gpu_poisoned((size_t)M * tiles * 4);
    }
    a.qkv = (struct skinny_qkv){HEADS,
                                KV_HEADS,
                                head_dim(p),
                                head_dim(p) / 8 * 4,
                                (const float2 *)p->drope,
                                p->dpositions + first,
                                p->dslots + first,
                                end == MEDIUM_QKV ? gpu_poisoned(r.kv_bytes) : NULL};
    EXPECT_CUDA(medium_gemm(p->ctx, &a));
    r.y = malloc(M * r.row_bytes);
    gpu_download(p->ctx, a.y, r.y, M * r.row_bytes);
    if (a.h) {
        r.h = malloc((size_t)M * p->N * 2), r.sums = malloc((size_t)M * tiles * 4);
        gpu_download(p->ctx, a.h, r.h, (size_t)M * p->N * 2);
        gpu_download(p->ctx, a.sums, r.sums, (size_t)M * tiles * 4);
    }
    if (a.qkv.kv) {
        r.kv = malloc(r.kv_bytes);
        gpu_download(p->ctx, a.qkv.kv, r.kv, r.kv_bytes);
    }
    return r;
}

static void drop_results(struct results *r)
{
    free(r->y), free(r->h), free(r->kv), free(r->sums);
}

static double activated(double g, int act)
{
    return act ? 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
               : g / (1 + exp(-g));
}

static void near(const struct problem *p, int end, uint32_t m, size_t i, double got, double want,
                 double bound)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("[%u, %u] cut %u/%u/%u end %d: y[%u, %zu] is %.9g, not %.9g", p->N, p->K,
                 p->weight.shape.tile, p->weight.shape.splits, p->weight.shape.share, end, m, i,
                 got, want);
}

/* What an output of type T may be off: half a unit of its last place, and what the sums are. */
static double bound_of(const struct problem *p, double want, double slack)
{
    return (p->ctx->type == KERNEL_BF16 ? 0x1.1p-8 : 0x1.1p-11) * fabs(want) + slack + 1e-6;
}

static void check_plain(const struct problem *p, const struct results *r, int end)
{
    for (uint32_t m = 0; m < ROWS; m++) {
        const double *s = p->sum + (size_t)m * p->N, *z = p->sizes + (size_t)m * p->N;
        for (size_t i = 0; i < (end == MEDIUM_GLU ? p->N / 2 : p->N); i++) {
            double y = end == MEDIUM_LOGITS
                           ? (double)((const float *)r->y)[m * p->N + i]
                           : (double)type_value(p->ctx->type,
                                                ((const uint16_t *)r->y)[m * r->row_bytes / 2 + i]);
            if (end == MEDIUM_STORE) {
                double want = s[i] + (double)p->bias[i];
                near(p, end, m, i, y, want, bound_of(p, want, 1.5e-6 * z[i]));
            } else if (end == MEDIUM_LOGITS) {
                double want = 3 * tanh(0.5 * s[i] / 3);
                near(p, end, m, i, y, want, 2e-6 + 1.5e-6 * z[i]);
            } else {
                double g = s[2 * i] + (double)p->bias[2 * i],
                       u = s[2 * i + 1] + (double)p->bias[2 * i + 1],
                       want = activated(g, p->N % 256 == 0) * u;
                near(p, end, m, i, y, want,
                     bound_of(p, want,
                              4e-6 * (z[2 * i] * (fabs(u) + 1) + z[2 * i + 1] * (fabs(g) + 1))));
            }
        }
    }
}

static void check_residual(const struct problem *p, const struct results *r)
{
    uint32_t tiles = medium_tiles(&p->weight), tile = p->weight.shape.tile;

    for (uint32_t m = 0; m < ROWS; m++) {
        const float *y = (const float *)r->y + (size_t)m * p->N;
        for (uint32_t i = 0; i < p->N; i++) {
            size_t at = (size_t)m * p->N + i;
            double want = p->sum[at] + (double)p->bias[i] + (double)p->old[at];
            near(p, MEDIUM_RESIDUAL, m, i, (double)y[i], want,
                 2e-7 * fabs(want) + 1e-6 + 1.5e-6 * p->sizes[at]);
            if (r->h) {
                want = (double)y[i] * (double)p->gain[i];
                near(p, MEDIUM_RESIDUAL, m, i,
                     (double)type_value(p->ctx->type, ((const uint16_t *)r->h)[at]), want,
                     bound_of(p, want, 0));
            }
        }
        for (uint32_t k = 0; r->h && k < tiles; k++) {
            double want = 0;
            for (uint32_t i = k * tile; i < p->N && i < (k + 1) * tile; i++)
                want += (double)y[i] * (double)y[i];
            near(p, MEDIUM_RESIDUAL, m, k, (double)r->sums[m * tiles + k], want, 2e-6 * want);
        }
    }
}

/* y[m, n], turned. */
static double turned(const struct problem *p, uint32_t m, uint32_t n, double *slack)
{
    uint32_t D = head_dim(p), e = n % D, rope_dim = D / 8 * 4, even = n & ~1u;
    size_t at = (size_t)m * p->N;
    double a = p->sum[at + even] + (double)p->bias[even],
           b = p->sum[at + even + 1] + (double)p->bias[even + 1];

    *slack = 2e-6 * (p->sizes[at + even] + p->sizes[at + even + 1]);
    if (n / D >= HEADS + KV_HEADS || e >= rope_dim) return n & 1 ? b : a;
    const float *turn = p->rope + ((size_t)p->positions[m] * (rope_dim / 2) + e / 2) * 2;
    double c = (double)turn[0], s = (double)turn[1];
    return n & 1 ? b * c + a * s : a * c - b * s;
}

static void check_qkv(const struct problem *p, const struct results *r)
{
    uint32_t D = head_dim(p);
    uint64_t record = kv_record_elements(D);
    uint16_t *kv = (uint16_t *)r->kv;

    for (uint32_t m = 0; m < ROWS; m++) {
        if (p->positions[m] < 0) continue;
        uint32_t token = (uint32_t)p->slots[m] % KV_BLOCK_TOKENS;
        for (uint32_t n = 0; n < p->N; n++) {
            double slack, want = turned(p, m, n, &slack);
            uint32_t head = n / D, e = n % D,
                     g = head < HEADS + KV_HEADS ? head - HEADS : head - HEADS - KV_HEADS;
            uint16_t *at = (uint16_t *)r->y + (size_t)m * p->N + n;
            if (head >= HEADS)
                at = kv + ((uint64_t)p->slots[m] / KV_BLOCK_TOKENS * KV_HEADS + g) * record +
                     (head < HEADS + KV_HEADS
                          ? token * D + e
                          : KV_BLOCK_TOKENS * D + (token / 8 * D + e) * 8 + token % 8);
            near(p, MEDIUM_QKV, m, n, (double)type_value(p->ctx->type, *at), want,
                 bound_of(p, want, slack));
            if (head >= HEADS) *at = 0xffff; /* as it was */
        }
    }
    for (size_t i = 0; i < r->kv_bytes / 2; i++)
        if (kv[i] != 0xffff) fail_msg("element %zu of the pages was written", i);
}

static void check_parts(const struct problem *p, const struct results *all, int end)
{
    static const uint32_t parts[][2] = {{0, 17}, {31, 33}, {63, 1}, {5, 24}, {0, 63}};
    uint32_t tiles = medium_tiles(&p->weight);

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t first = parts[i][0], M = parts[i][1];
        struct results r = run(p, first, M, end);
        bool same = true;
        for (uint32_t m = 0; m < M; m++) {
            if (end == MEDIUM_QKV && p->positions[first + m] < 0) continue;
            size_t used = end == MEDIUM_QKV ? (size_t)HEADS * head_dim(p) * 2 : r.row_bytes;
            same = same &&
                   memcmp(all->y + (first + m) * r.row_bytes, r.y + m * r.row_bytes, used) == 0;
        }
        if (r.h)
            same = same &&
                   memcmp(all->h + (size_t)first * p->N * 2, r.h, (size_t)M * p->N * 2) == 0 &&
                   memcmp(all->sums + (size_t)first * tiles, r.sums, (size_t)M * tiles * 4) == 0;
        if (!same)
            fail_msg("[%u, %u] cut %u/%u/%u end %d: rows %u.. of %u have other bytes alone", p->N,
                     p->K, p->weight.shape.tile, p->weight.shape.splits, p->weight.shape.share, end,
                     first, M);
        drop_results(&r);
    }
}

static void check_end(const struct problem *p, int end, bool parts)
{
    struct results all = run(p, 0, ROWS, end), again = run(p, 0, ROWS, end);

    EXPECT_TRUE(end == MEDIUM_QKV || memcmp(all.y, again.y, ROWS * all.row_bytes) == 0);
    if (all.kv) EXPECT_TRUE(memcmp(all.kv, again.kv, all.kv_bytes) == 0);
    if (parts) check_parts(p, &all, end);
    if (end == MEDIUM_RESIDUAL)
        check_residual(p, &all);
    else if (end == MEDIUM_QKV)
        check_qkv(p, &all);
    else
        check_plain(p, &all, end);
    drop_results(&all), drop_results(&again);
}

static const struct medium_shape by_rule = {0, 0, 0};

/* False: there is no code for this device. */
static bool product_case(enum kernel_type type, uint32_t N, uint32_t K, bool norm,
                         const struct medium_shape *shapes, uint32_t count)
{
    struct kernel_context ctx;
    struct problem p;

    if (!gpu_begin(&ctx, type)) {
        print_message("skipped: no CUDA device (%s)\n", gpu_reason());
        return false;
    }
    if (!medium_gemm_fits(&ctx, ROWS, N, K)) {
        print_message("skipped: code for sm_90a does not run here\n");
        gpu_end(&ctx);
        return false;
    }
    make(&p, &ctx, N, K, norm);
    for (uint32_t i = 0; i < count; i++) {
        const struct medium_shape *shape = shapes[i].tile ? &shapes[i] : NULL;
        EXPECT_CUDA(medium_weight_init(&p.weight, &ctx, p.dW, N, K, shape));
        for (int end = 0; end < ENDS; end++)
            check_end(&p, end, i == 0 || i == count - 1);
    }
    drop(&p);
    gpu_end(&ctx);
    return true;
}

TEST(every_cut_gives_what_float64_gives_in_any_batch)
{
    static const uint32_t cuts[][2] = {{1, 1}, {2, 1}, {3, 2}, {8, 1}, {4, 1}, {2, 4}, {1, 8}};
    static const struct medium_shape few[] = {{64, 2, 1},  {224, 5, 1}, {256, 1, 1},
                                              {256, 4, 2}, {160, 3, 1}, {128, 1, 4}};
    static const uint32_t tiles[] = {64, 128, 144, 160, 208, 224, 256};
    struct medium_shape shapes[49];

    if (gpu_small()) { /* each tile and each cut once */
        for (uint32_t i = 0; i < 7; i++)
            shapes[i] = (struct medium_shape){tiles[i], cuts[i][0], cuts[i][1]};
        if (!product_case(KERNEL_BF16, 480, 512, true, shapes, 7)) skip();
        return;
    }
    for (uint32_t i = 0; i < 49; i++)
        shapes[i] = (struct medium_shape){tiles[i / 7], cuts[i % 7][0], cuts[i % 7][1]};
    if (!product_case(KERNEL_BF16, 960, 576, true, shapes, 49)) skip();
    product_case(KERNEL_F16, 960, 576, true, shapes, 49);
    product_case(KERNEL_BF16, 1024, 320, false, few, 6);
    product_case(KERNEL_F16, 1024, 320, false, few, 6);
}

TEST(more_tiles_than_the_device_has_blocks_run_one_behind_the_other)
{
    static const struct medium_shape shapes[] = {
        {64, 1, 1}, {64, 1, 4}, {64, 2, 1}, {64, 1, 2}, {0, 0, 0}};

    if (!product_case(KERNEL_BF16, 64 * 290, 128, true, shapes, gpu_small() ? 1 : 5)) skip();
    if (!gpu_small()) product_case(KERNEL_F16, 64 * 290, 64, false, shapes, 2);
}

TEST(the_cut_by_rule_runs)
{
    static const uint32_t sizes[][2] = {
        {64, 64}, {576, 576}, {256, 4096}, {3072, 576}, {64, 14336}};

    for (size_t i = 0; i < (gpu_small() ? 2 : sizeof sizes / sizeof *sizes); i++)
        if (!product_case(i % 2 ? KERNEL_F16 : KERNEL_BF16, sizes[i][0], sizes[i][1], i % 2 == 0,
                          &by_rule, 1))
            skip();
}

TEST(what_does_not_fit_is_refused)
{
    NEED_GPU(KERNEL_BF16);
    struct medium_weight w;
    struct medium_args a = {.weight = &w, .M = MEDIUM_ROWS_MAX + 1, .x_stride = 64};
    static const struct medium_shape wide = {64, 2, 1}, odd = {72, 1, 1};
    void *W = gpu_zeroed(128 * 128 * 2);

    EXPECT_TRUE(medium_weight_init(&w, &ctx, W, 128, 100, NULL) == cudaErrorInvalidValue);
    EXPECT_TRUE(medium_weight_init(&w, &ctx, W, 12, 64, NULL) == cudaErrorInvalidValue);
    EXPECT_TRUE(medium_weight_init(&w, &ctx, W, 128, 64, &wide) == cudaErrorInvalidValue);
    if (medium_gemm_fits(&ctx, 1, 128, 64)) {
        EXPECT_CUDA(medium_weight_init(&w, &ctx, W, 128, 64, &odd));
        EXPECT_TRUE(medium_gemm(&ctx, &a) == cudaErrorInvalidValue);
        a.M = 4;
        EXPECT_TRUE(medium_gemm(&ctx, &a) == cudaErrorInvalidValue);
    }
    gpu_end(&ctx);
}
