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

/* clang-format off */
#define FUNCTIONS(X)                        \
    X(cublasLtCreate)                       \
    X(cublasLtGetVersion)                   \
    X(cublasLtGetStatusString)              \
    X(cublasLtDestroy)                      \
    X(cublasLtMatmul)                       \
    X(cublasLtMatmulAlgoCheck)              \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatrixLayoutCreate)           \
    X(cublasLtMatrixLayoutDestroy)          \
    X(cublasLtMatrixLayoutSetAttribute)     \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceDestroy)      \
    X(cublasLtMatmulPreferenceSetAttribute)
/* clang-format on */

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

    if (!st) {
        cublasStatus_t status = g->cublasLtCreate(&g->handle);
        if (!status)
            status = g->cublasLtMatmulDescCreate(&g->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        if (!status)
            status = g->cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                       &transposed, sizeof transposed);
        if (status)
            st = error_set(err, STATUS_DEVICE, "cuBLASLt cannot start: %s",
                           g->cublasLtGetStatusString(status));
    }
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
        cublasLtMatrixLayout_t layouts[] = {g->shapes[i].W, g->shapes[i].x, g->shapes[i].y};
        for (int k = 0; k < 3; k++)
            if (layouts[k]) g->cublasLtMatrixLayoutDestroy(layouts[k]);
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

/* What a shape's algorithms are timed on. */
struct timing {
    const void *const *weights;
    uint32_t weight_count;
    const void *x;
    void *y;
    cudaStream_t stream;
    cudaEvent_t begin, end;
};

/* Best time of a proposal, every run on another weight so that none is found in L2; < 0: it does not run. */
static float time_algorithm(struct cuda_gemm *g, const struct shape *s, const struct timing *t,
                            const cublasLtMatmulAlgo_t *algorithm)
{
    float best = -1, ms;

    for (uint32_t run = 0; run <= TIMED_RUNS; run++) {
        const void *W = t->weights[run % t->weight_count];
        if (cudaEventRecord(t->begin, t->stream) ||
            multiply(g, s, W, t->x, t->y, 1, algorithm, t->stream) ||
            cudaEventRecord(t->end, t->stream) || cudaEventSynchronize(t->end) ||
            cudaEventElapsedTime(&ms, t->begin, t->end))
            return -1;
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

/* At most `most` proposals of the library, its own favourite first. The rows are set. */
static enum status propose(struct cuda_gemm *g, const struct shape *s, uint32_t rows, int most,
                           cublasLtMatmulHeuristicResult_t *found, int *count, struct error *err)
{
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = g->cublasLtMatmulPreferenceCreate(&preference);

    if (status)
        return error_set(err, STATUS_NOMEM, "the product library: %s",
                         g->cublasLtGetStatusString(status));
    g->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &g->workspace_bytes, sizeof g->workspace_bytes);
    status = g->cublasLtMatmulAlgoGetHeuristic(g->handle, g->product, s->W, s->x, s->y, s->y,
                                               preference, most, found, count);
    g->cublasLtMatmulPreferenceDestroy(preference);
    if (status || !*count)
        return error_set(err, STATUS_UNSUPPORTED,
                         "cuBLASLt has no product for %u rows of [%u, %u]: %s", rows, s->is.N,
                         s->is.K, status ? g->cublasLtGetStatusString(status) : "no proposal");
    return STATUS_OK;
}

static enum status choose(struct cuda_gemm *g, struct shape *s, uint32_t b, bool fixed,
                          const struct timing *t, struct error *err)
{
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    float best_ms = -1;
    int count = 0, best = 0;
    enum status st;

    set_rows(g, s, buckets[b]);
    if (!fixed && recall(g, s, b)) return STATUS_OK;
    st = propose(g, s, buckets[b], fixed ? 1 : PROPOSALS, found, &count, err);
    if (st) return st;
    for (int i = 0; !fixed && i < count; i++) {
        float ms = time_algorithm(g, s, t, &found[i].algo);
        if (ms >= 0 && (best_ms < 0 || ms < best_ms * 0.98f))
            best_ms = ms, best = i; /* noise picks the earlier */
    }
    s->algorithms[b] = found[best].algo;
    if (!fixed) remember(g, s, b);
    return STATUS_OK;
}

/* All buckets up to `rows` rows, each run once, which loads its kernel: that must not happen while serving. */
static enum status choose_all(struct cuda_gemm *g, struct shape *s, uint32_t rows, bool fixed,
                              const struct timing *t, struct error *err)
{
    enum status st = STATUS_OK;
    bool last = false;

    for (uint32_t b = 0; !st && !last; b++) {
        last = buckets[b] >= rows || b == BUCKETS - 1;
        /* a bucket wider than the buffers has the library's favourite, untimed */
        st = choose(g, s, b, fixed || buckets[b] > rows, t, err);
        if (st) return st;
        s->bucket_count = b + 1;
        set_rows(g, s, buckets[b] < rows ? buckets[b] : rows);
        cublasStatus_t status =
            multiply(g, s, t->weights[0], t->x, t->y, 1, &s->algorithms[b], t->stream);
        if (status)
            st =
                error_set(err, STATUS_DEVICE, "a product of %u rows with [%u, %u] does not run: %s",
                          buckets[b], s->is.N, s->is.K, g->cublasLtGetStatusString(status));
    }
    return st;
}

static bool same_shape(const struct cuda_gemm_shape *a, const struct cuda_gemm_shape *b)
{
    return a->N == b->N && a->K == b->K && a->ldx == b->ldx && a->ldy == b->ldy &&
           a->y_float == b->y_float;
}

static enum status add_shape(struct cuda_gemm *g, const struct cuda_gemm_shape *is,
                             struct error *err)
{
    struct shape *s = &g->shapes[g->shape_count];
    cublasStatus_t status;

    if (g->shape_count == SHAPES_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "the model has more than %d shapes of weights",
                         SHAPES_MAX);
    *s = (struct shape){.is = *is};
    /* Column-major as the library has it: y^T [N, M] = W [K, N]^T x^T [K, M]. */
    status = g->cublasLtMatrixLayoutCreate(&s->W, g->type, is->K, is->N, is->K);
    if (!status) status = g->cublasLtMatrixLayoutCreate(&s->x, g->type, is->K, 8, (int64_t)is->ldx);
    if (!status)
        status = g->cublasLtMatrixLayoutCreate(&s->y, is->y_float ? CUDA_R_32F : g->type, is->N, 8,
                                               (int64_t)is->ldy);
    g->shape_count++; /* what there is of it is freed with the others */
    return status ? error_set(err, STATUS_NOMEM, "the product library: %s",
                              g->cublasLtGetStatusString(status))
                  : STATUS_OK;
}

enum status cuda_gemm_prepare(struct cuda_gemm *g, const struct cuda_gemm_shape *is,
                              const void *const *weights, uint32_t weight_count, const void *x,
                              void *y, uint32_t rows, bool fixed, cudaStream_t stream, uint32_t *id,
                              struct error *err)
{
    struct timing t = {weights, weight_count, x, y, stream, NULL, NULL};
    enum status st;
    cudaError_t e;

    for (*id = 0; *id < g->shape_count; ++*id)
        if (same_shape(&g->shapes[*id].is, is)) return STATUS_OK;
    st = add_shape(g, is, err);
    if (st) return st;
    e = cudaEventCreate(&t.begin);
    if (!e) e = cudaEventCreate(&t.end);
    if (!e) st = choose_all(g, &g->shapes[*id], rows, fixed, &t, err);
    if (!e && !st) e = cudaStreamSynchronize(stream);
    if (e)
        st = error_set(err, STATUS_DEVICE, "products of [%u, %u]: %s", is->N, is->K,
                       cudaGetErrorString(e));
    if (t.begin) cudaEventDestroy(t.begin);
    if (t.end) cudaEventDestroy(t.end);
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

/* In CUDA's words: what the stream has had before, or what the library says. */
static cudaError_t cause_of(cublasStatus_t status, cudaStream_t stream)
{
    cudaError_t e = status ? cudaStreamQuery(stream) : cudaSuccess;

    if (!status || (e && e != cudaErrorNotReady)) return e;
    switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED: return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_INVALID_VALUE: return cudaErrorInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED: return cudaErrorNotSupported;
    case CUBLAS_STATUS_EXECUTION_FAILED: return cudaErrorLaunchFailure;
    default: return cudaErrorUnknown;
    }
}

cudaError_t cuda_gemm_run(struct cuda_gemm *g, uint32_t id, const void *W, const void *x,
                          uint32_t M, void *y, float alpha, cudaStream_t stream)
{
    struct shape *s = &g->shapes[id];
    uint32_t b = 0;

    while (b + 1 < s->bucket_count && buckets[b] < M)
        b++;
    set_rows(g, s, M);
    return cause_of(multiply(g, s, W, x, y, alpha, &s->algorithms[b], stream), stream);
}
