/* cuda_memory.h - the one door for the CUDA device's memory: no other file of this folder or of kernels/ asks the driver for any
 * (tests/e2e/test_structure.py looks).
 *
 * Compile takes one piece per region of cuda_layout.h and then seals the door: what is taken after it is counted (it stays 0;
 * device_fault.h has a fault that moves it). The driver takes memory too, for its context, loaded code and graphs: that is
 * planned by estimates (cuda_layout.h), seen as the shrinking of free memory, and looked at again now and then while serving.
 * Free memory is all that the driver tells, and it is the whole GPU's: what other processes hold, take and give back is in it.
 * Thread: the one that compiles; cuda_memory_look on the device's own thread; counters from any. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdatomic.h>

#include "device/cuda/cuda_layout.h"

/* Where the driver's memory goes. */
enum cuda_phase {
    CUDA_PHASE_CONTEXT, /* opening: the context and its streams; and all that other processes hold */
    CUDA_PHASE_REGIONS, /* our own pieces, and what their rounding to pages costs */
    CUDA_PHASE_LIBRARY, /* cuBLASLt: handle, its kernels */
    CUDA_PHASE_KERNELS, /* our kernels' code, loaded by their first run: while weights are made, and before graphs */
    CUDA_PHASE_GRAPHS,
    CUDA_PHASE_COUNT
};

struct cuda_memory {
    struct cuda_region_map regions[CUDA_REGION_COUNT];
    uint64_t taken_bytes; /* of the device, through this door */
    int64_t
        phase_bytes[CUDA_PHASE_COUNT]; /* by which free memory shrank during each, by whomever */
    uint64_t free_bytes, total_bytes;  /* when last looked at */
    uint64_t sealed_free_bytes;
    bool sealed;
    void *late; /* taken by a fault on purpose */
    _Atomic uint64_t late_allocations;
    _Atomic int64_t drift;
};

/* Free memory now; what it has lost since the last call belongs to `phase`. */
cudaError_t cuda_memory_phase(struct cuda_memory *m, enum cuda_phase phase);
/* What is gone from the GPU beside our own pieces: the driver's, and other processes'. */
uint64_t cuda_memory_beside(const struct cuda_memory *m);
/* Why that cannot be taken for the driver's alone, in words; NULL: nothing speaks against it. planned: the driver's estimate. */
const char *cuda_memory_others(const struct cuda_memory *m, uint64_t planned);
/* Takes every region of m->regions (bytes set). Everything starts as zeros, but the library's workspace: paddings stay so,
 * and no block holds NaN from an earlier owner of the memory. expected: bytes that the driver will want beside them.
 * Errors: STATUS_NOMEM with the arithmetic, STATUS_DEVICE. */
enum status cuda_memory_take(struct cuda_memory *m, uint64_t expected, struct error *err);
void cuda_memory_give_back(struct cuda_memory *m);
/* From here on nothing is taken any more. */
void cuda_memory_seal(struct cuda_memory *m);
/* Takes device memory all the same: FAULT_ALLOC. */
cudaError_t cuda_memory_take_late(struct cuda_memory *m);
/* Sets m->drift from what is free now. */
void cuda_memory_look(struct cuda_memory *m);
