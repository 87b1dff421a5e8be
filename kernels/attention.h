/* attention.h - softmax(scale * q k^T) v over paged KV (kv_layout.h): three kernels for one formula.
 *
 *   out[r, h] = sum_t softmax_t(f(scale * q[r, h] . k[t, g])) v[t, g]    g = h / (heads / kv_heads),
 *   t from max(0, pos[r] + 1 - window) to pos[r];  f(s) = s, or cap * tanh(s / cap)
 *
 * paged_decode       one row per sequence, fast: head_dim 64, 80, 96, 128
 * prefill_attention  chunks of rows on tensor cores: head_dim 64, 96, 128; code for sm_90 also 80, 256
 * attention_general  any rows, any head_dim to 512: right, not fast
 * K and V of the rows themselves are already in their pages. Tokens past pos[r] in the last block may hold anything. Entries of a table for blocks
 * in front of the window of every row of its slot may name any block: they are not read. */
#pragma once

#include "common/context.h"

#ifdef __cplusplus
extern "C" {
#endif

struct attention_args {
    uint32_t rows, heads, kv_heads, head_dim;
    uint32_t window; /* 0: all */
    float scale, softcap;
    const void *q; /* [rows, q_stride] T: heads * head_dim used */
    uint64_t q_stride;
    void *out; /* [rows, out_stride] T */
    uint64_t out_stride;
    const void *kv;           /* the layer's pool */
    uint64_t kv_blocks;       /* in it; prefill_attention only */
    const int32_t *positions; /* [rows]; -1: a padding row, whose output is left alone */
    const int32_t *slots;     /* [rows] */
    const int32_t *row_list;  /* [rows] indices of the rows meant; NULL: 0..rows-1 */
    const int32_t *tables;    /* [slots, table_stride] block ids */
    uint32_t table_stride;
};

/* Scratch of paged_decode, shared by all layers. Counters are zero before the first launch and after each. */
struct decode_scratch {
    float *partial;      /* [rows, heads, splits_max, head_dim] */
    float *partial_ml;   /* [rows, heads, splits_max, 2] running maximum (log2) and sum */
    uint32_t *counters;  /* [rows, heads] */
    uint32_t splits_max; /* 1..64 */
    bool few_rows; /* parts as small as help one sequence; else as large as keep the device busy */
};

bool paged_decode_fits(uint32_t head_dim);
/* A row is cut in at most splits_max parts of a multiple of 128 tokens, from the first group of 32 tokens that it sees. With few_rows how
 * depends on its number of tokens and splits_max alone, so that a row's bits do not depend on who else is in the batch; else on the
 * tokens of all rows. */
cudaError_t paged_decode(const struct kernel_context *ctx, const struct attention_args *args,
                         const struct decode_scratch *scratch);

/* A tile: 128 (token, head) pairs of one KV head's group, from pair `pair` of a segment. */
struct prefill_tile {
    int32_t first_row, rows; /* of the segment */
    int32_t position;        /* of its first row */
    int32_t slot;
    int32_t pair; /* row of the segment * group + head of the group */
};
enum { PREFILL_TILE_PAIRS = 128 };
bool prefill_attention_fits(const struct kernel_context *ctx, uint32_t head_dim);
/* tiles: device, [tile_count], longest first is best. args->rows, positions and slots are not used. A row's bits do not
 * depend on its chunk or batch. */
cudaError_t prefill_attention(const struct kernel_context *ctx, const struct attention_args *args,
                              const struct prefill_tile *tiles, uint32_t tile_count);

enum { ATTENTION_HEAD_DIM_MAX = 512 };
cudaError_t attention_general(const struct kernel_context *ctx, const struct attention_args *args);

#ifdef __cplusplus
}
#endif
