#include "device/cuda/cuda_memory.h"

#include <assert.h>
#include <stdlib.h>

enum {
    LATE_BYTES = 8 << 20,
    SLACK_BYTES =
        16 << 20, /* what small pieces find room in, of pages that the driver has taken before */
};

cudaError_t cuda_memory_phase(struct cuda_memory *m, enum cuda_phase phase)
{
    size_t available, total;
    cudaError_t e = cudaMemGetInfo(&available, &total);

    if (e) return e;
    if (phase == CUDA_PHASE_CONTEXT) m->free_bytes = total;
    m->phase_bytes[phase] += (int64_t)m->free_bytes - (int64_t)available;
    m->free_bytes = available, m->total_bytes = total;
    return cudaSuccess;
}

uint64_t cuda_memory_beside(const struct cuda_memory *m)
{
    return m->total_bytes - m->free_bytes - m->taken_bytes;
}

const char *cuda_memory_others(const struct cuda_memory *m, uint64_t planned)
{
    for (int p = CUDA_PHASE_REGIONS; p < CUDA_PHASE_COUNT; p++) {
        int64_t ours = p == CUDA_PHASE_REGIONS ? (int64_t)m->taken_bytes : 0;
        if (m->phase_bytes[p] < ours - SLACK_BYTES)
            return "other processes have given back memory of this GPU meanwhile";
    }
    if (cuda_memory_beside(m) > planned)
        return "more is gone than planned: other processes use this GPU, or its driver takes more "
               "than the one that was measured";
    return NULL;
}

static cudaError_t take(struct cuda_memory *m, enum cuda_region which, uint64_t bytes, void **out)
{
    cudaError_t e;

    if (m->sealed) atomic_fetch_add(&m->late_allocations, 1);
    if (which == CUDA_HOST_LOGITS) {
        *out = calloc(1, bytes);
        return *out ? cudaSuccess : cudaErrorMemoryAllocation;
    }
    if (cuda_region_on_host(which)) return cudaHostAlloc(out, bytes, cudaHostAllocPortable);
    e = cudaMalloc(out, bytes);
    if (!e) m->taken_bytes += bytes;
    if (!e && which != CUDA_WORKSPACE) e = cudaMemset(*out, 0, bytes);
    return e;
}

static enum status check_fit(const struct cuda_memory *m, uint64_t expected, struct error *err)
{
    uint64_t want = expected;

    for (uint32_t r = 0; r < CUDA_REGION_COUNT; r++)
        if (!cuda_region_on_host(r)) want += m->regions[r].bytes;
    if (want <= m->free_bytes) return STATUS_OK;
    return error_set(
        err, STATUS_NOMEM,
        "the GPU has %llu MiB free of %llu; %llu MiB are needed (weights %llu, KV pool %llu, "
        "activations %llu, "
        "logits %llu, the driver's code and graphs %llu, other %llu): make the KV pool, the "
        "context or the batch "
        "smaller, or end what else uses this GPU",
        (unsigned long long)m->free_bytes >> 20, (unsigned long long)m->total_bytes >> 20,
        (unsigned long long)want >> 20, (unsigned long long)m->regions[CUDA_WEIGHTS].bytes >> 20,
        (unsigned long long)m->regions[CUDA_KV].bytes >> 20,
        (unsigned long long)m->regions[CUDA_ACTIVATIONS].bytes >> 20,
        (unsigned long long)m->regions[CUDA_LOGITS].bytes >> 20, (unsigned long long)expected >> 20,
        (unsigned long long)(want - expected - m->regions[CUDA_WEIGHTS].bytes -
                             m->regions[CUDA_KV].bytes - m->regions[CUDA_ACTIVATIONS].bytes -
                             m->regions[CUDA_LOGITS].bytes) >>
            20);
}

enum status cuda_memory_take(struct cuda_memory *m, uint64_t expected, struct error *err)
{
    enum status st = check_fit(m, expected, err);

    for (uint32_t r = 0; !st && r < CUDA_REGION_COUNT; r++) {
        void *at = NULL;
        cudaError_t e = m->regions[r].bytes ? take(m, r, m->regions[r].bytes, &at) : cudaSuccess;
        m->regions[r].base = at;
        if (e)
            st = error_set(err, STATUS_NOMEM, "%llu MiB for the %s: %s",
                           (unsigned long long)m->regions[r].bytes >> 20, cuda_region_name(r),
                           cudaGetErrorString(e));
    }
    if (st) return st;
    /* the device's streams do not wait for the default stream, which the zeros went through */
    cudaError_t e = cudaDeviceSynchronize();
    if (!e) e = cuda_memory_phase(m, CUDA_PHASE_REGIONS);
    return e ? error_set(err, STATUS_DEVICE, "clearing the device's memory: %s",
                         cudaGetErrorString(e))
             : STATUS_OK;
}

void cuda_memory_give_back(struct cuda_memory *m)
{
    for (uint32_t r = 0; r < CUDA_REGION_COUNT; r++) {
        void *base = m->regions[r].base;
        m->regions[r].base = NULL;
        if (!base) continue;
        if (r == CUDA_HOST_LOGITS)
            free(base);
        else if (cuda_region_on_host(r))
            cudaFreeHost(base);
        else
            cudaFree(base);
    }
    if (m->late) cudaFree(m->late);
    m->late = NULL;
    m->taken_bytes = 0;
}

void cuda_memory_seal(struct cuda_memory *m)
{
    m->sealed = true;
    m->sealed_free_bytes = m->free_bytes;
}

cudaError_t cuda_memory_take_late(struct cuda_memory *m)
{
    assert(m->sealed && !m->late);
    return take(m, CUDA_WORKSPACE, LATE_BYTES, &m->late);
}

void cuda_memory_look(struct cuda_memory *m)
{
    size_t available, total;

    if (!m->sealed || cudaMemGetInfo(&available, &total)) return;
    atomic_store(&m->drift, (int64_t)m->sealed_free_bytes - (int64_t)available);
}
