/* cuda_device.h - the CUDA device's insides, shared by the files of this folder.
 *
 * One stream does the work; a second brings step images up while the step before runs. The engine's thread launches; a
 * thread of the device's own waits for the last event of each step, makes its result whole and calls notify. `lock`
 * guards the fields marked (lock). */
#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "attention.h"
#include "common/context.h"
#include "decode_chain.h"
#include "device/cuda/cuda_gemm.h"
#include "device/cuda/cuda_layout.h"
#include "device/cuda/cuda_memory.h"
#include "device/device.h"
#include "medium_gemm.h"
#include "sample.h"
#include "skinny_gemm.h"
#include "step_state.h"

struct cuda_flight_state {
    const struct step *step;
    cudaEvent_t uploaded, done;
    struct step_result result;
    /* `done` will come; else nothing is there to wait for, and result.status says why */
    bool recorded;
    /* of the image, device pointers */
    const struct sample_row *sample_rows;
    uint32_t rounds;
};

struct cuda_device {
    struct device base;
    struct device_options options;
    struct device_limits limits;
    const struct plan *plan;
    uint32_t last_attention;  /* plan_last_attention() */
    enum dtype compute_dtype; /* cuda_compute_dtype, from compile on */
    struct cuda_memory memory;
    struct cuda_buffers b;
    struct kernel_context ctx;
    cudaStream_t upload;
    struct cuda_gemm *gemm;
    /* of products, [b.weight_count] by stage.index; the first two NULL where the code is not for sm_90a */
    struct skinny_weight *skinny_weights;
    struct medium_weight *medium_weights; /* N is 0 where one does not fit */
    uint32_t *gemm_ids;
    uint32_t skinny_rows; /* steps of so many rows run the skinny products, more the next kind */
    uint32_t products_measured; /* choices that the cache on disk did not have */
    /* Of a bucket; the second for steps whose sequences all have at most CUDA_SHORT_TOKENS, NULL where it would not help. The same bits. */
    cudaGraphExec_t graphs[CUDA_BUCKETS_MAX], short_graphs[CUDA_BUCKETS_MAX];
    struct {
        bool fits;       /* can run this plan's steps of one row */
        uint32_t tokens; /* does, where the row's sequence has at most so many with it; 0: never */
        struct decode_chain kernel;
        struct decode_chain_args args;
        cudaGraphExec_t graph; /* the body of one row; NULL with enforce_eager */
        uint32_t launches;     /* in it */
    } chain;
    uint32_t graph_launches[CUDA_BUCKETS_MAX];
    char name[100], description[160];
    uint64_t memory_bytes; /* all that the GPU has */

    struct cuda_flight_state flights[CUDA_STEPS_MAX];
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    uint64_t submitted, sampled, completed, released; /* (lock) highest seq_no of each */
    bool stop;                                        /* (lock) */
    _Atomic bool lost;
    const char *_Atomic reason;
    _Atomic uint64_t steps_done;
    _Atomic int64_t last_step_ns;
};

/* --- cuda_compile.c --- */
enum status cuda_compile(struct cuda_device *d, const struct plan *plan,
                         const struct device_limits *limits, struct error *err);
/* Makes every row one of no sequence: kernels write nothing for it. On d->ctx.stream. */
cudaError_t cuda_pad_rows(struct cuda_device *d);
/* The graphs of bucket i, without the stages of some kinds (struct cuda_forward); those that there were are gone. */
cudaError_t cuda_capture(struct cuda_device *d, uint32_t i, uint32_t left_out);
/* Stages with a product of the kind and shape of s, in the plan's order: so many that, one behind the other, none is in L2 when its
 * turn to be timed comes. Returns how many. */
enum { CUDA_ALIKE_MAX = 8 };
uint32_t cuda_stages_alike(const struct cuda_device *d, const struct cuda_stage *s,
                           const struct cuda_stage *out[CUDA_ALIKE_MAX]);
void cuda_free_all(struct cuda_device *d);

/* --- cuda_weights.c: brings every weight to its place in d->b --- */
enum status cuda_load_weights(struct cuda_device *d, struct error *err);

/* --- cuda_medium.c: fills d->medium_weights and d->skinny_rows; d->gemm is open --- */
enum status cuda_medium_choose(struct cuda_device *d, struct error *err);

/* --- cuda_forward.c --- */
struct cuda_forward {
    uint32_t rows, outputs;
    uint32_t decode_rows;       /* one-row segments; all rows where row_list is NULL */
    uint32_t decode_tokens;     /* no sequence of theirs has more, this step's counted in */
    const int32_t *decode_list; /* device */
    const struct prefill_tile *tiles;
    uint32_t tile_count;
    const struct prefill_tile *last_tiles; /* of these, those with a row that wants logits */
    uint32_t last_tile_count;
    bool has_chunks; /* segments of several rows */
    bool chain;      /* all layers in one launch: cuda_chain_takes() said so */
    uint32_t
        left_out; /* 1 << enum stage_kind: not launched, to see what a step loses; 0 in one that means something */
    cudaEvent_t *marks; /* NULL, or [stage_count]: recorded behind each stage */
};
/* Enqueues the body, from embedding to logits, on d->ctx.stream. */
cudaError_t cuda_forward_run(struct cuda_device *d, const struct cuda_forward *f);

/* --- cuda_chain.c: all layers of one row in one launch, where the plan's shape has it and it is faster --- */
enum status cuda_chain_open(struct cuda_device *d, struct error *err);
/* Measures both ways, from the longest sequence down, and sets chain.tokens; the graphs are there. */
enum status cuda_chain_choose(struct cuda_device *d, struct error *err);
bool cuda_chain_takes(const struct cuda_device *d, uint32_t rows, uint32_t context_tokens);

/* --- cuda_step.c --- */
cudaError_t cuda_enqueue_body(struct cuda_device *d, uint32_t index, const struct step *step);
cudaError_t cuda_enqueue_sample(struct cuda_device *d, uint32_t index, const struct step *step,
                                const struct step_masks *masks);
struct slot_state cuda_slot_state(const struct cuda_device *d);
