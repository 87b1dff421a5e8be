/* medium_gemm.h - y = f(norm(x)) W^T for up to 64 rows: the products of steps of 17 to 64 rows, with their neighbours folded in
 * as skinny_gemm.h has them.
 *
 * W [N, K] is row-major with a row stride of K elements, K a multiple of 64, N of 8. Code for sm_90a only: medium_gemm_fits().
 * Norm      What adds to the residual stream (MEDIUM_RESIDUAL with next_gain) leaves h = T(x * gain) and, by row and tile, sums
 *           of squares; the product behind it reads h as its x and multiplies its own sums by 1 / rms (norm_sums). Only for
 *           bf16: f16 has not the range.
 * Numerics  an output's bits depend on W, on its own row of x and on the cut only: never on the other rows or M. */
#pragma once

#include "common/context.h"
#include "skinny_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MEDIUM_ROWS_MAX = 64 };

/* How a product is cut: blocks take `tile` rows of W and 1 / splits of K; the splits of `share` tiles are a cluster, in which x is
 * brought once for all blocks of one part of K. share is a power of two, splits * share <= CLUSTER_MAX. */
struct medium_shape {
    uint32_t tile; /* 64, 128, 144, 160, 208, 224 or 256 */
    uint32_t splits, share;
};
/* A weight as TMA sees it, and its cut. Made once. */
struct medium_weight {
    uint64_t map[16]; /* CUtensorMap: boxes of `tile` rows x the columns of a stage */
    uint32_t N, K;
    struct medium_shape shape;
};
bool medium_gemm_fits(const struct kernel_context *ctx, uint32_t M, uint32_t N, uint32_t K);
enum { MEDIUM_SHAPES_MAX = 128 }; /* more than there are */
/* The cuts that should be fastest, by a rule, the best first: at most `most` of them, at least one where the weight fits. */
uint32_t medium_shapes(const struct kernel_context *ctx, uint32_t N, uint32_t K,
                       struct medium_shape *out, uint32_t most);
/* W: device pointer, 16-byte aligned. shape: NULL: the rule's first. */
cudaError_t medium_weight_init(struct medium_weight *out, const struct kernel_context *ctx,
                               const void *W, uint32_t N, uint32_t K,
                               const struct medium_shape *shape);
/* Tiles of a weight: the number of sums of squares per row that its MEDIUM_RESIDUAL leaves. */
static inline uint32_t medium_tiles(const struct medium_weight *w)
{
    return (w->N + w->shape.tile - 1) / w->shape.tile;
}

/* The ends that skinny_gemm.h has, with their shapes. */
enum medium_epilogue {
    MEDIUM_STORE = SKINNY_STORE,
    MEDIUM_LOGITS = SKINNY_LOGITS,
    MEDIUM_RESIDUAL = SKINNY_RESIDUAL, /* and h, sums where next_gain is set */
    MEDIUM_GLU = SKINNY_GLU,
    MEDIUM_QKV = SKINNY_QKV, /* head_dim and rope_dim multiples of 4 */
};

struct medium_args {
    const struct medium_weight *weight; /* host */
    uint32_t M;                         /* 1..64 */
    const void *x;                      /* [M, x_stride] T; zeros in [its columns, K) */
    uint64_t x_stride;                  /* elements, a multiple of 8 */
    const float *norm_sums;             /* [M, norm_tiles] of x, or NULL: x is as it shall be */
    uint32_t norm_tiles, norm_cols;     /* norm_cols: columns that the mean is over */
    float norm_eps;
    const float *bias; /* [N], padded to 4, or NULL */
    enum medium_epilogue epilogue;
    int act; /* MEDIUM_GLU: 0 silu, 1 gelu (tanh) */
    float scale, softcap;
    void *y;
    uint64_t y_stride;
    const float *next_gain; /* [N] or NULL */
    void *h;                /* [M, h_stride] T */
    uint64_t h_stride;
    float *sums; /* [M, medium_tiles(weight)] */
    struct skinny_qkv qkv;
};
cudaError_t medium_gemm(const struct kernel_context *ctx, const struct medium_args *args);

#ifdef __cplusplus
}
#endif
