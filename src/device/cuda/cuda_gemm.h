/* cuda_gemm.h - products of many rows through cuBLASLt, loaded at run time (dlopen): the daemon starts without it.
 *
 * y [M, ldy] = alpha * x [M, ldx] W^T, W [N, K] row-major. For each shape an algorithm per bucket of M is chosen in
 * cuda_gemm_prepare (timed on the weights themselves, cold, and kept on disk: gemm_cache.h; with `fixed` the library's
 * first proposal, so that it is the same after every start) and no other is used: same step, same bytes. One workspace at one
 * address.
 * Thread: one. Nothing is allocated by cuda_gemm_run. */
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "formats/quant_blocks.h"

struct cuda_gemm;
struct gemm_cache;
struct cuda_gemm_shape {
    uint32_t N, K;
    uint64_t ldx, ldy; /* elements */
    bool y_float;      /* y is float32, else the compute type */
};

/* cache_folder: of choices measured before; NULL: none. Errors: STATUS_UNSUPPORTED (no library; says where it was
 * sought), STATUS_DEVICE. */
enum status cuda_gemm_open(enum dtype type, void *workspace, uint64_t workspace_bytes,
                           const char *cache_folder, struct cuda_gemm **out, struct error *err);
void cuda_gemm_close(struct cuda_gemm *gemm); /* takes NULL */

/* Chooses algorithms of a shape for up to `rows` rows. weights: some matrices of that shape, to time on. x and y: room for
 * `rows` rows. Known shapes are passed over. *id: for cuda_gemm_run. */
enum status cuda_gemm_prepare(struct cuda_gemm *gemm, const struct cuda_gemm_shape *shape,
                              const void *const *weights, uint32_t weight_count, const void *x,
                              void *y, uint32_t rows, bool fixed, cudaStream_t stream, uint32_t *id,
                              struct error *err);
/* Where choices are kept, for those of other products too; NULL: nowhere. Gone after cuda_gemm_settle. */
struct gemm_cache *cuda_gemm_cache(struct cuda_gemm *gemm);
/* All shapes are prepared: what was measured goes to disk. Returns how many choices were measured, not read. */
uint32_t cuda_gemm_settle(struct cuda_gemm *gemm);
/* Errors: what the stream has had before, else what the library says, in CUDA's words. */
cudaError_t cuda_gemm_run(struct cuda_gemm *gemm, uint32_t id, const void *W, const void *x,
                          uint32_t M, void *y, float alpha, cudaStream_t stream);
