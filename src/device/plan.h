/* plan.h - the forward pass as data.
 *
 * model_plan() (model/) turns a config, the weight table and this rank's shard into a `struct plan`: a list of typed
 * stages. A device compiles it (device.h); the CPU walks it; CUDA may fuse neighbours; pipeline parallelism cuts it. One
 * list per architecture family serves every device, so a stage has no field that only one device understands.
 *
 * The residual stream x [rows, hidden] runs through the list:
 *   embed     x = table[token] * scale
 *   attn_in   h = norm(x); q, k, v = h Wq^T + bq, ...; q, k = head_norm(q), head_norm(k); rope; k, v -> KV pages
 *   attn      a = softmax(scale * q k^T, causal, window) v
 *   attn_out  x = x + post_norm(a Wo^T + bo)               (reduce: sum over ranks before the residual)
 *   ffn_in    h = norm(x); f = act(h Wgate^T + bg) * (h Wup^T + bu)
 *   ffn_out   x = x + post_norm(f Wdown^T + bd)            (reduce, as above)
 *   head      l = softcap(norm(x) Whead^T * logit_scale), only for rows that want logits
 *   sample    tokens from l (step.h)
 * norm(x) = x / sqrt(mean(x^2) + eps) * (gain + gain_offset), sums in float32 or wider.
 *
 * Owned by who made it (model/); borrowed by the device for ever: it outlives the device, as do the weights' mappings. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "formats/quant_blocks.h"

enum { PLAN_GROUPS_MAX = 4, PLAN_ROPES_MAX = 4 };

/* A weight matrix as stored: this rank's slice of it. rows 0: absent. A vector (norm gain, bias) has rows 1. */
struct plan_weight {
    const char *name; /* for messages and dummy seeds */
    const void *
        data; /* first byte of the slice; NULL: the device makes seeded random values (dummy), of `dtype` */
    uint64_t dummy_seed; /* of this weight's made-up values; used where data is NULL */
    enum dtype dtype;    /* as stored */
    bool mapped; /* data lies in a read-only file mapping: after packing, file_map_drop() it */
    uint32_t rows, cols; /* [rows, cols] = [outputs, inputs], row-major */
    uint64_t row_stride; /* bytes between rows; more than a row's bytes where columns are sliced */
};

/* Positions to angles: angle(pos, i) = pos * inv_freq[i], i < dim / 2; cos and sin are multiplied by `scale` (YaRN's
 * attention factor, else 1). A device makes one table per entry, [context, dim/2], shared by all layers that name it. */
struct plan_rope {
    uint32_t dim;          /* rotated part of the head, even */
    const float *inv_freq; /* [dim/2] */
    float scale;
};

enum kv_kind { KV_ATTENTION }; /* later: MLA latent, recurrent state */
enum kv_format {
    KV_F32,
    KV_F16,
    KV_BF16,
    KV_FP8
}; /* what a device stores; it alone knows the layout */

/* Layers that keep the same kind of state. A sequence has one block table per group. */
struct plan_kv_group {
    enum kv_kind kind;
    enum kv_format format;
    uint32_t layers;       /* stages' group_layer counts 0..layers-1 */
    uint32_t kv_heads;     /* of this rank */
    uint32_t head_dim;     /* of K and of V */
    uint32_t block_tokens; /* 16 */
    uint32_t window;       /* tokens that a row sees, itself included; 0: all */
};

enum rope_pairing {
    ROPE_HALVES,     /* partners i and i + dim/2 (Hugging Face) */
    ROPE_NEIGHBOURS, /* partners 2i and 2i + 1 (GGUF's llama order of Q and K rows) */
};
enum activation { ACT_SILU, ACT_GELU_TANH };

struct plan_norm {
    struct plan_weight gain; /* [1, n]; rows 0: no norm here */
    float eps;
    float gain_offset; /* 0, or 1 where the gain is stored minus one (Gemma) */
};

struct stage_embed {
    struct plan_weight table; /* [vocab, hidden] */
    float scale;
};

struct stage_attn_in {
    struct plan_norm norm;
    struct plan_weight q, k, v; /* [heads * head_dim, hidden], [kv_heads * head_dim, hidden] x 2 */
    struct plan_weight q_bias, k_bias, v_bias; /* [1, ...] or absent */
    struct plan_norm q_norm, k_norm;           /* over each head, gain [1, head_dim], or absent */
    uint32_t heads, kv_heads, head_dim;        /* of this rank */
    uint32_t rope;                             /* index into plan.ropes */
    enum rope_pairing pairing;
    uint32_t group, group_layer; /* where k and v are kept */
};

struct stage_attn {
    uint32_t heads, kv_heads, head_dim;
    float scale;   /* of the scores: 1/sqrt(head_dim) unless the config says otherwise */
    float softcap; /* 0: none; else cap * tanh(score / cap) */
    uint32_t group, group_layer;
};

struct stage_project {         /* attn_out and ffn_out: back to the residual stream */
    struct plan_weight weight; /* [hidden, inputs] */
    struct plan_weight bias;
    struct plan_norm post_norm; /* absent, but for Gemma */
    bool reduce;                /* sum over the ranks before the residual is added */
};

struct stage_ffn_in {
    struct plan_norm norm;
    struct plan_weight gate, up; /* [ffn, hidden] each */
    struct plan_weight gate_bias, up_bias;
    enum activation act;
};

struct stage_head {
    struct plan_norm norm;
    struct plan_weight
        weight; /* [vocab_rows, hidden]; the embedding table where they are tied (same data pointer) */
    float logit_scale; /* 1 unless the config says otherwise */
    float softcap;     /* 0: none */
};

enum stage_kind {
    STAGE_EMBED,
    STAGE_ATTN_IN,
    STAGE_ATTN,
    STAGE_ATTN_OUT,
    STAGE_FFN_IN,
    STAGE_FFN_OUT,
    STAGE_HEAD,
    STAGE_SAMPLE,
};

struct stage {
    enum stage_kind kind;
    uint32_t layer; /* of the model, for names in breakdowns; 0 for embed, head, sample */
    union {
        struct stage_embed embed;
        struct stage_attn_in attn_in;
        struct stage_attn attn;
        struct stage_project attn_out;
        struct stage_ffn_in ffn_in;
        struct stage_project ffn_out;
        struct stage_head head;
    };
};

struct plan {
    const char *arch;      /* "llama", for messages */
    uint32_t hidden;       /* width of the residual stream */
    uint32_t vocab_rows;   /* rows of the head: columns of the logits, padding included */
    uint32_t vocab_tokens; /* rows that stand for tokens; the rest are never sampled */
    uint32_t layers;
    uint32_t context_tokens; /* positions 0..context_tokens-1 */
    uint32_t ffn_max,
        qkv_max; /* widest ffn row; widest q + k + v row: sizes of activation buffers */
    uint32_t group_count;
    struct plan_kv_group groups[PLAN_GROUPS_MAX];
    uint32_t rope_count;
    struct plan_rope ropes[PLAN_ROPES_MAX];
    uint64_t dummy_seed; /* where weights are dummies */
    uint32_t stage_count;
    const struct stage *stages;
};

/* Blocks that a sequence of so many tokens holds of the group at once, where a step computes at most `rows` of them: all of its tokens', or, with
 * a window, those that the first of these rows sees and their own, wherever they begin. */
uint32_t plan_group_blocks(const struct plan_kv_group *group, uint64_t tokens, uint32_t rows);

/* The last stage that looks at other rows' state, in a plan that ends in logits: from it on only rows that want logits are of use, and
 * a device need not run the others. stage_count: none, as where a later rank has the head. A head is never without a layer. */
uint32_t plan_last_attention(const struct plan *plan);

/* "attn_in", "ffn_out", ... */
const char *stage_kind_name(enum stage_kind kind);
