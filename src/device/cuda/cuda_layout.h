/* cuda_layout.h - every buffer of the CUDA device, its size and place: plain C with no CUDA header, always built.
 *
 * Compile and the memory plan run the same lines, the plan with no memory behind them, so the two cannot differ.
 * All activations have rows padded to 64 elements; weights have one copy, row-major, K padded likewise with zeros,
 * read by the skinny products and by cuBLASLt:
 *   attn_in   [q; k; v] rows of one matrix; rows of q and k permuted so that RoPE partners are neighbours
 *   ffn_in    gate and up interleaved: rows 2i and 2i + 1
 * Vectors (gains with their offset, biases in the order of the rows) are float32. */
#pragma once

#include "device/device_memory.h"

enum cuda_region {
    CUDA_WEIGHTS,
    CUDA_KV,
    CUDA_ACTIVATIONS,
    CUDA_LOGITS,
    CUDA_ROPE,
    CUDA_SLOTS,
    CUDA_STEPS,        /* images of steps on the device */
    CUDA_WORKSPACE,    /* of cuBLASLt */
    CUDA_HOST_STEPS,   /* pinned: images, masks, results */
    CUDA_HOST_STAGING, /* pinned: weights on their way */
    CUDA_HOST_LOGITS,  /* plain memory, touched only by STEP_KEEP_LOGITS */
    CUDA_REGION_COUNT
};
struct cuda_region_map {
    char *base;
    uint64_t bytes;
};

enum {
    CUDA_STEPS_MAX = 8,
    CUDA_BUCKETS_MAX = 24,
    /* steps of at most so many rows run the fused products, and those of the next kind (code for sm_90a) */
    CUDA_SKINNY_ROWS = 16,
    CUDA_MEDIUM_ROWS = 64,
    CUDA_SPLITS_MAX = 64,          /* parts of a sequence in decode attention */
    CUDA_SPLITS_FEW = 16,          /* of few rows at least so many, as a context is long enough */
    CUDA_PARTS_ONE = 128,          /* parts of one row over all KV heads */
    CUDA_SHORT_TOKENS = 1504,      /* no sequence to here is cut where many rows decode */
    CUDA_STAGING_BYTES = 16 << 20, /* one of two */
};

/* Numbers of kernels/, whose headers need CUDA's: cuda_compile.c holds each against its own. */
enum {
    CUDA_KV_TOKENS = 16,
    CUDA_HIDDEN_MAX = 49152,
    CUDA_HEAD_DIM_MAX = 512,
    CUDA_TOPS_MAX = 20,
    CUDA_REFS = 16,
    CUDA_CHAIN_LINK_BYTES = 64 << 10,
    CUDA_TILE_PAIRS = 128, /* rows of a prefill tile */
    CUDA_TILE_BYTES = 20,
    CUDA_ROW_BYTES = 16, /* at most: of a row in a step's image */
    CUDA_OUTPUT_BYTES = 32,
    CUDA_SLOT_PARAMS_BYTES = 88,
    CUDA_SLOT_BIAS_BYTES = 8,
    CUDA_SAMPLE_CHUNK = 8192,
    CUDA_SAMPLE_PARTIAL_BYTES = 20,
};

struct cuda_matrix {
    char *at; /* [rows, cols_padded] in the compute type */
    uint32_t rows, cols, cols_padded;
};

struct cuda_stage {
    const struct stage *plan;
    struct cuda_matrix weight; /* attn_in, attn_out, ffn_in, ffn_out, head */
    float *gain;               /* [hidden padded] of the norm in front */
    float *bias;               /* [rows padded] or NULL */
    float *q_gain, *k_gain;    /* [head_dim] or NULL */
    float *post_gain;          /* or NULL */
    uint32_t index;            /* of the weight among all: for tensor maps and algorithms */
};

struct cuda_group {
    char *pool; /* [layers, blocks, block_bytes] */
    uint64_t block_bytes, layer_bytes;
    uint32_t blocks;
    int32_t *tables;   /* [slots, table_stride] */
    int32_t *kv_slots; /* [rows] */
};

struct cuda_flight { /* of one step in flight */
    char *image, *host_image;
    char *masks, *host_masks; /* [outputs, mask_words] */
    char *host_outputs, *host_tops;
    float *host_logits; /* [outputs, vocab_rows] */
};

struct cuda_buffers {
    /* capacities: of a step, its logits rows, its one-row segments */
    uint32_t rows, outputs, decode_rows;
    uint32_t bucket_count, buckets[CUDA_BUCKETS_MAX];
    uint64_t hidden_stride, qkv_stride, attn_stride, glu_stride, ffn_stride,
        logits_stride; /* elements */
    uint32_t splits, table_stride, mask_words, seen_stride, chunks;
    uint64_t image_bytes;
    struct cuda_stage *stages; /* caller's, [plan.stage_count] */
    uint32_t weight_count;
    struct cuda_matrix embed;
    struct cuda_group groups[PLAN_GROUPS_MAX];
    char *ropes[PLAN_ROPES_MAX]; /* float2 [context, dim / 2] */
    char *inv_freq;              /* room for one table's frequencies */
    /* activations */
    float *x, *packed_x; /* packed_x: [outputs] */
    char *h, *qkv, *q, *attn, *glu, *ffn, *delta;
    float *row_sums; /* [CUDA_MEDIUM_ROWS, tiles of a product]: squares of the residual stream */
    float *partial, *partial_ml;
    char *counters;
    char *chain_link; /* CUDA_CHAIN_LINK_BYTES: by which the clusters of a decode chain talk */
    int32_t *tokens, *positions, *row_slots, *out_rows;
    float *logits, *work;
    char *sample_partials, *sample_counters;
    char *row_map; /* u32 [widest weight's rows]: where rows of dummy weights go */
    /* by slot */
    char *params, *banned, *biases, *seen;
    int32_t *last;
    char *workspace;
    uint64_t workspace_bytes;
    char *staging[2];
    struct cuda_flight flights[CUDA_STEPS_MAX];
};

/* What the device computes in and keeps weights and KV in: options->compute_dtype, or, where that is DTYPE_F32, BF16 for weights
 * that are stored so (most bytes decide) and F16 for all others: quantised ones lose three bits less in it. But BF16 for Gemma,
 * whose activations leave the range of F16. */
enum dtype cuda_compute_dtype(const struct device_options *options, const struct plan *plan);

/* What the driver takes beside our buffers: no interface tells it beforehand, so these are measured figures (an H200, driver
 * 580, CUDA 13.0), rounded up. Seen beside what was really taken in the log's "memory compared". */
struct cuda_driver_memory {
    uint64_t context; /* and streams, cuBLASLt, the code of our kernels, rounding to pages */
    uint64_t later;   /* of it, all but the context and its streams */
    uint64_t graphs;
};
struct cuda_driver_memory cuda_driver_memory(const struct device_options *options,
                                             const struct plan *plan,
                                             const struct device_limits *limits);

/* What of it is still to come when so many bytes of the GPU are gone with the opening of the device: the context's, and perhaps
 * other processes', which must not count as if the driver had them already. */
uint64_t cuda_driver_wants(const struct cuda_driver_memory *driver, uint64_t opened_bytes);

/* Errors: STATUS_UNSUPPORTED (named), STATUS_INVALID (limits). */
enum status cuda_plan_check(const struct device_options *options, const struct plan *plan,
                            const struct device_limits *limits, struct error *err);

/* Sizes all regions and, where they have memory, places everything. out->stages: NULL (measuring) or the caller's array. */
void cuda_layout(const struct device_options *options, const struct plan *plan,
                 const struct device_limits *limits,
                 struct cuda_region_map regions[CUDA_REGION_COUNT], struct cuda_buffers *out);

/* Parts that a step of `rows` decode rows cuts each sequence into at most, where none has more than `tokens` tokens and a layer sees the last
 * `window` of them (0: all). Never fewer than kernels/paged_decode.cuh makes of the longest, so how a row is cut, and its bits, do not
 * depend on `tokens`: a larger number only makes blocks that come and go. */
uint32_t cuda_decode_splits(const struct device_options *options, uint32_t tokens, uint32_t window,
                            uint32_t rows, uint32_t kv_heads);
/* Whether a graph of so many rows for sequences of at most CUDA_SHORT_TOKENS has less to launch than the one for all: then there are both. */
bool cuda_short_helps(const struct device_options *options, const struct plan *plan,
                      const struct device_limits *limits, uint32_t rows);

const char *cuda_region_name(enum cuda_region region);
bool cuda_region_on_host(enum cuda_region region);
