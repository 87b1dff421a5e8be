/* kv_layout.h - how K and V lie in a block: plain C, the one place that knows.
 *
 *   pool of a layer   [block][kv head][record]
 *   record            K [16 tokens][D], then V [2][D][8]: token t, dim e at ((t / 8) * D + e) * 8 + t % 8
 *
 * K rows are what the tensor cores want as B operand of q k^T. V is interleaved by eight tokens so that a lane's
 * 16 bytes are 8 tokens of one dim: the B operand of p v without a transpose, in decode and in prefill.
 * Numbers are the kernels' type (bf16 or f16). Blocks of one layer lie together; a block of all layers is
 * `layers` pieces of kv_block_elements(). */
#pragma once

#include <stdint.h>

enum { KV_BLOCK_TOKENS = 16 };

static inline uint64_t kv_record_elements(uint32_t head_dim)
{
    return 2ull * KV_BLOCK_TOKENS * head_dim;
}
static inline uint64_t kv_block_elements(uint32_t kv_heads, uint32_t head_dim)
{
    return kv_heads * kv_record_elements(head_dim);
}
