/* cuda_bench_kernels.c - each kernel alone, in a graph under programmatic dependent launch, over buffers that are rotated so
 * that none is found in L2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "bandwidth.h"
#include "bench/cuda_bench_parts.h"
#include "device/cuda/cuda_gemm.h"
#include "device/cuda/cuda_layout.h"
#include "kv_layout.h"
#include "medium_gemm.h"
#include "sample.h"
#include "skinny_gemm.h"

enum { COLD_BYTES = 512 << 20, ITEMS_MAX = 64 };

struct kernel_bench {
    struct kernel_context *ctx;
    const struct cuda_limits *limits;
    const struct cuda_bench_options *o;
    char *pool; /* COLD memory: weights or KV */
    uint64_t pool_bytes;
    char *small; /* activations, 256 MiB */
};

static void report(const struct kernel_bench *b, const char *name, double us, double bytes,
                   double flop)
{
    if (us < 0) exit(1); /* the error is printed; after it no launch works */
    double gb_s = bytes / us * 1e-3, tflop_s = flop / us * 1e-6;

    printf("{\"bench\": \"kernel\", \"name\": \"%s\", \"us\": %.2f", name, us);
    fprintf(stderr, "%-34s %9.2f us", name, us);
    if (bytes > 0) {
        printf(", \"gb_s\": %.0f, \"share_of_read\": %.3f", gb_s, gb_s / b->limits->read_gb_s);
        fprintf(stderr, "  %6.0f GB/s %5.2f of read", gb_s, gb_s / b->limits->read_gb_s);
    }
    if (flop > 0) {
        printf(", \"tflop_s\": %.0f, \"share_of_products\": %.3f", tflop_s,
               tflop_s / b->limits->product_tflop_s);
        fprintf(stderr, "  %6.0f TFLOP/s %5.2f of products", tflop_s,
                tflop_s / b->limits->product_tflop_s);
    }
    printf("}\n");
    fprintf(stderr, "\n");
}

/* --- skinny products --- */

struct skinny_job {
    struct kernel_bench *b;
    struct skinny_weight weights[ITEMS_MAX];
    uint32_t weight_count;
    struct skinny_args args;
};

static cudaError_t skinny_body(void *arg, uint32_t i)
{
    struct skinny_job *j = arg;

    j->args.weight = &j->weights[i % j->weight_count];
    return skinny_gemm(j->b->ctx, &j->args);
}

static void skinny_case(struct kernel_bench *b, const char *what, uint32_t N, uint32_t K,
                        uint32_t M, bool norm, enum skinny_epilogue epilogue)
{
    static struct skinny_job j;
    uint64_t bytes = 2ull * N * K;
    char name[80];

    snprintf(name, sizeof name, "skinny %s %ux%u M %u", what, N, K, M);
    if ((b->o->only && !strstr(name, b->o->only)) || !skinny_gemm_fits(b->ctx, M, K, norm)) return;
    j = (struct skinny_job){.b = b};
    j.weight_count = (uint32_t)(COLD_BYTES / bytes) + 1;
    if (j.weight_count > ITEMS_MAX) j.weight_count = ITEMS_MAX;
    for (uint32_t i = 0; i < j.weight_count; i++)
        skinny_weight_init(&j.weights[i], b->pool + i * bytes, N, K, b->ctx->type);
    j.args = (struct skinny_args){.M = M,
                                  .x = b->small,
                                  .x_stride = K,
                                  .x_cols = K,
                                  .norm_gain = norm ? (float *)(b->small + (64 << 20)) : NULL,
                                  .norm_eps = 1e-5f,
                                  .epilogue = epilogue,
                                  .scale = 1,
                                  .y = b->small + (128 << 20),
                                  .y_stride = N};
    report(b, name,
           bench_graph_us(b->ctx, skinny_body, &j, j.weight_count < 16 ? 16 : j.weight_count),
           (double)bytes, 0);
}

static void skinny_cases(struct kernel_bench *b)
{
    static const uint32_t Ms[] = {1, 4, 8, 16};

    for (size_t i = 0; i < sizeof Ms / sizeof *Ms; i++) {
        skinny_case(b, "8B qkv", 6144, 4096, Ms[i], true, SKINNY_STORE);
        skinny_case(b, "8B o", 4096, 4096, Ms[i], false, SKINNY_RESIDUAL);
        skinny_case(b, "8B gate_up", 28672, 4096, Ms[i], true, SKINNY_GLU);
        skinny_case(b, "8B down", 4096, 14336, Ms[i], false, SKINNY_RESIDUAL);
        skinny_case(b, "8B head", 128256, 4096, Ms[i], true, SKINNY_LOGITS);
        if (Ms[i] == 4) continue;
        skinny_case(b, "135M qkv", 960, 576, Ms[i], true, SKINNY_STORE);
        skinny_case(b, "135M o", 576, 576, Ms[i], false, SKINNY_RESIDUAL);
        skinny_case(b, "135M gate_up", 3072, 576, Ms[i], true, SKINNY_GLU);
        skinny_case(b, "135M down", 576, 1536, Ms[i], false, SKINNY_RESIDUAL);
        skinny_case(b, "135M head", 49152, 576, Ms[i], true, SKINNY_LOGITS);
        skinny_case(b, "33B gate_up", 38400, 7168, Ms[i], true, SKINNY_GLU);
        skinny_case(b, "33B down", 7168, 19200, Ms[i], false, SKINNY_RESIDUAL);
    }
}

/* --- products of the library --- */

struct library_job {
    struct kernel_bench *b;
    struct cuda_gemm *gemm;
    uint32_t id, M, weight_count;
    uint64_t bytes; /* of a weight */
};

static cudaError_t library_body(void *arg, uint32_t i)
{
    struct library_job *j = arg;

    return cuda_gemm_run(j->gemm, j->id, j->b->pool + i % j->weight_count * j->bytes, j->b->small,
                         j->M, j->b->small + (128 << 20), 1, j->b->ctx->stream);
}

/* `shape` of the library for the weights in the pool; false: it has none, which is printed. End with cuda_gemm_close(j->gemm). */
static bool open_library(struct kernel_bench *b, struct library_job *j, uint32_t N, uint32_t K,
                         uint32_t M)
{
    struct cuda_gemm_shape shape = {N, K, K, N, false};
    enum dtype type = b->ctx->type == KERNEL_BF16 ? DTYPE_BF16 : DTYPE_F16;
    const void *weights[8];
    struct error err;

    *j = (struct library_job){.b = b, .M = M, .bytes = 2ull * N * K};
    j->weight_count = (uint32_t)(COLD_BYTES / j->bytes) + 1;
    for (uint32_t i = 0; i < 8; i++)
        weights[i] = b->pool + i % j->weight_count * j->bytes;
    if (!cuda_gemm_open(type, b->small + (256 << 20), 64u << 20, NULL, &j->gemm, &err) &&
        !cuda_gemm_prepare(j->gemm, &shape, weights, 8, b->small, b->small + (128 << 20), M, false,
                           b->ctx->stream, &j->id, &err))
        return true;
    fprintf(stderr, "library %ux%u M %u: %s\n", N, K, M, err.message);
    return false;
}

/* --- products of up to 64 rows --- */

struct medium_job {
    struct kernel_bench *b;
    struct medium_weight weights[ITEMS_MAX];
    uint32_t weight_count;
    struct medium_args args;
};

static cudaError_t medium_body(void *arg, uint32_t i)
{
    struct medium_job *j = arg;

    j->args.weight = &j->weights[i % j->weight_count];
    j->args.next = &j->weights[(i + 1) % j->weight_count];
    return medium_gemm(j->b->ctx, &j->args);
}

/* With each set of trials and, of the same shape but without what is folded into its ends, as the library does it, in turns. */
static void medium_ways(struct kernel_bench *b, const char *name, struct medium_job *j, uint32_t N,
                        uint32_t K)
{
    struct bench_way ways[BENCH_WAYS_MAX];
    uint32_t trials[BENCH_WAYS_MAX], count = bench_numbers(b->o->trials, trials);
    struct library_job library;
    char full[120];

    if (count == BENCH_WAYS_MAX) count--;
    for (uint32_t i = 0; i < count; i++)
        ways[i] = (struct bench_way){medium_body, j, trials[i], -1};
    bool peer = open_library(b, &library, N, K, j->args.M);
    ways[count] = (struct bench_way){library_body, &library, 0, -1};
    if (!bench_ways_us(b->ctx, ways, count + peer, j->weight_count < 16 ? 16 : j->weight_count))
        exit(1); /* the error is printed; after it no launch works */
    for (uint32_t i = 0; i < count; i++) {
        snprintf(full, sizeof full, "%s trial %u", name, trials[i]);
        report(b, count > 1 ? full : name, ways[i].us, 2.0 * N * K, 0);
    }
    snprintf(full, sizeof full, "%s, cuBLASLt", name);
    if (peer) report(b, full, ways[count].us, 2.0 * N * K, 0);
    cuda_gemm_close(library.gemm);
}

/* shape: NULL: the one that the rule picks, beside the library. */
static void medium_case(struct kernel_bench *b, const char *what, uint32_t N, uint32_t K,
                        uint32_t M, enum medium_epilogue epilogue, const struct medium_shape *shape)
{
    static struct medium_job j;
    uint64_t bytes = 2ull * N * K;
    struct medium_shape is;
    char name[96];

    if (shape)
        is = *shape;
    else if (!medium_shapes(b->ctx, N, K, &is, 1))
        return;
    snprintf(name, sizeof name, "%s %s %ux%u M %u, %u/%u/%u", shape ? "cut" : "medium", what, N, K,
             M, is.tile, is.splits, is.share);
    if ((b->o->only && !strstr(name, b->o->only)) || !medium_gemm_fits(b->ctx, M, N, K)) return;
    j = (struct medium_job){.b = b};
    j.weight_count = (uint32_t)(COLD_BYTES / bytes) + 1;
    if (j.weight_count > ITEMS_MAX) j.weight_count = ITEMS_MAX;
    for (uint32_t i = 0; i < j.weight_count; i++)
        if (medium_weight_init(&j.weights[i], b->ctx, b->pool + i * bytes, N, K, &is)) return;
    j.args = (struct medium_args){.M = M,
                                  .x = b->small,
                                  .x_stride = K,
                                  .epilogue = epilogue,
                                  .scale = 1,
                                  .y = b->small + (128 << 20),
                                  .y_stride = epilogue == MEDIUM_GLU ? N / 2 : N};
    if (epilogue != MEDIUM_RESIDUAL) {
        j.args.norm_sums = (float *)(b->small + (64 << 20));
        j.args.norm_tiles = 32, j.args.norm_cols = K;
    } else {
        j.args.next_gain = (float *)(b->small + (64 << 20)), j.args.h = b->small + (192 << 20);
        j.args.h_stride = N, j.args.sums = (float *)(b->small + (224 << 20));
    }
    if (shape)
        report(b, name,
               bench_graph_us(b->ctx, medium_body, &j, j.weight_count < 16 ? 16 : j.weight_count),
               (double)bytes, 0);
    else
        medium_ways(b, name, &j, N, K);
}

static const struct medium_product {
    const char *what;
    uint32_t N, K;
    enum medium_epilogue epilogue;
} medium_products[] = {
    {"8B qkv", 6144, 4096, MEDIUM_STORE},     {"8B o", 4096, 4096, MEDIUM_RESIDUAL},
    {"8B gate_up", 28672, 4096, MEDIUM_GLU},  {"8B down", 4096, 14336, MEDIUM_RESIDUAL},
    {"8B head", 128256, 4096, MEDIUM_LOGITS}, {"7B qkv", 4608, 3584, MEDIUM_STORE},
    {"7B gate_up", 37888, 3584, MEDIUM_GLU},  {"7B down", 3584, 18944, MEDIUM_RESIDUAL},
    {"33B gate_up", 38400, 7168, MEDIUM_GLU}, {"33B down", 7168, 19200, MEDIUM_RESIDUAL},
    {"135M qkv", 960, 576, MEDIUM_STORE},     {"135M o", 576, 576, MEDIUM_RESIDUAL},
    {"135M gate_up", 3072, 576, MEDIUM_GLU},  {"135M down", 576, 1536, MEDIUM_RESIDUAL},
    {"135M head", 49152, 576, MEDIUM_LOGITS},
};

static void medium_cases(struct kernel_bench *b)
{
    for (size_t i = 0; i < sizeof medium_products / sizeof *medium_products; i++) {
        const struct medium_product *p = &medium_products[i];
        for (uint32_t M = 16; M <= 64; M *= 2)
            medium_case(b, p->what, p->N, p->K, M, p->epilogue, NULL);
    }
}

/* Every cut, where `--only cut...` asks for it: what the rule is made from. */
static void cut_cases(struct kernel_bench *b)
{
    for (size_t i = 0; i < sizeof medium_products / sizeof *medium_products; i++)
        for (uint32_t n = 0; n < 7 * CLUSTER_MAX * 3; n++) {
            const struct medium_product *p = &medium_products[i];
            struct medium_shape shape = {64 + n / 3 / CLUSTER_MAX * 32, n / 3 % CLUSTER_MAX + 1,
                                         1u << n % 3};
            uint32_t blocks = (p->N + shape.tile - 1) / shape.tile * shape.splits;
            if (shape.splits * shape.share <= CLUSTER_MAX && blocks >= 90 &&
                (blocks <= 140 || shape.splits == 1))
                medium_case(b, p->what, p->N, p->K, 64, p->epilogue, &shape);
        }
}

/* --- products of the library alone --- */

static void library_case(struct kernel_bench *b, const char *what, uint32_t N, uint32_t K,
                         uint32_t M)
{
    struct library_job j;
    char name[80];

    snprintf(name, sizeof name, "library %s %ux%u M %u", what, N, K, M);
    if (b->o->only && !strstr(name, b->o->only)) return;
    if (open_library(b, &j, N, K, M))
        report(b, name, bench_graph_us(b->ctx, library_body, &j, j.weight_count), (double)j.bytes,
               2.0 * N * K * M);
    cuda_gemm_close(j.gemm);
}

static void library_cases(struct kernel_bench *b)
{
    static const uint32_t Ms[] = {32, 64, 256, 2048};

    for (size_t i = 0; i < sizeof Ms / sizeof *Ms; i++) {
        library_case(b, "8B qkv", 6144, 4096, Ms[i]);
        library_case(b, "8B o", 4096, 4096, Ms[i]);
        library_case(b, "8B gate_up", 28672, 4096, Ms[i]);
        library_case(b, "8B down", 4096, 14336, Ms[i]);
    }
}

/* --- attention --- */

struct attention_job {
    struct kernel_bench *b;
    struct attention_args args;
    struct decode_scratch scratch;
    struct prefill_tile *tiles;
    uint32_t tile_count;
    uint64_t set_ints; /* table ints of one set of blocks */
    uint32_t sets;
    const int32_t *tables;
};

static cudaError_t decode_body(void *arg, uint32_t i)
{
    struct attention_job *j = arg;

    j->args.tables = j->tables + (i % j->sets) * j->set_ints;
    return paged_decode(j->b->ctx, &j->args, &j->scratch);
}

static cudaError_t prefill_body(void *arg, uint32_t i)
{
    struct attention_job *j = arg;

    (void)i;
    return prefill_attention(j->b->ctx, &j->args, j->tiles, j->tile_count);
}

/* Of a row: all alike, or mixed: from context / rows to context, in no order. */
static uint32_t row_tokens(uint32_t rows, uint32_t context, bool mixed, uint32_t row)
{
    return mixed ? (uint32_t)((uint64_t)context * (row * 37 % rows + 1) / rows) : context;
}

/* Positions, slots and tables of `rows` sequences of up to `context` tokens, blocks shuffled, `sets` times over. */
static bool make_tables(struct attention_job *j, uint32_t rows, uint32_t context, bool mixed,
                        char *at)
{
    uint32_t per_row = (context + 15) / 16, state = 99;
    uint64_t blocks = (uint64_t)rows * per_row * j->sets;
    int32_t *host = malloc((blocks + 2 * rows) * sizeof *host);

    if (!host) return false;
    for (uint64_t i = 0; i < blocks; i++)
        host[i] = (int32_t)i;
    for (uint64_t i = blocks; i > 1; i--) {
        state = state * 1664525u + 1013904223u;
        uint64_t k = (uint64_t)state * i >> 32;
        int32_t kept = host[i - 1];
        host[i - 1] = host[k], host[k] = kept;
    }
    for (uint32_t i = 0; i < rows; i++) {
        host[blocks + i] = (int32_t)row_tokens(rows, context, mixed, i) - 1;
        host[blocks + rows + i] = (int32_t)i;
    }
    cudaMemcpy(at, host, (blocks + 2 * rows) * sizeof *host, cudaMemcpyHostToDevice);
    cudaDeviceSynchronize();
    free(host);
    j->tables = (int32_t *)at, j->set_ints = (uint64_t)rows * per_row;
    j->args.table_stride = per_row;
    j->args.positions = j->tables + blocks, j->args.slots = j->tables + blocks + rows;
    j->args.tables = j->tables;
    return true;
}

static struct attention_args attention_of(const struct kernel_bench *b, uint32_t rows,
                                          uint32_t heads, uint32_t kv_heads, uint32_t D)
{
    return (struct attention_args){.rows = rows,
                                   .heads = heads,
                                   .kv_heads = kv_heads,
                                   .head_dim = D,
                                   .scale = 1 / sqrtf((float)D),
                                   .q = b->small,
                                   .q_stride = heads * D,
                                   .out = b->small + (128 << 20),
                                   .out_stride = heads * D,
                                   .kv = b->pool,
                                   .kv_blocks =
                                       b->pool_bytes / (kv_block_elements(kv_heads, D) * 2)};
}

static void decode_ways(struct kernel_bench *b, const char *name, struct attention_job *j,
                        double bytes)
{
    struct bench_way ways[BENCH_WAYS_MAX];
    uint32_t trials[BENCH_WAYS_MAX], count = bench_numbers(b->o->trials, trials);
    char full[120];

    for (uint32_t i = 0; i < count; i++)
        ways[i] = (struct bench_way){decode_body, j, trials[i], -1};
    if (!bench_ways_us(b->ctx, ways, count, j->sets < 8 ? 8 : j->sets)) exit(1);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(full, sizeof full, "%s trial %u", name, trials[i]);
        report(b, count > 1 ? full : name, ways[i].us, bytes, 0);
    }
}

static void decode_case(struct kernel_bench *b, uint32_t rows, uint32_t context, bool mixed,
                        uint32_t heads, uint32_t kv_heads, uint32_t D)
{
    struct attention_job j = {.b = b, .args = attention_of(b, rows, heads, kv_heads, D)};
    uint64_t set = (uint64_t)rows * ((context + 15) / 16) * kv_block_elements(kv_heads, D) * 2;
    struct device_options options = {0};
    struct device_limits limits = {.context_tokens = context};
    uint32_t splits = cuda_decode_splits(&options, &limits, rows, kv_heads);
    uint64_t tokens = 0;
    char name[80];
    char *partial, *tables;

    snprintf(name, sizeof name, "decode %ux%u heads %u/%u d %u%s", rows, context, heads, kv_heads,
             D, mixed ? " mixed lengths" : "");
    if (b->o->only && !strstr(name, b->o->only)) return;
    j.sets = (uint32_t)(2 * COLD_BYTES / set) + 1;
    if (j.sets > ITEMS_MAX) j.sets = ITEMS_MAX;
    while (j.sets > 1 && j.sets * set > b->pool_bytes)
        j.sets--;
    uint64_t partials = (uint64_t)rows * heads * splits;
    if (cudaMalloc((void **)&partial, partials * (D + 2) * 4 + rows * heads * 4 + 1024)) return;
    if (cudaMalloc((void **)&tables, (uint64_t)(j.sets + 1) * rows * ((context + 15) / 16 + 2) * 4))
        return;
    j.scratch =
        (struct decode_scratch){(float *)partial, (float *)(partial + partials * D * 4),
                                (uint32_t *)(partial + partials * (D + 2) * 4), splits, rows <= 16};
    cudaMemset(j.scratch.counters, 0, rows * heads * 4);
    for (uint32_t i = 0; i < rows; i++)
        tokens += row_tokens(rows, context, mixed, i);
    if (make_tables(&j, rows, context, mixed, tables))
        decode_ways(b, name, &j, 4.0 * (double)tokens * kv_heads * D);
    cudaFree(partial), cudaFree(tables);
}

static void prefill_case(struct kernel_bench *b, uint32_t rows, uint32_t past, uint32_t heads,
                         uint32_t kv_heads, uint32_t D)
{
    struct attention_job j = {.b = b, .args = attention_of(b, rows, heads, kv_heads, D), .sets = 1};
    uint32_t group = heads / kv_heads,
             tiles = (rows * group + PREFILL_TILE_PAIRS - 1) / PREFILL_TILE_PAIRS;
    struct prefill_tile *host = malloc(tiles * sizeof *host);
    char name[80], *tables;

    snprintf(name, sizeof name, "prefill %u+%u heads %u/%u d %u", past, rows, heads, kv_heads, D);
    if (!host || (b->o->only && !strstr(name, b->o->only))) {
        free(host);
        return;
    }
    for (uint32_t i = 0; i < tiles; i++) /* longest first */
        host[i] = (struct prefill_tile){0, (int32_t)rows, (int32_t)past, 0,
                                        (int32_t)((tiles - 1 - i) * PREFILL_TILE_PAIRS)};
    if (!cudaMalloc((void **)&tables, (1u << 20)) &&
        !cudaMalloc((void **)&j.tiles, tiles * sizeof *host)) {
        cudaMemcpy(j.tiles, host, tiles * sizeof *host, cudaMemcpyHostToDevice);
        j.tile_count = tiles;
        if (make_tables(&j, 1, rows + past, false, tables))
            report(b, name, bench_graph_us(b->ctx, prefill_body, &j, 4), 0,
                   4.0 * heads * D * ((double)rows * past + 0.5 * rows * rows));
        cudaFree(tables), cudaFree(j.tiles);
    }
    free(host);
}

/* --- sampling --- */

struct sample_job {
    struct kernel_bench *b;
    struct sample_args args;
};

static cudaError_t sample_body(void *arg, uint32_t i)
{
    struct sample_job *j = arg;

    (void)i;
    return sample_rows(j->b->ctx, &j->args);
}

static void sample_case(struct kernel_bench *b, const char *what, uint32_t V, uint32_t rows,
                        struct slot_params params)
{
    struct sample_job j = {.b = b};
    struct sample_row *in = calloc(rows, sizeof *in);
    struct slot_params *slots = calloc(rows, sizeof *slots);
    float *logits = malloc((size_t)rows * V * sizeof *logits);
    uint32_t chunks = (V + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK, state = 5;
    char name[80], *at = b->small;

    snprintf(name, sizeof name, "sample %s V %u rows %u", what, V, rows);
    if (in && slots && logits && !(b->o->only && !strstr(name, b->o->only))) {
        for (size_t i = 0; i < (size_t)rows * V; i++) {
            float sum = 0; /* about normal, sigma 2.5, as heads give */
            for (int k = 0; k < 4; k++)
                state = state * 1664525u + 1013904223u, sum += (float)(state >> 8) * 0x1p-24f;
            logits[i] = (sum - 2) * 4.3f;
        }
        for (uint32_t i = 0; i < rows; i++)
            in[i] = (struct sample_row){(int32_t)i, i, -1, 0, 0, -1}, slots[i] = params,
            slots[i].slot = i;
        uint64_t logit_bytes = (uint64_t)rows * V * 4;
        cudaMemcpy(at, logits, logit_bytes, cudaMemcpyHostToDevice);
        char *more = at + 2 * logit_bytes;
        cudaMemset(more, 0, 16 << 20);
        cudaMemcpy(more, in, rows * sizeof *in, cudaMemcpyHostToDevice);
        cudaMemcpy(more + (1 << 20), slots, rows * sizeof *slots, cudaMemcpyHostToDevice);
        cudaDeviceSynchronize();
        j.args = (struct sample_args){.rows = rows,
                                      .in = (struct sample_row *)more,
                                      .logits = (float *)at,
                                      .stride = V,
                                      .vocab_rows = V,
                                      .vocab_tokens = V,
                                      .state = {.params = (struct slot_params *)(more + (1 << 20)),
                                                .last = (int32_t *)(more + (2 << 20)),
                                                .slots = rows,
                                                .vocab = V},
                                      .work = (float *)(at + logit_bytes),
                                      .partials = (struct sample_partial *)(more + (3 << 20)),
                                      .counters = (uint32_t *)(more + (5 << 20)),
                                      .out = (struct sample_output *)(more + (6 << 20)),
                                      .tops = (struct sample_top *)(more + (7 << 20)),
                                      .top_stride = SAMPLE_TOPS_MAX};
        (void)chunks;
        report(b, name, bench_graph_us(b->ctx, sample_body, &j, 8), 0, 0);
    }
    free(in), free(slots), free(logits);
}

enum status bench_kernels(struct kernel_context *ctx, const struct cuda_limits *limits,
                          const struct cuda_bench_options *o, struct error *err)
{
    struct kernel_bench b = {.ctx = ctx, .limits = limits, .o = o, .pool_bytes = 5ull << 30};
    cudaError_t e = cudaMalloc((void **)&b.pool, b.pool_bytes);

    if (!e) e = cudaMalloc((void **)&b.small, 512u << 20);
    if (!e) e = bandwidth_fill(ctx, b.pool, b.pool_bytes, 3);
    if (!e) e = bandwidth_fill(ctx, b.small, 512u << 20, 4);
    if (!e) e = cudaStreamSynchronize(ctx->stream);
    if (e) return error_set(err, STATUS_DEVICE, "kernels: %s", cudaGetErrorString(e));
    skinny_cases(&b);
    medium_cases(&b);
    if (o->only && !strncmp(o->only, "cut", 3)) cut_cases(&b);
    library_cases(&b);
    static const uint32_t shapes[][2] = {{1, 1024},  {1, 2048},  {1, 8192},  {1, 32768},
                                         {8, 2048},  {16, 1024}, {64, 1024}, {64, 2048},
                                         {64, 4096}, {64, 8192}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        decode_case(&b, shapes[i][0], shapes[i][1], false, 32, 8, 128);
    decode_case(&b, 48, 8192, true, 32, 8, 128);
    decode_case(&b, 1, 1024, false, 9, 3, 64);
    decode_case(&b, 1, 8192, false, 28, 4, 128);
    prefill_case(&b, 512, 0, 32, 8, 128);
    prefill_case(&b, 1024, 0, 32, 8, 128);
    prefill_case(&b, 2048, 0, 32, 8, 128);
    prefill_case(&b, 2048, 6144, 32, 8, 128);
    prefill_case(&b, 8192, 0, 32, 8, 128);
    prefill_case(&b, 16384, 0, 32, 8, 128);
    prefill_case(&b, 2048, 0, 28, 4, 128);
    prefill_case(&b, 2048, 0, 9, 3, 64);
    prefill_case(&b, 2048, 2048, 16, 8, 256);
    struct slot_params greedy = {.top_p = 1, .min_p_log = -INFINITY, .repetition_penalty = 1};
    struct slot_params full = {.temperature = 0.8f,
                               .top_p = 0.95f,
                               .top_k = 50,
                               .min_p_log = -INFINITY,
                               .repetition_penalty = 1,
                               .seed = 7};
    struct slot_params plain = {
        .temperature = 1, .top_p = 1, .min_p_log = -INFINITY, .repetition_penalty = 1};
    struct slot_params nucleus = full;
    nucleus.top_k = 0;
    for (uint32_t rows = 1; rows <= 256; rows *= rows == 1 ? 64 : 4) {
        sample_case(&b, "greedy", 128256, rows, greedy);
        sample_case(&b, "temperature", 128256, rows, plain);
        sample_case(&b, "top-k top-p", 128256, rows, full);
        sample_case(&b, "top-p", 128256, rows, nucleus);
    }
    cudaFree(b.pool), cudaFree(b.small);
    return STATUS_OK;
}
