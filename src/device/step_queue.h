/* step_queue.h - steps in flight on a device that is a host thread (CPU, null): order, the two halves, results.
 *
 *   submit_body --> body runs --> waits for submit_sample --> sample runs --> done, notify --> wait, release
 * One thread of its own runs the callbacks, one step after the other. The engine's thread calls the rest; `lock` guards the
 * fields marked (lock). Memory: none beyond the struct; what that thread takes while it runs steps is counted (late_allocations).
 * Faults asked for by device_options.fault are made here. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "device/device.h"

enum { STEP_QUEUE_MAX = 8 };

struct step_queue_ops {
    /* index: 0..inflight-1, of this step until its release. Both run on the queue's thread. */
    void (*body)(void *ctx, uint32_t index, const struct step *step);
    /* Fills *result but for seq_no and times. */
    void (*sample)(void *ctx, uint32_t index, const struct step *step,
                   const struct step_masks *masks, struct step_result *result);
};

struct step_queue {
    struct step_queue_ops ops;
    void *ctx;
    const struct device *device; /* for notify */
    uint32_t inflight;
    pthread_t thread;
    bool running; /* init made the thread */
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    uint64_t submitted, completed,
        released; /* (lock) highest seq_no; in flight: submitted - released */
    bool stop;    /* (lock) */
    struct device_fault fault;
    const char *_Atomic lost; /* why no later step will run; NULL: all is well */
    _Atomic uint64_t late_allocations;
    struct {
        const struct step *step;
        const struct step_masks *masks;
        bool sample; /* (lock) the second half is submitted */
        struct step_result result;
    } flights[STEP_QUEUE_MAX];
    _Atomic uint64_t steps_done;
    _Atomic int64_t last_step_ns;
};

/* Errors: STATUS_IO (no thread). queue: zeroed. */
enum status step_queue_init(struct step_queue *queue, const struct step_queue_ops *ops, void *ctx,
                            const struct device *device, uint32_t inflight,
                            const struct device_fault *fault, struct error *err);
/* Runs what is wholly submitted, leaves out steps whose sampling never came. Idempotent. */
void step_queue_fini(struct step_queue *queue);

enum status step_queue_submit_body(struct step_queue *queue, const struct step *step);
enum status step_queue_submit_sample(struct step_queue *queue, const struct step *step,
                                     const struct step_masks *masks);
enum status step_queue_wait(struct step_queue *queue, uint64_t seq_no, int64_t timeout_ns,
                            const struct step_result **out);
void step_queue_release(struct step_queue *queue, uint64_t seq_no);
/* Until nothing that can run is left. */
void step_queue_drain(struct step_queue *queue);
struct device_health step_queue_health(const struct step_queue *queue);

/* --- a device whose steps run in such a queue --- */

/* First in the device's own struct; base.ops and description are set when it is opened, the queue when it is compiled. */
struct queued_device {
    struct device base; /* first */
    struct step_queue queue;
    char description[96];
};

/* Operations of device_ops as they stand, for a queued_device. */
enum status queued_submit_sample(struct device *device, const struct step *step,
                                 const struct step_masks *masks);
enum status queued_wait(struct device *device, uint64_t seq_no, int64_t timeout_ns,
                        const struct step_result **out);
void queued_release(struct device *device, uint64_t seq_no);
struct device_health queued_health(const struct device *device);
const char *queued_description(const struct device *device);
