/* test_cpu_attention.c - paged attention is softmax(scale q k) v over exactly the tokens that a row sees.
 * Method: random shapes, pages in random order with NaN wherever nothing was written, against float64; every instruction set,
 * float32 and float16 pages. A tile of rows gives the bytes that its rows give alone. Entries of the block table that hold nothing that a row of the
 * tile sees lead nowhere: to read one is a fault. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "device/cpu/cpu_kernels.h"

struct bench {
    uint32_t dim, padded, heads, tokens, window, block_tokens, blocks;
    bool half;
    float *q, *k, *v; /* [rows][heads][dim], [tokens][dim] x 2; k and v as stored (rounded) */
    char *pool;
    uint64_t block_bytes;
    uint32_t *table;
    float *scratch;
    const struct cpu_kernels *kernels;
};

static float value(void)
{
    return (float)(test_rand_unit() * 4 - 2);
}

static float *random_floats(size_t count)
{
    float *x = malloc(count * sizeof *x);

    for (size_t i = 0; i < count; i++)
        x[i] = value();
    return x;
}

static void store(struct bench *b, uint32_t t)
{
    uint64_t element = b->half ? 2 : 4, tile = (uint64_t)KV_TILE * (b->dim + b->padded) * element;
    char *at = b->pool + b->table[t / b->block_tokens] * b->block_bytes +
               t % b->block_tokens / KV_TILE * tile;

    b->kernels->kv_store(b->k + t * b->dim, b->v + t * b->dim, b->dim, b->padded, b->half,
                         t % KV_TILE, at, at + KV_TILE * b->dim * element);
    for (uint32_t d = 0; d < b->dim && b->half; d++) {
        b->k[t * b->dim + d] = f16_to_f32(f32_to_f16(b->k[t * b->dim + d]));
        b->v[t * b->dim + d] = f16_to_f32(f32_to_f16(b->v[t * b->dim + d]));
    }
}

static void bench_init(struct bench *b, enum cpu_isa isa, uint32_t rows)
{
    static const uint32_t dims[] = {8, 16, 24, 32, 48, 64, 80, 96, 128, 256};

    b->kernels = cpu_kernels(isa);
    b->dim = dims[test_rand_below(10)];
    b->padded = (b->dim + 15) / 16 * 16;
    b->heads = 1 + test_rand_below(8);
    b->tokens = rows + test_rand_below(600);
    b->window = test_rand_below(2) ? 0 : 1 + test_rand_below(b->tokens + 10);
    b->block_tokens = test_rand_below(2) ? 16 : 32;
    b->blocks = b->tokens / b->block_tokens + 1;
    b->half = test_rand_below(2);
    b->q = random_floats((size_t)rows * b->heads * b->dim);
    b->k = random_floats((size_t)b->tokens * b->dim);
    b->v = random_floats((size_t)b->tokens * b->dim);
    b->block_bytes = (uint64_t)b->block_tokens * (b->dim + b->padded) * (b->half ? 2 : 4);
    b->pool = aligned_alloc(64, (b->blocks * b->block_bytes + 63) / 64 * 64);
    memset(b->pool, 0xff, b->blocks * b->block_bytes); /* NaN in both formats */
    b->table = malloc(b->blocks * sizeof *b->table);
    b->scratch = aligned_alloc(64, sizeof(float) * KV_SPAN * (b->padded + b->padded));
    for (uint32_t i = 0; i < b->blocks; i++)
        b->table[i] = i;
    for (uint32_t i = b->blocks; i > 1; i--) {
        uint32_t j = test_rand_below(i), kept = b->table[i - 1];
        b->table[i - 1] = b->table[j], b->table[j] = kept;
    }
    for (uint32_t t = 0; t < b->tokens; t++)
        store(b, t);
}

static void bench_fini(struct bench *b)
{
    free(b->q), free(b->k), free(b->v), free(b->pool), free(b->table), free(b->scratch);
}

static struct attend_state new_state(const struct bench *b, uint32_t queries)
{
    return (struct attend_state){malloc(queries * sizeof(float)),
                                 malloc(queries * KV_TILE * sizeof(float)),
                                 aligned_alloc(64, (size_t)queries * b->padded * sizeof(float))};
}

static void free_state(struct attend_state *s)
{
    free(s->max), free(s->sum), free(s->acc);
}

/* The table as it may be when rows from..to-1 are computed: blocks in front of the first one's window, and past the last, are nowhere. */
static uint32_t *table_for(const struct bench *b, uint32_t from, uint32_t to)
{
    uint32_t *table = malloc(b->blocks * sizeof *table);
    uint32_t first = b->window && from + 1 > b->window ? from + 1 - b->window : 0;

    for (uint32_t i = 0; i < b->blocks; i++)
        table[i] = (i + 1) * b->block_tokens <= first || i * b->block_tokens >= to ? UINT32_MAX
                                                                                   : b->table[i];
    return table;
}

/* Rows first..first+rows-1 of the last `all` tokens, all splits joined, as cpu_attention.c does it. out: [rows][heads][dim]. */
static void attend(const struct bench *b, uint32_t all, uint32_t first, uint32_t rows, float *out)
{
    uint32_t queries = rows * b->heads, pos = b->tokens - all + first;
    struct attend_state total = new_state(b, queries), part = new_state(b, queries);
    uint32_t *table = table_for(b, pos, pos + rows);
    struct attend_tile tile = {.q = b->q + (size_t)first * b->heads * b->dim,
                               .q_stride = b->heads * b->dim,
                               .rows = rows,
                               .heads = b->heads,
                               .first_pos = pos,
                               .window = b->window,
                               .head_dim = b->dim,
                               .dim_padded = b->padded,
                               .scale = 0.3f,
                               .half = b->half,
                               .table = table,
                               .pool = b->pool,
                               .block_bytes = b->block_bytes,
                               .block_tokens = b->block_tokens,
                               .scratch = b->scratch};
    uint32_t end = pos + rows;
    uint32_t begin = b->window && pos + 1 > b->window ? (pos + 1 - b->window) / KV_SPLIT : 0;

    for (uint32_t i = 0; i < queries; i++)
        total.max[i] = -INFINITY;
    memset(total.sum, 0, (size_t)queries * KV_TILE * sizeof(float));
    memset(total.acc, 0, (size_t)queries * b->padded * sizeof(float));
    for (uint32_t s = begin; s * KV_SPLIT < end; s++) {
        uint32_t to = (s + 1) * KV_SPLIT < end ? (s + 1) * KV_SPLIT : end;
        b->kernels->attend(&tile, s * KV_SPLIT, to, &part);
        b->kernels->attend_join(&total, &part, queries, b->padded);
    }
    for (uint32_t i = 0; i < queries; i++)
        b->kernels->attend_finish(&total, i, b->dim, b->padded, out + i * b->dim);
    free_state(&total);
    free_state(&part);
    free(table);
}

static void check_row(const struct bench *b, uint32_t all, uint32_t row, const float *got)
{
    uint32_t pos = b->tokens - all + row;
    uint32_t first = b->window && pos + 1 > b->window ? pos + 1 - b->window : 0;

    for (uint32_t h = 0; h < b->heads; h++) {
        /* A score is a float32 sum of dim products: its error grows with the sum of their sizes, `reach`; a weight errs by
         * as much relatively, the result by that times the largest value (2), up and down. A few units in the last place
         * of the sum, and 1e-5 for the rest. */
        double want[256] = {0}, sum = 0, top = -INFINITY, reach = 0;
        const float *q = b->q + ((size_t)row * b->heads + h) * b->dim;
        for (uint32_t pass = 0; pass < 2; pass++)
            for (uint32_t t = first; t <= pos; t++) {
                double s = 0, size = 0;
                for (uint32_t d = 0; d < b->dim; d++) {
                    double product = (double)q[d] * (double)b->k[t * b->dim + d] * (double)0.3f;
                    s += product;
                    size += fabs(product);
                }
                reach = fmax(reach, size);
                if (pass == 0) {
                    top = fmax(top, s);
                    continue;
                }
                sum += exp(s - top);
                for (uint32_t d = 0; d < b->dim; d++)
                    want[d] += exp(s - top) * (double)b->v[t * b->dim + d];
            }
        for (uint32_t d = 0; d < b->dim; d++)
            EXPECT_NEAR(got[h * b->dim + d], want[d] / sum, 1e-5 + 4 * 0x1p-24 * reach * 2);
    }
}

static void check_shapes(enum cpu_isa isa, uint32_t rounds)
{
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t rows = 1 + test_rand_below(12);
        struct bench b;
        bench_init(&b, isa, rows);
        size_t row_floats = (size_t)b.heads * b.dim;
        float *together = malloc(rows * row_floats * sizeof(float));
        float *alone = malloc(row_floats * sizeof(float));
        attend(&b, rows, 0, rows, together);
        for (uint32_t r = 0; r < rows; r++) {
            attend(&b, rows, r, 1, alone);
            if (memcmp(alone, together + r * row_floats, row_floats * sizeof(float)) != 0)
                fail_msg("row %u of %u: other bytes alone than in a tile", r, rows);
            check_row(&b, rows, r, alone);
        }
        free(together);
        free(alone);
        bench_fini(&b);
    }
}

TEST(every_instruction_set_gives_softmax_over_what_is_seen)
{
    static const enum cpu_isa sets[] = {CPU_ISA_GENERIC, CPU_ISA_AVX2, CPU_ISA_AVX512};

    for (uint32_t i = 0; i < 3; i++)
        if (sets[i] <= cpu_isa_best()) check_shapes(sets[i], test_long() ? 600 : 40);
}

/* One score of 90 among small ones: exp() of the rest vanishes, nothing overflows. */
TEST(a_towering_score_takes_all)
{
    struct bench b;
    float out[8 * 256];

    do {
        bench_init(&b, cpu_isa_best(), 1);
        if (b.tokens < 300 || b.window) bench_fini(&b);
    } while (b.tokens < 300 || b.window);
    for (uint32_t d = 0; d < b.dim; d++) {
        b.k[100 * b.dim + d] = d == 0 ? 300 : 0;
        for (uint32_t h = 0; h < b.heads; h++)
            b.q[h * b.dim + d] = d == 0 ? 10 : 0;
    }
    store(&b, 100);
    attend(&b, 1, 0, 1, out);
    for (uint32_t d = 0; d < b.dim; d++)
        EXPECT_NEAR(out[d], b.v[100 * b.dim + d], 1e-6);
    bench_fini(&b);
}

TEST(norm_and_activation_are_the_formulas)
{
    for (uint32_t isa = 0; isa <= CPU_ISA_AVX512; isa++) {
        if (isa > (uint32_t)cpu_isa_best()) continue;
        const struct cpu_kernels *k = cpu_kernels(isa);
        for (uint32_t n = 1; n < 600; n += 1 + test_rand_below(40)) {
            float *x = random_floats(n), *gain = random_floats(n), *y = random_floats(n);
            float *g = random_floats(n);
            double squares = 0;
            memcpy(y, x, n * sizeof *y);
            for (uint32_t i = 0; i < n; i++)
                squares += (double)x[i] * (double)x[i];
            k->norm(y, n, 1e-5f, gain, 1, y);
            for (uint32_t i = 0; i < n; i++)
                EXPECT_NEAR(y[i], (double)x[i] / sqrt(squares / n + 1e-5) * ((double)gain[i] + 1),
                            2e-5);
            memcpy(y, x, n * sizeof *y);
            k->act_mul(ACT_SILU, y, g, n);
            for (uint32_t i = 0; i < n; i++)
                EXPECT_NEAR(y[i], (double)x[i] / (1 + exp(-(double)x[i])) * (double)g[i], 2e-6);
            memcpy(y, x, n * sizeof *y);
            k->act_mul(ACT_GELU_TANH, y, g, n);
            for (uint32_t i = 0; i < n; i++) {
                double v = (double)x[i], t = tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v));
                EXPECT_NEAR(y[i], 0.5 * v * (1 + t) * (double)g[i], 2e-6);
            }
            free(x), free(gain), free(y), free(g);
        }
    }
}
