/* row_ops.h - what stands between the products: embedding, norms with the residual, gated activation, RoPE and KV write.
 *
 * The residual stream x is float32 [rows, x_stride], x_stride = hidden rounded up to 64 with zeros in the rest, which no
 * kernel writes. Other activations are T with such strides too. Vectors (gains, biases) are float32. */
#pragma once

#include "common/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x[r] = table[token[r]] * scale; a padding row (token < 0) becomes zeros. */
struct embed_args {
    uint32_t rows, hidden;
    const int32_t *tokens;
    const void *table; /* [vocab, table_stride] T */
    uint64_t table_stride;
    float scale;
    float *x;
    uint64_t x_stride;
};
cudaError_t embed(const struct kernel_context *ctx, const struct embed_args *args);

/* With delta: d = delta + delta_bias, then normed with post_gain where given, x += d. With gain: y = norm(x) * gain.
 * norm(v) = v / sqrt(mean(v^2) + eps). row_index picks the rows of x for y (then without delta). */
struct norm_args {
    uint32_t rows, hidden;
    float *x;
    uint64_t x_stride;
    const int32_t *row_index; /* or NULL */
    const void *delta;        /* [rows, delta_stride] T or NULL */
    uint64_t delta_stride;
    const float *delta_bias; /* or NULL */
    const float *post_gain;  /* or NULL */
    float post_eps;
    const float *gain; /* or NULL: no y */
    float eps;
    void *y; /* [rows, y_stride] T */
    uint64_t y_stride;
};
enum { NORM_HIDDEN_MAX = 49152 }; /* a row is kept in registers */
cudaError_t rmsnorm(const struct kernel_context *ctx, const struct norm_args *args);

/* x_to[i] = x[row_index[i]], a_to[i] = a[row_index[i]]; what is read and what is written do not overlap. */
struct pack_args {
    uint32_t rows;
    const int32_t *row_index; /* [rows] */
    const float *x;           /* strides in elements, multiples of 64 */
    float *x_to;
    uint64_t x_stride;
    const void *a; /* T */
    void *a_to;
    uint64_t a_stride;
};
cudaError_t pack_rows(const struct kernel_context *ctx, const struct pack_args *args);

/* y[r, i] = act(gu[r, 2i] + bias[2i]) * (gu[r, 2i + 1] + bias[2i + 1]) */
struct glu_args {
    uint32_t rows, width; /* of y */
    const void *gu;       /* [rows, gu_stride] T */
    uint64_t gu_stride;
    const float *bias; /* [2 * width] or NULL */
    int act;           /* 0 silu, 1 gelu (tanh) */
    void *y;           /* [rows, y_stride] T */
    uint64_t y_stride;
};
cudaError_t glu(const struct kernel_context *ctx, const struct glu_args *args);

/* qkv rows (q heads, k heads, v heads) -> bias, norm over each head of q and k, RoPE on neighbours 2i, 2i+1 of the first
 * rope_dim dims; q to q_out, k and v to the pages (kv_layout.h). */
struct rope_kv_args {
    uint32_t rows, heads, kv_heads, head_dim;
    const void *qkv; /* [rows, qkv_stride] T */
    uint64_t qkv_stride;
    const float *bias;            /* [(heads + 2 kv_heads) * head_dim] or NULL */
    const float *q_gain, *k_gain; /* [head_dim] or NULL */
    float q_eps, k_eps;
    uint32_t rope_dim;
    const float2 *rope;       /* [positions, rope_dim / 2] */
    const int32_t *positions; /* -1: padding */
    const int32_t *kv_slots;  /* block * 16 + token; -1: no write */
    void *q_out;              /* [rows, q_stride] T */
    uint64_t q_stride;
    void *kv;
};
cudaError_t rope_kv(const struct kernel_context *ctx, const struct rope_kv_args *args);

/* cap * tanh(v / cap) over n floats. */
cudaError_t softcap_logits(const struct kernel_context *ctx, float *v, uint64_t n, float cap);

/* rope[pos, i] = (cos, sin)(pos * inv_freq[i]) * scale, angles are float32 products, as device/cpu has them. */
cudaError_t rope_table(const struct kernel_context *ctx, const float *inv_freq, uint32_t half_dim,
                       uint32_t positions, float scale, float2 *out);

/* Made-up weights, the values of device/dummy_weights.c rounded to T: row r of the matrix goes to row map[r] of
 * out [., stride]. map: device, [rows]. */
cudaError_t fill_dummy(const struct kernel_context *ctx, void *out, uint64_t stride, uint32_t rows,
                       uint32_t cols, const uint32_t *map, uint64_t seed);

/* 32-bit words of memory set to `pattern` (tests poison outputs and scratch with NaN patterns). */
cudaError_t fill_words(const struct kernel_context *ctx, void *out, uint64_t words,
                       uint32_t pattern);

#ifdef __cplusplus
}
#endif
