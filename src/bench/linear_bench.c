/* linear_bench.c - how fast the CPU's linear products are, alone: no attention, no norms, no barriers between them.
 *
 *     linear-bench [--threads N] [--format Q4_1] [--isa amx] [--rows N] [--seconds S]
 *
 * Weights have SmolLM2-135M's shapes (210 matrices of 30 layers and a head), random values, in huge pages. Each thread
 * takes its share of the tiles of every matrix. Prints for 1 row (decode) GB/s of packed bytes and the share of the read
 * bandwidth that the same threads reach by only adding up the same memory; for many rows (prompt) products per second.
 * Median of the passes that fit in the time. */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "device/cpu/linear.h"

enum { LAYERS = 30, HIDDEN = 576, FFN = 1536, VOCAB = 49152, KV = 192, MATRICES = LAYERS * 7 + 1 };
enum { THREADS_MAX = 256, PASSES_MAX = 2000 };

struct bench {
    uint32_t threads, rows;
    enum dtype format, head_format;
    enum cpu_isa isa;
    double seconds;
    struct linear matrices[MATRICES];
    uint8_t *packed;
    uint64_t packed_bytes;
    float *x;         /* [rows, FFN] */
    void *inputs[2];  /* prepared: HIDDEN, FFN columns; in the form of the layers */
    void *head_input; /* one row */
    pthread_barrier_t barrier;
    double passes[PASSES_MAX];
    uint32_t pass_count;
    bool stop, read_only;
};

static void *huge_alloc(uint64_t bytes)
{
    const uint64_t huge = 2u << 20, rounded = (bytes + huge - 1) / huge * huge;
    void *p = aligned_alloc(huge, rounded);
    assert(p);
    madvise(p, rounded, MADV_HUGEPAGE);
    memset(p, 0, rounded);
    return p;
}

static struct plan_weight random_weight(enum dtype dtype, uint32_t rows, uint32_t cols,
                                        void **stored)
{
    const struct dtype_info *info = dtype_info(dtype);
    const uint64_t row_bytes = dtype_row_bytes(dtype, cols);
    uint8_t *bytes = malloc(row_bytes * rows);
    uint64_t state = 1;

    assert(row_bytes && bytes);
    for (uint64_t i = 0; i < row_bytes * rows; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = info->is_float ? (uint8_t)(state >> 59) : (uint8_t)(state >> 56);
    }
    for (uint64_t at = 0; !info->is_float && at < row_bytes * rows; at += info->block_bytes)
        memset(bytes + at, 0x1c,
               4); /* halves of about 0.004, wherever the format keeps them first */
    *stored = bytes;
    return (struct plan_weight){.name = "bench",
                                .data = bytes,
                                .dtype = dtype,
                                .rows = rows,
                                .cols = cols,
                                .row_stride = row_bytes};
}

/* q, k, v, o, gate, up, down. */
static const uint32_t shapes[7][2] = {{HIDDEN, HIDDEN}, {KV, HIDDEN},  {KV, HIDDEN},
                                      {HIDDEN, HIDDEN}, {FFN, HIDDEN}, {FFN, HIDDEN},
                                      {HIDDEN, FFN}};

static void make_weights(struct bench *b)
{
    struct plan_weight weights[8];
    void *stored[8];
    uint8_t *at;

    for (int i = 0; i < 7; i++) {
        weights[i] = random_weight(b->format, shapes[i][0], shapes[i][1], &stored[i]);
        b->packed_bytes += LAYERS * linear_packed_bytes(&weights[i], CPU_FAST, b->isa);
    }
    weights[7] = random_weight(b->head_format, VOCAB, HIDDEN, &stored[7]);
    b->packed_bytes += linear_packed_bytes(&weights[7], CPU_FAST, b->isa);
    at = b->packed = huge_alloc(b->packed_bytes);
    for (uint32_t m = 0; m < MATRICES; m++) {
        const struct plan_weight *w = &weights[m == MATRICES - 1 ? 7 : m % 7];
        linear_init(&b->matrices[m], w, CPU_FAST, b->isa, at);
        linear_pack_tiles(&b->matrices[m], at, 0, b->matrices[m].tiles);
        at += linear_packed_bytes(w, CPU_FAST, b->isa);
    }
    for (int i = 0; i < 8; i++)
        free(stored[i]);
}

static void make_inputs(struct bench *b)
{
    const enum linear_input kind = linear_input_kind(&b->matrices[0]);
    const enum linear_input head_kind = linear_input_kind(&b->matrices[MATRICES - 1]);
    const uint32_t cols[2] = {HIDDEN, FFN};

    b->x = huge_alloc((uint64_t)b->rows * FFN * sizeof(float));
    for (uint32_t i = 0; i < b->rows * FFN; i++)
        b->x[i] = (float)(i * 2654435761u >> 8) / (1 << 23) - 1;
    for (int i = 0; i < 2; i++) {
        b->inputs[i] = huge_alloc(b->rows * linear_input_row_bytes(kind, cols[i]));
        linear_prepare(kind, b->isa, b->x, FFN, cols[i], b->inputs[i], 0, b->rows);
    }
    b->head_input = huge_alloc(linear_input_row_bytes(head_kind, HIDDEN));
    linear_prepare(head_kind, b->isa, b->x, FFN, HIDDEN, b->head_input, 0, 1);
}

/* One thread's share of a pass: every matrix for all rows, the head for one. */
static void run_share(const struct bench *b, uint32_t thread, float *y)
{
    for (uint32_t m = 0; m < MATRICES; m++) {
        const struct linear *l = &b->matrices[m];
        const bool head = m == MATRICES - 1;
        const uint32_t begin = l->tiles * thread / b->threads;
        const uint32_t end = l->tiles * (thread + 1) / b->threads;
        linear_run(l, head ? b->head_input : b->inputs[l->weight.cols == FFN], head ? 1 : b->rows,
                   y, head ? VOCAB : FFN, begin, end);
    }
}

#if defined(__x86_64__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

/* One thread's share of only reading the same memory. */
WIDEST static uint64_t read_share(const struct bench *b, uint32_t thread)
{
    typedef uint64_t line __attribute__((vector_size(64), aligned(64)));
    const uint64_t lines = b->packed_bytes / 64;
    const line *from = (const line *)(const void *)b->packed + lines * thread / b->threads;
    const uint64_t count = lines * (thread + 1) / b->threads - lines * thread / b->threads;
    line sum[4] = {{0}};

    for (uint64_t i = 0; i + 4 <= count; i += 4)
        for (int j = 0; j < 4; j++) {
            __builtin_prefetch(from + i + j + 32);
            sum[j] ^= from[i + j];
        }
    return sum[0][0] ^ sum[1][1] ^ sum[2][2] ^ sum[3][3];
}

struct worker {
    struct bench *bench;
    uint32_t index;
    uint64_t sink;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct bench *b = w->bench;
    float *y = huge_alloc((uint64_t)(b->rows * FFN + VOCAB) * sizeof(float));
    int64_t begin = 0;

    for (;;) {
        pthread_barrier_wait(&b->barrier);
        if (b->stop) break;
        if (w->index == 0) begin = clock_mono_ns();
        if (b->read_only)
            w->sink ^= read_share(b, w->index);
        else
            run_share(b, w->index, y);
        pthread_barrier_wait(&b->barrier);
        if (w->index == 0) {
            b->passes[b->pass_count++] = (double)(clock_mono_ns() - begin) * 1e-9;
            double sum = 0;
            for (uint32_t i = 0; i < b->pass_count; i++)
                sum += b->passes[i];
            b->stop = b->pass_count == PASSES_MAX || (sum > b->seconds && b->pass_count >= 5);
        }
    }
    free(y);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of the median pass. */
static double measure(struct bench *b, bool read_only)
{
    pthread_t threads[THREADS_MAX];
    static struct worker workers[THREADS_MAX];

    b->read_only = read_only;
    b->pass_count = 0;
    b->stop = false;
    pthread_barrier_init(&b->barrier, NULL, b->threads);
    for (uint32_t i = 0; i < b->threads; i++) {
        workers[i] = (struct worker){.bench = b, .index = i};
        int failed = pthread_create(&threads[i], NULL, work, &workers[i]);
        assert(!failed);
    }
    for (uint32_t i = 0; i < b->threads; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&b->barrier);
    qsort(b->passes, b->pass_count, sizeof b->passes[0], by_value);
    return b->passes[b->pass_count / 2];
}

static void report(struct bench *b)
{
    const double gib = (double)b->packed_bytes / 1e9;
    const double products =
        ((double)LAYERS * (2.0 * HIDDEN * HIDDEN + 2.0 * KV * HIDDEN + 3.0 * FFN * HIDDEN)) *
            b->rows +
        (double)VOCAB * HIDDEN;

    if (b->rows == 1) {
        double read = measure(b, true), run = measure(b, false);
        printf("{\"format\": \"%s\", \"isa\": \"%s\", \"threads\": %u, \"rows\": 1, \"packed_mb\": "
               "%.1f, "
               "\"pass_ms\": %.3f, \"gb_per_s\": %.1f, \"read_gb_per_s\": %.1f, \"share\": %.3f}\n",
               dtype_info(b->format)->name, cpu_isa_name(b->isa), b->threads, gib * 1e3, run * 1e3,
               gib / run, gib / read, read / run);
        return;
    }
    double run = measure(b, false);
    printf(
        "{\"format\": \"%s\", \"isa\": \"%s\", \"threads\": %u, \"rows\": %u, \"pass_ms\": %.3f, "
        "\"gmac_per_s\": %.1f, \"rows_per_s\": %.0f}\n",
        dtype_info(b->format)->name, cpu_isa_name(b->isa), b->threads, b->rows, run * 1e3,
        products / run * 1e-9, b->rows / run);
}

static bool format_named(const char *name, enum dtype *out)
{
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (strcmp(dtype_info((enum dtype)d)->name, name) == 0) {
            *out = (enum dtype)d;
            return true;
        }
    return false;
}

static bool isa_named(const char *name, enum cpu_isa *out)
{
    for (int i = 0; i < CPU_ISA_COUNT; i++)
        if (strcmp(cpu_isa_name((enum cpu_isa)i), name) == 0) {
            *out = (enum cpu_isa)i;
            return *out <= cpu_isa_best();
        }
    return false;
}

static bool option(struct bench *b, const char *name, const char *value)
{
    if (!strcmp(name, "--threads")) return (b->threads = (uint32_t)atoi(value)) - 1 < THREADS_MAX;
    if (!strcmp(name, "--rows")) return (b->rows = (uint32_t)atoi(value)) - 1 < 65536;
    if (!strcmp(name, "--seconds")) return (b->seconds = atof(value)) > 0;
    if (!strcmp(name, "--isa")) return isa_named(value, &b->isa);
    if (!strcmp(name, "--format")) return format_named(value, &b->format);
    if (!strcmp(name, "--head")) return format_named(value, &b->head_format);
    return false;
}

int main(int argc, char **argv)
{
    static struct bench b = {
        .threads = 2, .rows = 1, .format = DTYPE_Q4_1, .head_format = DTYPE_Q8_0, .seconds = 1};

    b.isa = cpu_isa_best();
    for (int i = 1; i < argc; i += 2)
        if (i + 1 == argc || !option(&b, argv[i], argv[i + 1])) {
            fprintf(stderr,
                    "linear-bench: cannot take %s; options are --threads --rows --seconds "
                    "--isa --format --head, each with a value\n",
                    argv[i]);
            return 2;
        }
    make_weights(&b);
    make_inputs(&b);
    report(&b);
    return 0;
}
