/* cpu_device.h - private to device/cpu: the device's whole state and how its files share the work.
 *
 *   cpu_device.c  opens and closes; the operations
 *   cpu_layout.c  every buffer's size and place: the memory plan and compile run the same code
 *   cpu_compile.c what this device can run; packs weights, fills tables
 *   cpu_walk.c    one step: the stage list, then the sampling
 *   cpu_attention.c  the attention stage: cuts it into items for the pool
 *
 * Threads: the engine's (submit, wait, release: device/step_queue.h), the device thread, which has all the state once it is
 * compiled, and the pool's workers inside cpu_pool_run(). */
#pragma once

#include <stdbool.h>

#include "device/cpu/cpu_kernels.h"
#include "device/cpu/cpu_pool.h"
#include "device/cpu/cpu_sample.h"
#include "device/cpu/linear.h"
#include "device/device.h"
#include "device/device_memory.h"
#include "device/step_queue.h"

enum { CPU_LINEARS_MAX = 3, CPU_STEPS_MAX = STEP_QUEUE_MAX };

/* Regions of memory, one line of the memory plan each. */
enum cpu_region {
    CPU_WEIGHTS,
    CPU_KV,
    CPU_ACTIVATIONS,
    CPU_LOGITS,
    CPU_ROPE,
    CPU_SLOTS,
    CPU_RESULTS,
    CPU_REGION_COUNT
};

/* A stage of the plan with what this device has made of its weights. */
struct cpu_stage {
    const struct stage *plan;
    uint32_t linear_count;
    struct linear linears[CPU_LINEARS_MAX];          /* q k v | gate up | projection | head */
    void *packed[CPU_LINEARS_MAX];                   /* owned room, NULL where used in place */
    const float *biases[CPU_LINEARS_MAX];            /* NULL: none */
    uint32_t y_at[CPU_LINEARS_MAX];                  /* first column of its output in the row */
    const float *norm, *q_norm, *k_norm, *post_norm; /* gains; NULL: none */
};

struct cpu_rope {
    float *cosines, *sines; /* [context][dim/2] */
};

struct cpu_group {
    char *pool;           /* [blocks] */
    uint64_t block_bytes; /* all layers */
    uint64_t head_bytes;  /* keys and values of one layer and head in a block */
    uint32_t dim_padded, blocks_per_slot;
    bool half;
    uint32_t *tables; /* [slots_max][blocks_per_slot] */
};

/* Rows of one segment that one item of attention handles. */
struct cpu_tile {
    uint32_t segment, first_row, rows; /* first_row: of the step */
    uint32_t first_part;               /* where split: index of its first partial result */
};

struct cpu_thread_scratch {
    struct sample_scratch sample;
    float *kv;                       /* converted keys and values */
    struct attend_state total, part; /* of one tile */
};

/* What a step in flight leaves behind until its release. */
struct cpu_flight {
    struct step_output *outputs; /* [logits_max] */
    struct top_logprob *tops;    /* [logits_max][top_logprobs_max] */
    float *logits;               /* [logits_max][vocab_rows] */
};

struct cpu_region_map {
    char *base;
    uint64_t bytes;
};

/* Everything that has a place in a region; cpu_layout() fills it. */
struct cpu_buffers {
    struct cpu_stage *stages; /* [stage_count] */
    struct cpu_rope ropes[PLAN_ROPES_MAX];
    struct cpu_group groups[PLAN_GROUPS_MAX];
    /* activations; R = rows_max */
    float *x;                         /* [R][hidden] the residual stream */
    float *h;                         /* [R][hidden] normed, or a projection's output */
    float *qkv;                       /* [R][qkv_max] */
    float *attn;                      /* [R][attn_max] */
    float *gate, *up;                 /* [R][ffn_max] */
    void *inputs[LINEAR_INPUT_COUNT]; /* [R][row bytes of the widest input]; NULL: kind unused */
    uint32_t *row_segment;            /* [R] */
    struct cpu_tile *tiles;           /* [R] */
    float *parts;                     /* [parts_max][dim_padded + 32] split attention */
    uint32_t attn_max, parts_max, queries_max;
    struct cpu_thread_scratch *scratch; /* [threads] */
    struct sample_slot *slots;          /* [slots_max] */
    struct cpu_flight flights[CPU_STEPS_MAX];
};

/* Threads of steps that only decode, of steps with a part of a prompt, and of the pool: the more of the two. */
struct cpu_threads {
    uint32_t decode, batch, all;
};

struct cpu_device {
    struct queued_device host; /* first */
    struct cpu_pool *pool;
    enum cpu_numerics numerics;
    enum cpu_isa isa;
    const struct cpu_kernels *kernels;
    struct device_options options;
    struct cpu_list list; /* count 0: threads are not bound */
    bool bound;           /* the step thread is */
    struct cpu_threads threads;

    const struct plan *plan;
    uint32_t last_attention; /* plan_last_attention() */
    struct device_limits limits;
    struct cpu_region_map regions[CPU_REGION_COUNT];
    struct cpu_buffers b;

    /* the step at work */
    const struct step *step;
    const struct step_masks *masks;
    struct cpu_flight *flight;
    uint32_t
        rows; /* of it that are still of use: row_count, then, from the last attention on, output_count */
    uint32_t tile_count;
    uint32_t embedded_rows; /* since the embedding's file pages were given back */
};

/* --- cpu_layout.c --- */
/* Sizes every region for these inputs; with base addresses in `regions` it also sets every pointer. Takes the first
 * pass with all bases NULL. */
void cpu_layout(const struct plan *plan, const struct device_limits *limits,
                enum cpu_numerics numerics, enum cpu_isa isa, uint32_t threads,
                struct cpu_region_map regions[CPU_REGION_COUNT], struct cpu_buffers *out);
enum status cpu_isa_choose(const char *name, enum cpu_isa *out, struct error *err);
struct cpu_threads cpu_thread_counts(const struct device_options *options);
/* What this device cannot run, named. */
enum status cpu_plan_check(const struct plan *plan, const struct device_limits *limits,
                           struct error *err);

/* --- cpu_compile.c --- */
enum status cpu_compile(struct cpu_device *device, const struct plan *plan,
                        const struct device_limits *limits, struct error *err);
void cpu_unmap_regions(struct cpu_device *device);

/* --- cpu_walk.c --- */
void cpu_run_body(void *device, uint32_t index, const struct step *step);
void cpu_run_sample(void *device, uint32_t index, const struct step *step,
                    const struct step_masks *masks, struct step_result *result);

/* --- cpu_attention.c --- */
/* Cuts the step's rows into tiles, or those that want logits; for all stages until it is called again. */
void cpu_attention_begin(struct cpu_device *device, bool outputs_only);
void cpu_attention_run(struct cpu_device *device, const struct stage_attn *stage);
/* Where token `index` of a slot's layer keeps its K and V: the tile's keys and values of KV head 0, and the column. */
struct cpu_kv_place {
    char *tile; /* of head 0; head h stands head_bytes further */
    uint32_t column;
};
struct cpu_kv_place cpu_kv_place(const struct cpu_group *group, const struct plan_kv_group *plan,
                                 uint32_t slot, uint32_t layer, uint32_t position);

/* --- cpu_rope.c --- */
void cpu_rope_fill(const struct plan_rope *plan, uint32_t context, struct cpu_rope *out,
                   uint32_t first, uint32_t last);
/* Turns one head in place; pos below the context. */
void cpu_rope_turn(const struct plan_rope *plan, const struct cpu_rope *rope,
                   enum rope_pairing pairing, uint32_t pos, float *head);
