#include "device/cuda/cuda_gemm.h"

#include <assert.h>
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/gemm_cache.h"

enum { SHAPES_MAX = 32, PROPOSALS = 16, TIMED_RUNS = 3 };
static_assert(sizeof(cublasLtMatmulAlgo_t) == GEMM_ALGORITHM_WORDS * 8, "kept as it is");
/* Rows round up to a bucket; its algorithm runs them. */
static const uint32_t buckets[] = {8,   16,  32,  48,   64,   96,   128,  192,  256,  320,
                                   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384};
enum { BUCKETS = sizeof buckets / sizeof *buckets };

#define FUNCTIONS(X)                                                          \
    X(cublasLtCreate)                                                         \
    X(cublasLtGetVersion)                                                     \
    X(cublasLtMatmulAlgoCheck)                                                \
    X(cublasLtDestroy)                                                        \
    X(cublasLtMatmul)                                                         \
    X(cublasLtMatmulAlgoGetHeuristic)                                         \
    X(cublasLtMatmulDescCreate)                                               \
    X(cublasLtMatmulDescDestroy)                                              \
    X(cublasLtMatmulDescSetAttribute)                                         \
    X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)              \
        X(cublasLtMatrixLayoutSetAttribute) X(cublasLtMatmulPreferenceCreate) \
            X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)

struct shape {
    struct cuda_gemm_shape is;
    cublasLtMatrixLayout_t W, x, y; /* x and y: columns set per run */
    cublasLtMatmulAlgo_t algorithms[BUCKETS];
    uint32_t bucket_count;
};

struct cuda_gemm {
    void *library;
#define FIELD(name) __typeof__(name) *name;
    FUNCTIONS(FIELD)
#undef FIELD
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cudaDataType_t type;
    void *workspace;
    uint64_t workspace_bytes;
    struct gemm_cache *cache;
    uint32_t measured; /* choices that the cache did not have */
    uint32_t shape_count;
    struct shape shapes[SHAPES_MAX];
};

static enum status load(struct cuda_gemm *g, struct error *err)
{
    static const char *const names[] = {
        "libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13",
        "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.13", "libcublasLt.so"};

    for (size_t i = 0; !g->library && i < sizeof names / sizeof *names; i++)
        g->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!g->library)
        return error_set(err, STATUS_UNSUPPORTED,
                         "libcublasLt.so.13 was not found (%s): install cuBLAS or name its folder "
                         "in LD_LIBRARY_PATH",
                         dlerror());
#define LOAD(name)                                 \
    *(void **)&g->name = dlsym(g->library, #name); \
    if (!g->name) return error_set(err, STATUS_UNSUPPORTED, "the cuBLASLt library has no " #name);
    FUNCTIONS(LOAD)
#undef LOAD
    return STATUS_OK;
}

/* A choice holds for this device, driver and library, and for this type and workspace. */
static struct gemm_cache *open_cache(const struct cuda_gemm *g, const char *folder)
{
    struct cudaDeviceProp device;
    int ordinal = 0, driver = 0;
    char key[512];

    if (!folder || cudaGetDevice(&ordinal) || cudaGetDeviceProperties(&device, ordinal) ||
        cudaDriverGetVersion(&driver))
        return NULL;
    snprintf(key, sizeof key, "%s, %d SMs, driver %d, cuBLASLt %zu, %s, workspace %llu, best of %d",
             device.name, device.multiProcessorCount, driver, g->cublasLtGetVersion(),
             g->type == CUDA_R_16BF ? "bf16" : "f16", (unsigned long long)g->workspace_bytes,
             PROPOSALS);
    return gemm_cache_open(folder, key);
}

enum status cuda_gemm_open(enum dtype type, void *workspace, uint64_t workspace_bytes,
                           const char *cache_folder, struct cuda_gemm **out, struct error *err)
{
    struct cuda_gemm *g = calloc(1, sizeof *g);
    cublasOperation_t transposed = CUBLAS_OP_T;
    enum status st =
        g ? load(g, err) : error_set(err, STATUS_NOMEM, "no memory for the product library");

    if (!st && (g->cublasLtCreate(&g->handle) ||
                g->cublasLtMatmulDescCreate(&g->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
                g->cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &transposed, sizeof transposed)))
        st = error_set(err, STATUS_DEVICE, "cuBLASLt cannot start");
    if (st) {
        cuda_gemm_close(g);
        return st;
    }
    g->type = type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    g->workspace = workspace;
    g->workspace_bytes = workspace_bytes;
    g->cache = open_cache(g, cache_folder);
    *out = g;
    return STATUS_OK;
}

void cuda_gemm_close(struct cuda_gemm *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < g->shape_count; i++) {
        g->cublasLtMatrixLayoutDestroy(g->shapes[i].W);
        g->cublasLtMatrixLayoutDestroy(g->shapes[i].x);
        g->cublasLtMatrixLayoutDestroy(g->shapes[i].y);
    }
    gemm_cache_close(g->cache);
    if (g->product) g->cublasLtMatmulDescDestroy(g->product);
    if (g->handle) g->cublasLtDestroy(g->handle);
    free(g); /* the library stays: unloading it takes CUDA's own state along */
}

static void set_rows(struct cuda_gemm *g, struct shape *s, uint32_t M)
{
    uint64_t columns = M;

    g->cublasLtMatrixLayoutSetAttribute(s->x, CUBLASLT_MATRIX_LAYOUT_COLS, &columns,
                                        sizeof columns);
    g->cublasLtMatrixLayoutSetAttribute(s->y, CUBLASLT_MATRIX_LAYOUT_COLS, &columns,
                                        sizeof columns);
}

static cublasStatus_t multiply(struct cuda_gemm *g, const struct shape *s, const void *W,
                               const void *x, void *y, float alpha,
                               const cublasLtMatmulAlgo_t *algorithm, cudaStream_t stream)
{
    float zero = 0;

    return g->cublasLtMatmul(g->handle, g->product, &alpha, W, s->W, x, s->x, &zero, y, s->y, y,
                             s->y, algorithm, g->workspace, g->workspace_bytes, stream);
}

/* Median time of a proposal, every run on another weight so that none is found in L2; < 0: it does not run. */
static float time_algorithm(struct cuda_gemm *g, const struct shape *s, const void *const *weights,
                            uint32_t weight_count, const void *x, void *y,
                            const cublasLtMatmulAlgo_t *algorithm, cudaEvent_t begin,
                            cudaEvent_t end, cudaStream_t stream)
{
    float best = -1, ms;

    for (uint32_t run = 0; run <= TIMED_RUNS; run++) {
        cudaEventRecord(begin, stream);
        if (multiply(g, s, weights[run % weight_count], x, y, 1, algorithm, stream)) return -1;
        cudaEventRecord(end, stream);
        if (cudaEventSynchronize(end) || cudaEventElapsedTime(&ms, begin, end)) return -1;
        if (run > 0 && (best < 0 || ms < best)) best = ms;
    }
    return best;
}

static struct gemm_choice choice_of(const struct shape *s, uint32_t b)
{
    return (struct gemm_choice){.N = s->is.N,
                                .K = s->is.K,
                                .ldx = s->is.ldx,
                                .ldy = s->is.ldy,
                                .y_float = s->is.y_float,
                                .rows = buckets[b]};
}

/* A choice of an earlier start, if the library still takes it. The rows are set. */
static bool recall(struct cuda_gemm *g, struct shape *s, uint32_t b)
{
    struct gemm_choice choice = choice_of(s, b);
    cublasLtMatmulHeuristicResult_t checked;

    if (!gemm_cache_find(g->cache, &choice)) return false;
    memcpy(&s->algorithms[b], choice.algorithm, sizeof s->algorithms[b]);
    return g->cublasLtMatmulAlgoCheck(g->handle, g->product, s->W, s->x, s->y, s->y,
                                      &s->algorithms[b], &checked) == CUBLAS_STATUS_SUCCESS &&
           checked.workspaceSize <= g->workspace_bytes;
}

static void remember(struct cuda_gemm *g, const struct shape *s, uint32_t b)
{
    struct gemm_choice choice = choice_of(s, b);

    memcpy(choice.algorithm, &s->algorithms[b], sizeof choice.algorithm);
    gemm_cache_add(g->cache, &choice);
    g->measured++;
}

static enum status choose(struct cuda_gemm *g, struct shape *s, uint32_t b,
                          const void *const *weights, uint32_t weight_count, const void *x, void *y,
                          bool fixed, cudaEvent_t begin, cudaEvent_t end, cudaStream_t stream,
                          struct error *err)
{
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    cublasLtMatmulPreference_t preference;
    uint32_t best = 0;
    float best_ms = -1;
    int count = 0;

    set_rows(g, s, buckets[b]);
    if (!fixed && recall(g, s, b)) return STATUS_OK;
    if (g->cublasLtMatmulPreferenceCreate(&preference))
        return error_set(err, STATUS_NOMEM, "no memory for the product library");
    g->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &g->workspace_bytes, sizeof g->workspace_bytes);
    cublasStatus_t status =
        g->cublasLtMatmulAlgoGetHeuristic(g->handle, g->product, s->W, s->x, s->y, s->y, preference,
                                          fixed ? 1 : PROPOSALS, found, &count);
    g->cublasLtMatmulPreferenceDestroy(preference);
    if (status || !count)
        return error_set(err, STATUS_UNSUPPORTED, "cuBLASLt has no product for %u rows of [%u, %u]",
                         buckets[b], s->is.N, s->is.K);
    for (uint32_t i = 0; !fixed && i < (uint32_t)count; i++) {
        float ms =
            time_algorithm(g, s, weights, weight_count, x, y, &found[i].algo, begin, end, stream);
        if (ms >= 0 && (best_ms < 0 || ms < best_ms * 0.98f))
            best_ms = ms, best = i; /* noise picks the earlier */
    }
    s->algorithms[b] = found[best].algo;
    if (!fixed) remember(g, s, b);
    return STATUS_OK;
}

enum status cuda_gemm_prepare(struct cuda_gemm *g, const struct cuda_gemm_shape *is,
                              const void *const *weights, uint32_t weight_count, const void *x,
                              void *y, uint32_t rows, bool fixed, cudaStream_t stream, uint32_t *id,
                              struct error *err)
{
    cudaEvent_t begin = NULL, end = NULL;
    enum status st = STATUS_OK;
    struct shape *s;

    for (uint32_t i = 0; i < g->shape_count; i++) {
        const struct cuda_gemm_shape *k = &g->shapes[i].is;
        if (k->N == is->N && k->K == is->K && k->ldx == is->ldx && k->ldy == is->ldy &&
            k->y_float == is->y_float) {
            *id = i;
            return STATUS_OK;
        }
    }
    if (g->shape_count == SHAPES_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "the model has more than %d shapes of weights",
                         SHAPES_MAX);
    s = &g->shapes[g->shape_count];
    *s = (struct shape){.is = *is};
    /* Column-major as the library has it: y^T [N, M] = W [K, N]^T x^T [K, M]. */
    if (g->cublasLtMatrixLayoutCreate(&s->W, g->type, is->K, is->N, is->K) ||
        g->cublasLtMatrixLayoutCreate(&s->x, g->type, is->K, 8, (int64_t)is->ldx) ||
        g->cublasLtMatrixLayoutCreate(&s->y, is->y_float ? CUDA_R_32F : g->type, is->N, 8,
                                      (int64_t)is->ldy))
        return error_set(err, STATUS_NOMEM, "no memory for the product library");
    *id = g->shape_count++;
    if (cudaEventCreate(&begin) || cudaEventCreate(&end))
        st = error_set(err, STATUS_DEVICE, "no CUDA events");
    for (uint32_t b = 0; !st && b < BUCKETS; b++) {
        bool last = buckets[b] >= rows || b == BUCKETS - 1;
        /* a bucket wider than the buffers is timed by its first proposal only */
        st = choose(g, s, b, weights, weight_count, x, y, fixed || buckets[b] > rows, begin, end,
                    stream, err);
        s->bucket_count = b + 1;
        /* loads its kernel, which must not happen while serving */
        set_rows(g, s, buckets[b] < rows ? buckets[b] : rows);
        if (!st && multiply(g, s, weights[0], x, y, 1, &s->algorithms[b], stream))
            st = error_set(err, STATUS_DEVICE, "a product of %u rows with [%u, %u] does not run",
                           buckets[b], is->N, is->K);
        if (last) break;
    }
    if (!st && cudaStreamSynchronize(stream))
        st = error_set(err, STATUS_DEVICE, "products of [%u, %u]", is->N, is->K);
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    return st;
}

struct gemm_cache *cuda_gemm_cache(struct cuda_gemm *g)
{
    return g->cache;
}

uint32_t cuda_gemm_settle(struct cuda_gemm *g)
{
    gemm_cache_close(g->cache);
    g->cache = NULL;
    return g->measured;
}

cudaError_t cuda_gemm_run(struct cuda_gemm *g, uint32_t id, const void *W, const void *x,
                          uint32_t M, void *y, float alpha, cudaStream_t stream)
{
    struct shape *s = &g->shapes[id];
    uint32_t b = 0;

    while (b + 1 < s->bucket_count && buckets[b] < M)
        b++;
    set_rows(g, s, M);
    return multiply(g, s, W, x, y, alpha, &s->algorithms[b], stream) ? cudaErrorUnknown
                                                                     : cudaSuccess;
}
