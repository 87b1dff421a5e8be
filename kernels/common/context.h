/* context.h - what every launcher needs to know of the device: plain C.
 *
 * Each family of kernels has one header of C launchers. A launcher takes a struct of pointers with the shape on
 * each field, owns every launch number, allocates nothing, and is safe in a stream capture.
 *
 * Chains of launches run under programmatic dependent launch (pdl): a kernel may start while its predecessor ends. Each
 * kernel here therefore (1) sets up what depends on nobody, (2) lets its successor start (pdl_trigger), (3) waits for its
 * predecessor (pdl_wait) before the first dependent read and before any global write. Every block waits, also one with no
 * work: the chain is transitive only so. What changes from step to step and is there before the chain begins (positions, slots,
 * tables) may be read before pdl_wait(), but past L1 (__ldcg): such a launch need not empty it of what a step before left there. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kernel_type { KERNEL_BF16, KERNEL_F16 }; /* of weights, activations and KV */

enum { CLUSTER_MAX = 8 }; /* blocks, that every device with clusters can place somewhere */

struct kernel_context {
    cudaStream_t stream;
    int sm_count;
    int capability; /* 90: code for sm_90a runs, with TMA and programmatic dependent launch; else 80 */
    bool pdl;
    enum kernel_type type;
    /* [n]: how many clusters of n blocks, of one block per SM, the device holds at once; 0: none */
    uint16_t clusters[CLUSTER_MAX + 1];
};

/* Fills sm_count, capability, pdl and clusters of the current device; the rest is zeroed. */
cudaError_t kernel_context_init(struct kernel_context *ctx);

#ifdef __cplusplus
}
#endif
