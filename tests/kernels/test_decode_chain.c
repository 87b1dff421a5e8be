/* test_decode_chain.c - all layers in one launch give the bytes that the launches of each layer give, in the residual and in
 * the pages.
 * Method: made-up weights, gains and pages of a small model with three layers; positions at the edges of pages, groups and
 * splits, the longest one and a padding row; both number types. What lies past a row's position in its last page is NaN,
 * and so is every page that no table names. The kernels compared with (skinny_gemm, paged_decode) are held against float64
 * by test_skinny_gemm and test_attention. A second run, whose exchanges have other numbers, gives the same bytes. */
#include <math.h>
#include <stdlib.h>

#include "attention.h"
#include "decode_chain.h"
#include "gpu.h"
#include "kv_layout.h"
#include "skinny_gemm.h"

enum {
    LAYERS = 3,
    HIDDEN = 576,
    FFN = 1536,
    HEADS = 9,
    KV = 3,
    D = 64,
    QKV = (HEADS + 2 * KV) * D,
    BLOCKS = DECODE_CHAIN_TOKENS_MAX / KV_BLOCK_TOKENS + 9,
    SLOT = 1, /* of two */
    STRIDE = DECODE_CHAIN_TOKENS_MAX / KV_BLOCK_TOKENS
};

static const float EPS = 1e-5f, SCALE = 0.125f;
static const uint64_t LAYER_ELEMENTS = (uint64_t)BLOCKS * KV * 2 * KV_BLOCK_TOKENS * D;

struct matrices { /* of a layer, as they lie on the device */
    uint16_t attn_in[QKV * HIDDEN], attn_out[HIDDEN * HEADS * D], ffn_in[2 * FFN * HIDDEN],
        ffn_out[HIDDEN * FFN];
    float attn_gain[HIDDEN], ffn_gain[HIDDEN];
};

struct model {
    struct kernel_context *ctx;
    struct matrices *layers; /* device, [LAYERS] */
    struct skinny_weight weights[LAYERS][4];
    float2 *rope;
    int32_t *positions, *kv_slots, *slots, *tables;
    void *q, *attn, *ffn, *link;
    struct decode_scratch scratch;
};

struct outcome {
    float x[HIDDEN];
    uint16_t *kv; /* [LAYERS * LAYER_ELEMENTS] */
};

static void fill(enum kernel_type type, uint16_t *to, size_t n, float amplitude)
{
    uint16_t *from = random_values(type, n, amplitude);

    memcpy(to, from, n * sizeof *to);
    free(from);
}

static void make_weights(struct model *m)
{
    struct matrices *host = calloc(LAYERS, sizeof *host);
    enum kernel_type type = m->ctx->type;

    for (int l = 0; l < LAYERS; l++) {
        fill(type, host[l].attn_in, QKV * HIDDEN, 0.08f);
        fill(type, host[l].attn_out, HIDDEN * HEADS * D, 0.08f);
        fill(type, host[l].ffn_in, 2 * FFN * HIDDEN, 0.08f);
        fill(type, host[l].ffn_out, HIDDEN * FFN, 0.04f);
        for (int i = 0; i < HIDDEN; i++)
            host[l].attn_gain[i] = 1 + 0.01f * (float)(i % 40),
            host[l].ffn_gain[i] = 1 - 0.01f * (float)(i % 30);
    }
    m->layers = gpu_upload(host, LAYERS * sizeof *host);
    free(host);
    for (int l = 0; l < LAYERS; l++) {
        struct matrices *w = &m->layers[l];
        EXPECT_CUDA(skinny_weight_init(&m->weights[l][0], w->attn_in, QKV, HIDDEN, type));
        EXPECT_CUDA(skinny_weight_init(&m->weights[l][1], w->attn_out, HIDDEN, HEADS * D, type));
        EXPECT_CUDA(skinny_weight_init(&m->weights[l][2], w->ffn_in, 2 * FFN, HIDDEN, type));
        EXPECT_CUDA(skinny_weight_init(&m->weights[l][3], w->ffn_out, HIDDEN, FFN, type));
    }
}

static void make_model(struct model *m, struct kernel_context *ctx)
{
    float2 *rope = malloc(DECODE_CHAIN_TOKENS_MAX * (D / 2) * sizeof *rope);

    *m = (struct model){.ctx = ctx};
    make_weights(m);
    for (int p = 0; p < DECODE_CHAIN_TOKENS_MAX; p++)
        for (int i = 0; i < D / 2; i++) {
            float angle = (float)p * powf(10000, -(float)i / (D / 2));
            rope[p * (D / 2) + i] = (float2){cosf(angle), sinf(angle)};
        }
    m->rope = gpu_upload(rope, DECODE_CHAIN_TOKENS_MAX * (D / 2) * sizeof *rope);
    free(rope);
    m->q = gpu_zeroed(HEADS * D * 2);
    m->attn = gpu_zeroed(HEADS * D * 2);
    m->ffn = gpu_zeroed(FFN * 2);
    m->link = gpu_zeroed(DECODE_CHAIN_LINK_BYTES);
    /* the last exchange of the first run has number 0 */
    const uint32_t number = UINT32_MAX - 2 * LAYERS + 1;
    EXPECT_CUDA(cudaMemcpy(m->link, &number, sizeof number, cudaMemcpyHostToDevice));
    m->scratch =
        (struct decode_scratch){gpu_poisoned(HEADS * 32 * D * 4), gpu_poisoned(HEADS * 32 * 2 * 4),
                                gpu_zeroed(HEADS * 4), 32, true};
}

/* Pages in a shuffled table; returns the host's pool. */
static uint16_t *make_row(struct model *m, int32_t position)
{
    int32_t table[2][STRIDE], order[BLOCKS], slot = SLOT, kv_slot = -1;
    uint16_t *kv = malloc(LAYERS * LAYER_ELEMENTS * sizeof *kv);
    uint64_t record = 2ull * KV_BLOCK_TOKENS * D;

    memset(kv, 0xff, LAYERS * LAYER_ELEMENTS * sizeof *kv);
    memset(table, 0, sizeof table);
    for (int i = 0; i < BLOCKS; i++)
        order[i] = i;
    for (int i = BLOCKS - 1; i > 0; i--) {
        int j = (int)(test_rand() % (uint32_t)(i + 1)), kept = order[i];
        order[i] = order[j], order[j] = kept;
    }
    for (int b = 0; b <= position / KV_BLOCK_TOKENS && position >= 0; b++) {
        table[SLOT][b] = order[b];
        for (int l = 0; l < LAYERS; l++)
            fill(m->ctx->type, kv + l * LAYER_ELEMENTS + (uint64_t)order[b] * KV * record,
                 KV * record, 1.5f);
    }
    for (int t = position; position >= 0 && t < (position / 16 + 1) * 16; t++)
        for (uint64_t g = 0; g < (uint64_t)LAYERS * KV; g++) {
            uint16_t *at = kv + g / KV * LAYER_ELEMENTS +
                           ((uint64_t)table[SLOT][t / 16] * KV + g % KV) * record;
            for (int e = 0; e < D; e++)
                at[t % 16 * D + e] = at[16 * D + (t % 16 / 8 * D + e) * 8 + t % 8] = 0xffff;
        }
    if (position >= 0) kv_slot = table[SLOT][position / 16] * 16 + position % 16;
    m->positions = gpu_upload(&position, 4);
    m->kv_slots = gpu_upload(&kv_slot, 4);
    m->slots = gpu_upload(&slot, 4);
    m->tables = gpu_upload(table, sizeof table);
    return kv;
}

static struct skinny_args product(const struct model *m, int layer, int which, const void *x,
                                  uint32_t cols, const float *gain)
{
    return (struct skinny_args){.weight = &m->weights[layer][which],
                                .M = 1,
                                .x = x,
                                .x_stride = cols,
                                .x_cols = cols,
                                .norm_gain = gain,
                                .norm_eps = EPS,
                                .scale = 1};
}

static void run_launches(const struct model *m, float *x, uint16_t *kv)
{
    for (int l = 0; l < LAYERS; l++) {
        uint16_t *pool = kv + l * LAYER_ELEMENTS;
        struct skinny_args a = product(m, l, 0, x, HIDDEN, m->layers[l].attn_gain);
        a.epilogue = SKINNY_QKV, a.y = m->q, a.y_stride = HEADS * D;
        a.qkv = (struct skinny_qkv){HEADS, KV, D, D, m->rope, m->positions, m->kv_slots, pool};
        EXPECT_CUDA(skinny_gemm(m->ctx, &a));
        struct attention_args t = {.rows = 1,
                                   .heads = HEADS,
                                   .kv_heads = KV,
                                   .head_dim = D,
                                   .scale = SCALE,
                                   .q = m->q,
                                   .q_stride = HEADS * D,
                                   .out = m->attn,
                                   .out_stride = HEADS * D,
                                   .kv = pool,
                                   .kv_blocks = BLOCKS,
                                   .positions = m->positions,
                                   .slots = m->slots,
                                   .tables = m->tables,
                                   .table_stride = STRIDE};
        EXPECT_CUDA(paged_decode(m->ctx, &t, &m->scratch));
        a = product(m, l, 1, m->attn, HEADS * D, NULL);
        a.epilogue = SKINNY_RESIDUAL, a.y = x, a.y_stride = HIDDEN;
        EXPECT_CUDA(skinny_gemm(m->ctx, &a));
        a = product(m, l, 2, x, HIDDEN, m->layers[l].ffn_gain);
        a.epilogue = SKINNY_GLU, a.y = m->ffn, a.y_stride = FFN;
        EXPECT_CUDA(skinny_gemm(m->ctx, &a));
        a = product(m, l, 3, m->ffn, FFN, NULL);
        a.epilogue = SKINNY_RESIDUAL, a.y = x, a.y_stride = HIDDEN;
        EXPECT_CUDA(skinny_gemm(m->ctx, &a));
    }
}

static const struct decode_chain_shape shape = {LAYERS, HIDDEN, FFN, HEADS, KV, D, D};

static void run_chain(const struct model *m, float *x, uint16_t *kv)
{
    struct matrices *w = m->layers;
    struct decode_chain_weights weights = {w->attn_in,   w->attn_out, w->ffn_in, w->ffn_out,
                                           w->attn_gain, w->ffn_gain, sizeof *w};
    struct decode_chain chain;

    EXPECT_CUDA(decode_chain_init(&chain, &shape, &weights, m->ctx->type));
    struct decode_chain_args a = {.chain = &chain,
                                  .x = x,
                                  .link = m->link,
                                  .attn_eps = EPS,
                                  .ffn_eps = EPS,
                                  .scale = SCALE,
                                  .rope = m->rope,
                                  .kv = kv,
                                  .kv_layer_bytes = LAYER_ELEMENTS * sizeof *kv,
                                  .position = m->positions,
                                  .kv_slot = m->kv_slots,
                                  .slot = m->slots,
                                  .tables = m->tables,
                                  .table_stride = STRIDE};
    EXPECT_CUDA(decode_chain_run(m->ctx, &a));
}

static struct outcome run(const struct model *m, bool chain, const float *x, const uint16_t *kv)
{
    size_t bytes = LAYERS * LAYER_ELEMENTS * sizeof *kv;
    float *dx = gpu_upload(x, HIDDEN * sizeof *x);
    uint16_t *dkv = gpu_upload(kv, bytes);
    struct outcome o = {.kv = malloc(bytes)};

    (chain ? run_chain : run_launches)(m, dx, dkv);
    gpu_download(m->ctx, dx, o.x, sizeof o.x);
    gpu_download(m->ctx, dkv, o.kv, bytes);
    return o;
}

static void same_floats(const float *want, const float *got, int32_t position)
{
    int count = 0, first = -1;

    for (int i = 0; i < HIDDEN; i++)
        if (memcmp(&want[i], &got[i], sizeof *want) && !count++) first = i;
    if (count)
        fail_msg("position %d: %d of %d other bytes: x[%d] is %.9g, not %.9g", position, count,
                 HIDDEN, first, got[first], want[first]);
}

static void check(struct kernel_context *ctx, int32_t position)
{
    struct model m;
    struct outcome want, got, again;
    size_t bytes = LAYERS * LAYER_ELEMENTS * sizeof(uint16_t);

    make_model(&m, ctx);
    float *x = random_floats(HIDDEN, 1);
    uint16_t *kv = make_row(&m, position);
    want = run(&m, false, x, kv), got = run(&m, true, x, kv), again = run(&m, true, x, kv);
    if (position >= 0) {
        for (int i = 0; i < HIDDEN; i++)
            if (!isfinite(want.x[i])) fail_msg("position %d: x[%d] is not finite", position, i);
        same_floats(want.x, got.x, position);
        if (memcmp(got.x, again.x, sizeof got.x)) fail_msg("position %d: not repeated", position);
        EXPECT_TRUE(memcmp(kv, got.kv, bytes) != 0); /* the row has been written */
    }
    if (memcmp(want.kv, got.kv, bytes)) fail_msg("position %d: other pages", position);
    free(want.kv), free(got.kv), free(again.kv), free(kv), free(x);
}

static void check_type(enum kernel_type type)
{
    static const int32_t positions[] = {
        0, 7, 15, 16, 31, 32, 127, 128, 1000, 1023, DECODE_CHAIN_TOKENS_MAX - 1, -1};

    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        NEED_GPU(type);
        if (!decode_chain_fits(&ctx, &shape)) {
            gpu_end(&ctx);
            skip();
        }
        check(&ctx, positions[i]);
        gpu_end(&ctx);
    }
}

TEST(one_launch_gives_the_bytes_of_the_launches_of_each_layer_in_bf16)
{
    check_type(KERNEL_BF16);
}

TEST(one_launch_gives_the_bytes_of_the_launches_of_each_layer_in_f16)
{
    check_type(KERNEL_F16);
}

TEST(other_shapes_do_not_fit)
{
    NEED_GPU(KERNEL_BF16);
    struct decode_chain_shape other = shape;

    other.hidden += 64;
    EXPECT_TRUE(!decode_chain_fits(&ctx, &other));
    other = shape, other.kv_heads = HEADS;
    EXPECT_TRUE(!decode_chain_fits(&ctx, &other));
    other = shape, other.head_dim = 128;
    EXPECT_TRUE(!decode_chain_fits(&ctx, &other));
    other = shape, other.layers = 0;
    EXPECT_TRUE(!decode_chain_fits(&ctx, &other));
    gpu_end(&ctx);
}
