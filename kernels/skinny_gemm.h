/* skinny_gemm.h - y = f(norm(x)) W^T for 1..16 rows: the products of decode, with their neighbours folded in.
 *
 * W [N, K] is row-major with a row stride of K elements, K a multiple of 64 (the caller pads with zeros): the same copy
 * that cuBLASLt reads. Needs sm_90 (TMA): skinny_gemm_fits() says whether a shape can run.
 * Prologue  x as is (type T), or x = rmsnorm of a float32 row; rows may be picked by index.
 * Epilogue  one of enum skinny_epilogue.
 * Numerics  an output's bits depend on W, on its own row of x and on N, K only: never on the other rows, M, or the grid. */
#pragma once

#include "common/context.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SKINNY_ROWS_MAX = 16 };

enum skinny_epilogue {
    SKINNY_STORE,    /* y [M, y_stride] T */
    SKINNY_LOGITS,   /* y [M, y_stride] f32, times scale, then softcap */
    SKINNY_RESIDUAL, /* x_out [M, y_stride] f32 += y */
    SKINNY_GLU, /* rows 2i, 2i+1 of W are gate and up: y [M, y_stride] T = act(gate) * up, N/2 columns */
    SKINNY_QKV, /* rows of W are q heads, k heads, v heads: q rotated to y; k rotated, v to the KV pages */
};

/* A weight as TMA sees it: boxes of 16 rows x 64 columns, `blocks` of them along K per stage. Made once. */
struct skinny_weight {
    uint64_t map[16]; /* CUtensorMap */
    uint32_t N, K;
    uint32_t blocks; /* 64-column blocks per stage, 1..16 */
};
/* W: device pointer, 16-byte aligned, K % 64 == 0. */
cudaError_t skinny_weight_init(struct skinny_weight *out, const void *W, uint32_t N, uint32_t K,
                               enum kernel_type type);

struct skinny_qkv {
    uint32_t heads, kv_heads, head_dim;
    uint32_t
        rope_dim; /* rotated dims at the head's start, even; partners are neighbours 2i, 2i+1 */
    const float2 *rope;       /* [positions, rope_dim/2] cos, sin */
    const int32_t *positions; /* [M]; -1: a padding row */
    const int32_t *kv_slots;  /* [M] block * 16 + token of the block; -1: write nothing */
    void *kv;                 /* the layer's pool, kv_layout.h */
};

struct skinny_args {
    const struct skinny_weight *weight; /* host */
    uint32_t M;                         /* 1..16 */
    const void *x;     /* [rows, x_stride] T, or f32 where norm_gain is set; zeros in [x_cols, K) */
    uint64_t x_stride; /* elements */
    uint32_t x_cols;   /* real columns, <= K */
    const int32_t *row_index; /* [M] rows of x, or NULL: 0..M-1 */
    const float *norm_gain;   /* [K], zeros past x_cols; or NULL: no norm */
    float norm_eps;
    const float *bias; /* [N] or NULL */
    enum skinny_epilogue epilogue;
    int act; /* SKINNY_GLU: 0 silu, 1 gelu (tanh) */
    float scale, softcap;
    void *y;
    uint64_t y_stride;
    struct skinny_qkv qkv;
};

bool skinny_gemm_fits(const struct kernel_context *ctx, uint32_t M, uint32_t K, bool norm);
cudaError_t skinny_gemm(const struct kernel_context *ctx, const struct skinny_args *args);

#ifdef __cplusplus
}
#endif
