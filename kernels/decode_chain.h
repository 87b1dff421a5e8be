/* decode_chain.h - all layers of a decode step of one row in one launch, for models so small that launches cost more than
 * their weights.
 *
 * Does what skinny_gemm (QKV, RESIDUAL, GLU, RESIDUAL) and paged_decode (few_rows) do for each layer, bit for bit, so that either may
 * run a step. Needs sm_90a, a device that holds a cluster of 16 blocks for each KV head at once, and one of the shapes that the code is
 * made for; decode_chain_fits() says so. x [hidden] f32 is read, goes through all layers and is written back; K and V
 * of the row go to their pages. */
#pragma once

#include "common/context.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DECODE_CHAIN_TOKENS_MAX = 2048,     /* of the row's sequence, with the row itself */
    DECODE_CHAIN_LINK_BYTES = 64 << 10, /* device memory by which its clusters talk */
    DECODE_CHAIN_PIECE_BYTES = 16       /* of a pool of pages: it counts them in 32 bits */
};

struct decode_chain_shape {
    uint32_t layers, hidden, ffn;
    uint32_t heads, kv_heads, head_dim, rope_dim;
};

/* Of layer 0; a later layer's lie `stride` bytes further on for each layer. */
struct decode_chain_weights {
    const void *attn_in, *attn_out, *ffn_in, *ffn_out; /* [N, K] T, as of skinny_gemm */
    const float *attn_gain, *ffn_gain;                 /* [hidden] */
    uint64_t stride;                                   /* a multiple of 16 */
};

/* What stays the same from step to step. Made once. */
struct decode_chain {
    struct decode_chain_shape shape;
    uint64_t maps[4][16]; /* CUtensorMap, of attn_in, attn_out, ffn_in, ffn_out */
    const char *attn_gain, *ffn_gain;
    uint64_t gain_stride;
};

struct decode_chain_args {
    const struct decode_chain *chain; /* host */
    float *x;                         /* [hidden] */
    void *
        link; /* [DECODE_CHAIN_LINK_BYTES] device, 128-byte aligned, zeros before the first launch; one launch at a time */
    float attn_eps, ffn_eps, scale;
    int act;            /* 0 silu, 1 gelu (tanh) */
    const float2 *rope; /* [positions, rope_dim / 2] */
    void *kv;           /* pool of layer 0 (kv_layout.h) */
    uint64_t kv_layer_bytes;
    /* device, one each */
    const int32_t
        *position; /* below DECODE_CHAIN_TOKENS_MAX; -1: a padding row, which writes no page */
    const int32_t *kv_slot; /* block * 16 + token of the block; -1: write nothing */
    const int32_t *slot;    /* row of `tables` */
    const int32_t *tables;  /* [slots, table_stride] block ids */
    uint32_t table_stride;
};

bool decode_chain_fits(const struct kernel_context *ctx, const struct decode_chain_shape *shape);
cudaError_t decode_chain_init(struct decode_chain *out, const struct decode_chain_shape *shape,
                              const struct decode_chain_weights *weights, enum kernel_type type);
cudaError_t decode_chain_run(const struct kernel_context *ctx,
                             const struct decode_chain_args *args);

#ifdef __cplusplus
}
#endif
