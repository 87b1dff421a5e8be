#include "gpu.h"

#include <math.h>
#include <stdlib.h>

#include "device/cuda/cuda_driver.h"
#include "formats/quant_blocks.h"

enum { BUFFERS_MAX = 2048, GUARD_BYTES = 256 };
static struct {
    unsigned char *at;
    size_t bytes;
} buffers[BUFFERS_MAX];
static uint32_t buffer_count;
static char reason[512];

bool gpu_begin(struct kernel_context *ctx, enum kernel_type type)
{
    struct error err;
    int count = 0;
    enum status st = cuda_driver_count(&count, &err);
    cudaError_t e = st ? cudaSuccess : kernel_context_init(ctx);

    if (st || e) {
        snprintf(reason, sizeof reason, "%s", st ? err.message : cudaGetErrorString(e));
        return false;
    }
    ctx->type = type;
    EXPECT_CUDA(cudaStreamCreate(&ctx->stream));
    buffer_count = 0;
    return true;
}

const char *gpu_reason(void)
{
    return reason;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value && strcmp(value, "0") != 0;
}

bool gpu_small(void)
{
    return is_set("INFERD_GPU_SMALL");
}

enum fill { FILL_ZERO = 0, FILL_NAN = 0xff, FILL_NONE = -1 };

static void *take(size_t bytes, enum fill fill)
{
    size_t padded = (bytes + 255) / 256 * 256;
    void *at;

    assert_true(buffer_count < BUFFERS_MAX);
    EXPECT_CUDA(cudaMalloc(&at, padded + GUARD_BYTES));
    if (fill != FILL_NONE) EXPECT_CUDA(cudaMemset(at, (int)fill, padded));
    EXPECT_CUDA(cudaMemset((char *)at + bytes, 0xa5, padded - bytes + GUARD_BYTES));
    EXPECT_CUDA(cudaDeviceSynchronize());
    buffers[buffer_count].at = at;
    buffers[buffer_count++].bytes = bytes;
    return at;
}

void *gpu_poisoned(size_t bytes)
{
    return take(bytes, FILL_NAN);
}

void *gpu_scratch(size_t bytes)
{
    return take(bytes, is_set("INFERD_GPU_RAW") ? FILL_NONE : FILL_NAN);
}

void *gpu_zeroed(size_t bytes)
{
    return take(bytes, FILL_ZERO);
}

void *gpu_upload(const void *host, size_t bytes)
{
    void *at = take(bytes, FILL_NONE);

    EXPECT_CUDA(cudaMemcpy(at, host, bytes, cudaMemcpyHostToDevice));
    return at;
}

void gpu_download(const struct kernel_context *ctx, const void *device, void *host, size_t bytes)
{
    EXPECT_CUDA(cudaStreamSynchronize(ctx->stream));
    EXPECT_CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

void gpu_end(struct kernel_context *ctx)
{
    unsigned char guard[GUARD_BYTES];

    EXPECT_CUDA(cudaStreamSynchronize(ctx->stream));
    for (uint32_t i = 0; i < buffer_count; i++) {
        EXPECT_CUDA(cudaMemcpy(guard, buffers[i].at + buffers[i].bytes, sizeof guard,
                               cudaMemcpyDeviceToHost));
        for (int k = 0; k < GUARD_BYTES; k++)
            if (guard[k] != 0xa5)
                fail_msg("buffer %u of %zu bytes was written past its end", i, buffers[i].bytes);
        EXPECT_CUDA(cudaFree(buffers[i].at));
    }
    buffer_count = 0;
    EXPECT_CUDA(cudaStreamDestroy(ctx->stream));
}

uint16_t type_bits(enum kernel_type type, float v)
{
    return type == KERNEL_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
}

float type_value(enum kernel_type type, uint16_t bits)
{
    return type == KERNEL_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

float type_round(enum kernel_type type, float v)
{
    return type_value(type, type_bits(type, v));
}

static float random_value(size_t i, float amplitude)
{
    float v = (float)(test_rand_unit() * 2 - 1) * amplitude;

    return i % 64 == 63 ? v * 8 : v;
}

uint16_t *random_values(enum kernel_type type, size_t n, float amplitude)
{
    uint16_t *v = malloc(n * sizeof *v);

    for (size_t i = 0; i < n; i++)
        v[i] = type_bits(type, random_value(i, amplitude));
    return v;
}

float *random_floats(size_t n, float amplitude)
{
    float *v = malloc(n * sizeof *v);

    for (size_t i = 0; i < n; i++)
        v[i] = random_value(i, amplitude);
    return v;
}

double relative_error(const double *want, const float *got, size_t n)
{
    double difference = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) fail_msg("value %zu is %g; expected %g", i, (double)got[i], want[i]);
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(difference / (size + 1e-300));
}
