/* device.h - what runs a plan: CPU, CUDA, or null (made-up tokens at a given pace).
 *
 * Life: device_open -> device_compile (packs weights, sizes every buffer, captures graphs; after it nothing is
 * allocated) -> steps -> device_close. A step is two halves: submit_body (to the logits) and submit_sample
 * (masks, sampling), enqueued together when nothing is missing. Steps run in the order of submission; up to
 * limits.steps_inflight may be in flight. A step's memory stays until it is done; the blocks that it names are written by no other step
 * before that, but may be by later ones as soon as no row of theirs sees what was there.
 *
 * Thread: one thread (the engine's) calls everything but device_health; `notify` is called on a thread of the device
 * each time a step is done. Errors of a step arrive in its result; STATUS_DEVICE_LOST means that no later step will run. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device_fault.h"
#include "device/plan.h"
#include "device/step.h"

enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_NULL };
enum cpu_numerics {
    CPU_EXACT, /* float32 activations and KV: what tests compare with the reference */
    CPU_FAST,  /* int8 activations for quantised weights, float16 KV: the default */
};

struct device_options {
    enum device_kind kind;
    uint32_t threads;       /* CPU: 0 = as many as the process may use (or as cpu_set has) */
    uint32_t threads_batch; /* CPU: of steps with a part of a prompt; 0 = as `threads` */
    const char *cpu_set;    /* CPU: processors that the threads are bound to, "0-3,8"; NULL: none */
    enum cpu_numerics numerics;
    const char *
        isa; /* CPU: NULL = best; "generic", "avx2", "avx512", "avx512-vnni", "amx": for tests and benchmarks */
    uint32_t null_step_us; /* null: time of a step, 0 = at once */
    int ordinal;           /* CUDA device number */
    /* CUDA: DTYPE_BF16 or DTYPE_F16; DTYPE_F32: what suits the stored weights (cuda_compute_dtype) */
    enum dtype compute_dtype;
    bool enforce_eager;       /* CUDA: no graphs */
    const char *cache_folder; /* CUDA: for what is measured at start; NULL: nothing is kept */
    bool batch_invariant;     /* CUDA; the CPU always is */
    uint32_t
        step_timeout_ms; /* CUDA: a step that takes longer is a device that has stopped answering; 0: no limit */
    struct device_fault fault; /* for tests */
    void (*progress)(void *ctx, uint64_t done_bytes,
                     uint64_t total_bytes); /* compile; may be NULL */
    void *progress_ctx;
};

struct device; /* each kind embeds `struct device_base` first */

struct device_health {
    bool ok;
    const char *reason; /* static text where not ok */
    uint64_t steps_done;
    int64_t last_step_ns; /* CLOCK_MONOTONIC of the last finished step, 0 before it */
    uint64_t
        late_allocations; /* memory taken after compile, for the device or by its thread: stays 0 */
    int64_t
        memory_drift; /* CUDA: bytes by which free memory has shrunk since compile, by whomever; looked at now and then */
};

/* Errors: STATUS_UNSUPPORTED (a kind this build or machine lacks), STATUS_NOMEM, STATUS_DEVICE. */
enum status device_open(const struct device_options *options, struct device **out,
                        struct error *err);
void device_close(struct device *device); /* takes NULL; waits for steps in flight */

/* Errors: STATUS_NOMEM (with the arithmetic), STATUS_UNSUPPORTED (a stage or shape, named), STATUS_DEVICE. */
enum status device_compile(struct device *device, const struct plan *plan,
                           const struct device_limits *limits, struct error *err);

/* Called on a device thread, after a step's result can be taken: once for each step of which both halves were taken, those of a
 * lost device too, but for one that hangs. Set before the first step. */
void device_set_notify(struct device *device, void (*notify)(void *ctx), void *ctx);

/* Called once by a thread before it submits its first step: what a driver takes for each thread it takes now. */
void device_begin_thread(struct device *device);

/* Never block; STATUS_FULL when steps_inflight steps are out. The step and its masks are borrowed
 * until its result is released. A step outside of the limits is the caller's bug (assert with step_check's sentence). */
enum status device_submit_body(struct device *device, const struct step *step);
enum status device_submit_sample(struct device *device, const struct step *step,
                                 const struct step_masks *masks);

/* The result of step seq_no, in order of submission. timeout_ns 0: only look; below 0: for ever. STATUS_TIMEOUT: not done yet. The result is
 * borrowed until device_release(seq_no). */
enum status device_wait(struct device *device, uint64_t seq_no, int64_t timeout_ns,
                        const struct step_result **out);
void device_release(struct device *device, uint64_t seq_no);

struct device_health device_health(const struct device *device); /* any thread */
/* All of the device's own memory in bytes, from opening on; 0 where it computes in the host's. */
uint64_t device_memory_bytes(const struct device *device);
const char *
device_description(const struct device *device); /* "CPU, 2 threads, avx512-vnni, fast" */

/* KV blocks to and from host memory: all layers of the group, in the device's own layout. `bytes` must be
 * device_kv_block_bytes(group). Waits for steps in flight. Errors: STATUS_UNSUPPORTED (null), STATUS_DEVICE.
 * This is how tiers move blocks (pinned memory, disk) without knowing a device's layout. There is no tier yet: tests alone
 * call these, to compare devices' blocks and to put one in another's place. */
uint64_t device_kv_block_bytes(const struct device *device, uint32_t group);
enum status device_kv_copy_out(struct device *device, uint32_t group, uint32_t block, void *bytes);
enum status device_kv_copy_in(struct device *device, uint32_t group, uint32_t block,
                              const void *bytes);

/* --- for implementations --- */
struct device_ops {
    void (*close)(struct device *);
    enum status (*compile)(struct device *, const struct plan *, const struct device_limits *,
                           struct error *);
    enum status (*submit_body)(struct device *, const struct step *);
    enum status (*submit_sample)(struct device *, const struct step *, const struct step_masks *);
    enum status (*wait)(struct device *, uint64_t seq_no, int64_t timeout_ns,
                        const struct step_result **);
    void (*release)(struct device *, uint64_t seq_no);
    struct device_health (*health)(const struct device *);
    const char *(*description)(const struct device *);
    uint64_t (*kv_block_bytes)(const struct device *, uint32_t group);
    enum status (*kv_copy_out)(struct device *, uint32_t group, uint32_t block, void *bytes);
    enum status (*kv_copy_in)(struct device *, uint32_t group, uint32_t block, const void *bytes);
    uint64_t (*memory_bytes)(const struct device *); /* NULL: the host's memory */
    void (*begin_thread)(struct device *);           /* NULL: nothing to do */
};
struct device {
    const struct device_ops *ops;
    void (*notify)(void *ctx);
    void *notify_ctx;
};
enum status device_open_cpu(const struct device_options *options, struct device **out,
                            struct error *err);
enum status device_open_null(const struct device_options *options, struct device **out,
                             struct error *err);
enum status device_open_cuda(const struct device_options *options, struct device **out,
                             struct error *err);
