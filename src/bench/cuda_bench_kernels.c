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
    char *small;                /* activations, 256 MiB */
    struct kernel_names *names; /* not NULL: cases are counted, none is run */
};

/* Of all kernels here those that are asked for, and of each kind (its first word) one name. */
struct kernel_names {
    uint32_t wanted;
    char kind[16], some[400];
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
    fprintf(stderr, "\n");
    printf("}\n");
}

static void note_name(struct kernel_names *names, const char *name)
{
    size_t kind = strcspn(name, " "), at = strlen(names->some);

    if (strlen(names->kind) == kind && !strncmp(names->kind, name, kind)) return;
    snprintf(names->kind, sizeof names->kind, "%.*s", (int)kind, name);
    snprintf(names->some + at, sizeof names->some - at, "%s'%s'", at ? ", " : "", name);
}

/* Whether this case is to run; asked only of those that can run here. */
static bool wanted(const struct kernel_bench *b, const char *name)
{
    const bool asked = !b->o->only || strstr(name, b->o->only);

    if (!b->names) return asked;
    b->names->wanted += asked;
    note_name(b->names, name);
    return false;
}

/* Where there is a peer's way, in turns with it. */
static void report_ways(const struct kernel_bench *b, const char *name, struct bench_way way,
                        const struct bench_way *peer, const char *peer_name, uint32_t items,
                        double bytes)
{
    struct bench_way ways[BENCH_WAYS_MAX] = {way};
    char full[120];

    if (peer) ways[1] = *peer;
    if (!bench_ways_us(b->ctx, ways, 1 + (peer != NULL), items))
        exit(1); /* the error is printed; after it no launch works */
    report(b, name, ways[0].us, bytes, 0);
    snprintf(full, sizeof full, "%s, %s", name, peer_name);
    if (peer) report(b, full, ways[1].us, bytes, 0);
}

/* --- products --- */

static const struct product {
    const char *what;
    uint32_t N, K;
    enum skinny_epilogue end; /* in front of all but SKINNY_RESIDUAL stands a norm */
} products[] = {
    {"8B qkv", 6144, 4096, SKINNY_STORE},     {"8B o", 4096, 4096, SKINNY_RESIDUAL},
    {"8B gate_up", 28672, 4096, SKINNY_GLU},  {"8B down", 4096, 14336, SKINNY_RESIDUAL},
    {"8B head", 128256, 4096, SKINNY_LOGITS}, {"7B qkv", 4608, 3584, SKINNY_STORE},
    {"7B gate_up", 37888, 3584, SKINNY_GLU},  {"7B down", 3584, 18944, SKINNY_RESIDUAL},
    {"33B gate_up", 38400, 7168, SKINNY_GLU}, {"33B down", 7168, 19200, SKINNY_RESIDUAL},
    {"135M qkv", 960, 576, SKINNY_STORE},     {"135M o", 576, 576, SKINNY_RESIDUAL},
    {"135M gate_up", 3072, 576, SKINNY_GLU},  {"135M down", 576, 1536, SKINNY_RESIDUAL},
    {"135M head", 49152, 576, SKINNY_LOGITS},
};
enum { PRODUCTS = sizeof products / sizeof *products, LIBRARY_PRODUCTS = 4 };

/* One of them for M rows, over so many weights that none is in L2 when its turn comes again. */
struct product_job {
    struct kernel_bench *b;
    const struct product *p;
    uint32_t M, weight_count;
    uint64_t weight_bytes;
    union {
        struct skinny_weight skinny[ITEMS_MAX];
        struct medium_weight medium[ITEMS_MAX];
    } weights;
    union {
        struct skinny_args skinny;
        struct medium_args medium;
    } args;
    struct cuda_gemm *gemm; /* of the library, beside either */
    uint32_t gemm_id;
};

static void begin_product(struct product_job *j, struct kernel_bench *b, const struct product *p,
                          uint32_t M)
{
    *j = (struct product_job){.b = b, .p = p, .M = M, .weight_bytes = 2ull * p->N * p->K};
    j->weight_count = (uint32_t)(COLD_BYTES / j->weight_bytes) + 1;
    if (j->weight_count > ITEMS_MAX) j->weight_count = ITEMS_MAX;
}

static const char *weight_at(const struct product_job *j, uint32_t i)
{
    return j->b->pool + i % j->weight_count * j->weight_bytes;
}

static uint32_t items_of(const struct product_job *j)
{
    return j->weight_count < 16 ? 16 : j->weight_count;
}

/* Of y: a gated product has half as many columns as its weight has rows. */
static uint64_t stride_of(const struct product *p)
{
    return p->end == SKINNY_GLU ? p->N / 2 : p->N;
}

static cudaError_t skinny_body(void *arg, uint32_t i)
{
    struct product_job *j = arg;

    j->args.skinny.weight = &j->weights.skinny[i % j->weight_count];
    return skinny_gemm(j->b->ctx, &j->args.skinny);
}

static void skinny_case(struct kernel_bench *b, const struct product *p, uint32_t M)
{
    bool norm = p->end != SKINNY_RESIDUAL;
    struct product_job j;
    char name[80];

    snprintf(name, sizeof name, "skinny %s %ux%u M %u", p->what, p->N, p->K, M);
    if (!skinny_gemm_fits(b->ctx, M, p->K, norm) || !wanted(b, name)) return;
    begin_product(&j, b, p, M);
    for (uint32_t i = 0; i < j.weight_count; i++)
        if (skinny_weight_init(&j.weights.skinny[i], weight_at(&j, i), p->N, p->K, b->ctx->type))
            return;
    j.args.skinny =
        (struct skinny_args){.M = M,
                             .x = b->small,
                             .x_stride = p->K,
                             .x_cols = p->K,
                             .norm_gain = norm ? (float *)(b->small + (64 << 20)) : NULL,
                             .norm_eps = 1e-5f,
                             .epilogue = p->end,
                             .scale = 1,
                             .y = b->small + (128 << 20),
                             .y_stride = stride_of(p)};
    report(b, name, bench_graph_us(b->ctx, skinny_body, &j, items_of(&j)), (double)j.weight_bytes,
           0);
}

static cudaError_t library_body(void *arg, uint32_t i)
{
    struct product_job *j = arg;

    return cuda_gemm_run(j->gemm, j->gemm_id, weight_at(j, i), j->b->small, j->M,
                         j->b->small + (128 << 20), 1, j->b->ctx->stream);
}

/* False: the library has no such product, which is printed. End with cuda_gemm_close(j->gemm). */
static bool open_library(struct product_job *j)
{
    struct kernel_bench *b = j->b;
    struct cuda_gemm_shape shape = {j->p->N, j->p->K, j->p->K, j->p->N, false};
    enum dtype type = b->ctx->type == KERNEL_BF16 ? DTYPE_BF16 : DTYPE_F16;
    const void *weights[8];
    struct error err;

    for (uint32_t i = 0; i < 8; i++)
        weights[i] = weight_at(j, i);
    if (!cuda_gemm_open(type, b->small + (256 << 20), 64u << 20, NULL, &j->gemm, &err) &&
        !cuda_gemm_prepare(j->gemm, &shape, weights, 8, b->small, b->small + (128 << 20), j->M,
                           false, b->ctx->stream, &j->gemm_id, &err))
        return true;
    fprintf(stderr, "library %ux%u M %u: %s\n", j->p->N, j->p->K, j->M, err.message);
    return false;
}

static void library_case(struct kernel_bench *b, const struct product *p, uint32_t M)
{
    struct product_job j;
    char name[80];

    snprintf(name, sizeof name, "library %s %ux%u M %u", p->what, p->N, p->K, M);
    if (!wanted(b, name)) return;
    begin_product(&j, b, p, M);
    if (open_library(&j))
        report(b, name, bench_graph_us(b->ctx, library_body, &j, items_of(&j)),
               (double)j.weight_bytes, 2.0 * p->N * p->K * M);
    cuda_gemm_close(j.gemm);
}

static cudaError_t medium_body(void *arg, uint32_t i)
{
    struct product_job *j = arg;

    j->args.medium.weight = &j->weights.medium[i % j->weight_count];
    return medium_gemm(j->b->ctx, &j->args.medium);
}

static bool open_medium(struct product_job *j, const struct medium_shape *cut)
{
    const struct product *p = j->p;
    struct kernel_bench *b = j->b;
    struct medium_args a = {.M = j->M,
                            .x = b->small,
                            .x_stride = p->K,
                            .epilogue = (enum medium_epilogue)p->end,
                            .scale = 1,
                            .y = b->small + (128 << 20),
                            .y_stride = stride_of(p)};
    float *gain_or_sums = (float *)(b->small + (64 << 20));

    for (uint32_t i = 0; i < j->weight_count; i++)
        if (medium_weight_init(&j->weights.medium[i], b->ctx, weight_at(j, i), p->N, p->K, cut))
            return false;
    if (p->end == SKINNY_RESIDUAL) {
        a.next_gain = gain_or_sums, a.sums = (float *)(b->small + (224 << 20));
        a.h = b->small + (192 << 20), a.h_stride = p->N;
    } else {
        a.norm_sums = gain_or_sums, a.norm_tiles = 32, a.norm_cols = p->K;
    }
    j->args.medium = a;
    return true;
}

/* False: it does not fit, or is not asked for. */
static bool begin_medium(struct product_job *j, struct kernel_bench *b, const char *name,
                         const struct product *p, uint32_t M, const struct medium_shape *cut)
{
    if (!medium_gemm_fits(b->ctx, M, p->N, p->K) || !wanted(b, name)) return false;
    begin_product(j, b, p, M);
    return open_medium(j, cut);
}

/* As the rule cuts it, beside the library's product of that shape without what is folded into these ends. */
static void medium_case(struct kernel_bench *b, const struct product *p, uint32_t M)
{
    struct medium_shape cut;
    struct product_job j;
    char name[96];

    if (!medium_shapes(b->ctx, p->N, p->K, &cut, 1)) return;
    snprintf(name, sizeof name, "medium %s %ux%u M %u, %u/%u/%u", p->what, p->N, p->K, M, cut.tile,
             cut.splits, cut.share);
    if (!begin_medium(&j, b, name, p, M, &cut)) return;
    struct bench_way library = {library_body, &j, -1};
    report_ways(b, name, (struct bench_way){medium_body, &j, -1},
                open_library(&j) ? &library : NULL, "cuBLASLt", items_of(&j),
                (double)j.weight_bytes);
    cuda_gemm_close(j.gemm);
}

static void cut_case(struct kernel_bench *b, const struct product *p,
                     const struct medium_shape *cut)
{
    struct product_job j;
    char name[96];

    snprintf(name, sizeof name, "cut %s %ux%u M %d, %u/%u/%u", p->what, p->N, p->K, MEDIUM_ROWS_MAX,
             cut->tile, cut->splits, cut->share);
    if (begin_medium(&j, b, name, p, MEDIUM_ROWS_MAX, cut))
        report(b, name, bench_graph_us(b->ctx, medium_body, &j, items_of(&j)),
               (double)j.weight_bytes, 0);
}

/* Every cut, where `--only cut...` asks for it: what the rule is made from. */
static void cut_cases(struct kernel_bench *b)
{
    struct medium_shape cuts[MEDIUM_SHAPES_MAX];

    for (const struct product *p = products; p < products + PRODUCTS; p++) {
        uint32_t count = medium_shapes(b->ctx, p->N, p->K, cuts, MEDIUM_SHAPES_MAX);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t blocks = (p->N + cuts[i].tile - 1) / cuts[i].tile * cuts[i].splits;
            if (blocks >= 90 && (blocks <= 140 || cuts[i].splits == 1)) cut_case(b, p, &cuts[i]);
        }
    }
}

static void product_cases(struct kernel_bench *b)
{
    static const struct {
        void (*run)(struct kernel_bench *b, const struct product *p, uint32_t M);
        uint32_t products; /* the first so many */
        uint32_t Ms[4];
    } kinds[] = {{skinny_case, PRODUCTS, {1, 4, 8, 16}},
                 {medium_case, PRODUCTS, {16, 32, 64}},
                 {library_case, LIBRARY_PRODUCTS, {32, 64, 256, 2048}}};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (uint32_t i = 0; i < kinds[k].products; i++)
            for (int m = 0; m < 4 && kinds[k].Ms[m]; m++)
                kinds[k].run(b, &products[i], kinds[k].Ms[m]);
    if (b->o->only && !strncmp(b->o->only, "cut", 3)) cut_cases(b);
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

/* Scratch as a device with such a context would have it. NULL: no memory. */
static char *make_scratch(struct attention_job *j, uint32_t rows, uint32_t context)
{
    const struct attention_args *a = &j->args;
    struct device_options options = {0};
    uint32_t splits = cuda_decode_splits(&options, context, 0, rows, a->kv_heads);
    uint64_t partials = (uint64_t)rows * a->heads * splits, counters = (uint64_t)rows * a->heads;
    char *at;

    if (cudaMalloc((void **)&at, partials * (a->head_dim + 2) * 4 + counters * 4 + 1024))
        return NULL;
    j->scratch = (struct decode_scratch){(float *)at, (float *)(at + partials * a->head_dim * 4),
                                         (uint32_t *)(at + partials * (a->head_dim + 2) * 4),
                                         splits, rows <= CUDA_SKINNY_ROWS};
    cudaMemset(j->scratch.counters, 0, counters * 4);
    return at;
}

static void decode_case(struct kernel_bench *b, uint32_t rows, uint32_t context, bool mixed,
                        uint32_t heads, uint32_t kv_heads, uint32_t D)
{
    struct attention_job j = {.b = b, .args = attention_of(b, rows, heads, kv_heads, D)};
    uint64_t set = (uint64_t)rows * ((context + 15) / 16) * kv_block_elements(kv_heads, D) * 2;
    uint64_t tokens = 0;
    char name[80], *scratch, *tables = NULL;

    snprintf(name, sizeof name, "decode %ux%u heads %u/%u d %u%s", rows, context, heads, kv_heads,
             D, mixed ? " mixed lengths" : "");
    if (!wanted(b, name)) return;
    j.sets = (uint32_t)(2 * COLD_BYTES / set) + 1;
    if (j.sets > ITEMS_MAX) j.sets = ITEMS_MAX;
    while (j.sets > 1 && j.sets * set > b->pool_bytes)
        j.sets--;
    for (uint32_t i = 0; i < rows; i++)
        tokens += row_tokens(rows, context, mixed, i);
    scratch = make_scratch(&j, rows, context);
    if (scratch &&
        !cudaMalloc((void **)&tables,
                    (uint64_t)(j.sets + 1) * rows * ((context + 15) / 16 + 2) * 4) &&
        make_tables(&j, rows, context, mixed, tables))
        report_ways(b, name, (struct bench_way){decode_body, &j, -1}, NULL, "",
                    j.sets < 8 ? 8 : j.sets, 4.0 * (double)tokens * kv_heads * D);
    else
        fprintf(stderr, "%s: no memory\n", name);
    cudaFree(scratch), cudaFree(tables);
}

static void prefill_case(struct kernel_bench *b, uint32_t rows, uint32_t past, uint32_t heads,
                         uint32_t kv_heads, uint32_t D)
{
    struct attention_job j = {.b = b, .args = attention_of(b, rows, heads, kv_heads, D), .sets = 1};
    uint32_t group = heads / kv_heads,
             tiles = (rows * group + PREFILL_TILE_PAIRS - 1) / PREFILL_TILE_PAIRS;
    struct prefill_tile *host;
    char name[80], *tables;

    snprintf(name, sizeof name, "prefill %u+%u heads %u/%u d %u", past, rows, heads, kv_heads, D);
    if (!wanted(b, name) || !(host = malloc(tiles * sizeof *host))) return;
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

static void attention_cases(struct kernel_bench *b)
{
    static const struct {
        uint32_t rows, context, heads, kv_heads, D;
    } decodes[] = {{1, 1024, 32, 8, 128},  {1, 2048, 32, 8, 128},  {1, 8192, 32, 8, 128},
                   {1, 32768, 32, 8, 128}, {8, 2048, 32, 8, 128},  {16, 1024, 32, 8, 128},
                   {64, 1024, 32, 8, 128}, {64, 2048, 32, 8, 128}, {64, 4096, 32, 8, 128},
                   {64, 8192, 32, 8, 128}, {1, 1024, 9, 3, 64},    {1, 8192, 28, 4, 128}};
    static const struct {
        uint32_t rows, past, heads, kv_heads, D;
    } prefills[] = {{512, 0, 32, 8, 128},     {1024, 0, 32, 8, 128}, {2048, 0, 32, 8, 128},
                    {2048, 6144, 32, 8, 128}, {8192, 0, 32, 8, 128}, {16384, 0, 32, 8, 128},
                    {2048, 0, 28, 4, 128},    {2048, 0, 9, 3, 64},   {2048, 2048, 16, 8, 256}};

    for (size_t i = 0; i < sizeof decodes / sizeof *decodes; i++)
        decode_case(b, decodes[i].rows, decodes[i].context, false, decodes[i].heads,
                    decodes[i].kv_heads, decodes[i].D);
    decode_case(b, 48, 8192, true, 32, 8, 128);
    for (size_t i = 0; i < sizeof prefills / sizeof *prefills; i++)
        prefill_case(b, prefills[i].rows, prefills[i].past, prefills[i].heads, prefills[i].kv_heads,
                     prefills[i].D);
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
    uint32_t state = 5;
    char name[80], *at = b->small;

    snprintf(name, sizeof name, "sample %s V %u rows %u", what, V, rows);
    if (!wanted(b, name)) return;
    struct sample_row *in = calloc(rows, sizeof *in);
    struct slot_params *slots = calloc(rows, sizeof *slots);
    float *logits = malloc((size_t)rows * V * sizeof *logits);
    if (in && slots && logits) {
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
        report(b, name, bench_graph_us(b->ctx, sample_body, &j, 8), 0, 0);
    }
    free(in), free(slots), free(logits);
}

static void sample_cases(struct kernel_bench *b)
{
    struct slot_params greedy = {.top_p = 1, .min_p_log = -INFINITY, .repetition_penalty = 1};
    struct slot_params plain = greedy, full = greedy, nucleus;

    plain.temperature = 1;
    full.temperature = 0.8f, full.top_p = 0.95f, full.top_k = 50, full.seed = 7;
    nucleus = full, nucleus.top_k = 0;
    for (uint32_t rows = 1; rows <= 256; rows *= rows == 1 ? 64 : 4) {
        sample_case(b, "greedy", 128256, rows, greedy);
        sample_case(b, "temperature", 128256, rows, plain);
        sample_case(b, "top-k top-p", 128256, rows, full);
        sample_case(b, "top-p", 128256, rows, nucleus);
    }
}

static void all_cases(struct kernel_bench *b)
{
    product_cases(b);
    attention_cases(b);
    sample_cases(b);
}

enum status bench_kernels_named(struct kernel_context *ctx, const char *only, struct error *err)
{
    const struct cuda_bench_options o = {.what = CUDA_BENCH_KERNELS, .only = only};
    struct kernel_names names = {0};
    struct kernel_bench b = {.ctx = ctx, .o = &o, .names = &names};

    all_cases(&b);
    if (names.wanted) return STATUS_OK;
    return error_set(err, STATUS_NOT_FOUND,
                     "no kernel here has '%.60s' in its name; parts of such names are right: %s",
                     only, names.some);
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
    all_cases(&b);
    cudaFree(b.pool), cudaFree(b.small);
    return STATUS_OK;
}
