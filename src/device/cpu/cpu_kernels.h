/* cpu_kernels.h - the loops of the CPU device that are not matrix products, for each instruction set.
 *
 * One source (cpu_kernels_body.h), compiled for plain x86-64 or ARM, AVX2 and AVX-512: vectors are always 16 floats wide and
 * sums keep their order, so the sets differ only in fused multiply-add and half-precision conversion.
 * Attention takes 64 tokens at a time (a span, at absolute positions), stored in tiles of 16, t .. t + 15 with t % 16 == 0:
 *   keys    [head_dim][16]   a column is a token, so that a lane is a token and a score needs no sum across lanes
 *   values  [16][dim_padded] dim_padded: head_dim rounded up to 16
 * in float32 or float16. Thread: any; all state is the caller's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/cpu/linear.h"

enum { KV_TILE = 16, KV_SPAN = 64, KV_SPLIT = 256 };

/* The running softmax of queries over part of their tokens: max of the scores; sum of exp(score - max), apart for tokens of
 * equal position % 16; and the sum of exp(score - max) * value. */
struct attend_state {
    float *max; /* [queries] */
    float *sum; /* [queries][16] */
    float *acc; /* [queries][dim_padded], 64-byte aligned */
};

/* Queries of consecutive rows of one sequence that share a KV head. */
struct attend_tile {
    const float *q;       /* row r, head g of the group: q + r * q_stride + g * head_dim */
    uint64_t q_stride;    /* floats */
    uint32_t rows, heads; /* heads: query heads per KV head */
    uint32_t first_pos;   /* absolute position of row 0 */
    uint32_t window;      /* 0: all */
    uint32_t head_dim, dim_padded;
    float scale, softcap;
    bool half; /* the pool holds float16 */
    /* keys and values of token t: block table[t / block_tokens], at key_at + value_at within the block. Entries of blocks that no row sees
     * (past its position, in front of its window) are not read. */
    const uint32_t *table;
    const char *pool;
    uint64_t block_bytes, kv_at; /* offset of this layer's and head's part within a block */
    uint32_t block_tokens;
    float *scratch; /* [64 * (head_dim + dim_padded)], 64-byte aligned, for converted halves */
};

struct cpu_kernels {
    /* Largest value; *finite: whether all are finite. */
    float (*max_finite)(const float *x, uint32_t n, bool *finite);
    /* First i in [from, n) with x[i] >= least, else n. */
    uint32_t (*find)(const float *x, uint32_t from, uint32_t n, float least);
    /* All such i, ascending, into out [n]; returns how many. */
    uint32_t (*gather)(const float *x, uint32_t n, float least, uint32_t *out);
    /* Sum of x, in double over runs of 256. */
    double (*sum)(const float *x, uint32_t n);
    /* p = exp((x - max) * scale), p may be NULL; returns their sum, in double over runs of 256 */
    double (*exp_store)(const float *x, uint32_t n, float max, float scale, float *p);
    /* out = x / sqrt(mean(x^2) + eps) * (gain + offset); out may be x */
    void (*norm)(const float *x, uint32_t n, float eps, const float *gain, float offset,
                 float *out);
    /* gate = act(gate) * up */
    void (*act_mul)(enum activation act, float *gate, const float *up, uint32_t n);
    /* One token's key and value of a head into its place (column % 16 of a tile). */
    void (*kv_store)(const float *k, const float *v, uint32_t head_dim, uint32_t dim_padded,
                     bool half, uint32_t column, void *keys, void *values);
    /* Attention of a tile over tokens [begin, end) of one split; begin % 64 == 0. Fills the state anew. */
    void (*attend)(const struct attend_tile *tile, uint32_t begin, uint32_t end,
                   struct attend_state *state);
    /* total = total joined with part, query by query: called in order of position. */
    void (*attend_join)(struct attend_state *total, const struct attend_state *part,
                        uint32_t queries, uint32_t dim_padded);
    /* out [head_dim] = acc / sum of query `at` */
    void (*attend_finish)(const struct attend_state *total, uint32_t at, uint32_t head_dim,
                          uint32_t dim_padded, float *out);
};
const struct cpu_kernels *cpu_kernels(enum cpu_isa isa);
