/* step_queue.c - signals come after the lock is given back: a thread that wakes up to a lock that is still held goes back to sleep, which
 * cost a step four wake-ups more where both threads share a processor. */
#include "device/step_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/malloc_count.h"

/* Whether step completed + 1 can go on: its body is there, and for the second half its sampling. */
static bool can_finish(const struct step_queue *q)
{
    return q->completed < q->submitted && q->flights[(q->completed + 1) % q->inflight].sample;
}

static void finish(struct step_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->completed++;
    atomic_store(&q->last_step_ns, q->flights[q->completed % q->inflight].result.ended_ns);
    atomic_fetch_add(&q->steps_done, 1);
    pthread_mutex_unlock(&q->lock);
    pthread_cond_broadcast(&q->finished);
    if (q->device->notify) q->device->notify(q->device->notify_ctx);
}

/* The step to begin, or NULL at the end. */
static const struct step *next_step(struct step_queue *q, uint32_t *index)
{
    const struct step *step = NULL;

    pthread_mutex_lock(&q->lock);
    while (q->completed == q->submitted && !q->stop)
        pthread_cond_wait(&q->work, &q->lock);
    *index = (uint32_t)((q->completed + 1) % q->inflight);
    if (q->stop ? can_finish(q) : q->completed < q->submitted) step = q->flights[*index].step;
    pthread_mutex_unlock(&q->lock);
    return step;
}

static bool wait_for_sample(struct step_queue *q)
{
    bool there;

    pthread_mutex_lock(&q->lock);
    while (!can_finish(q) && !q->stop)
        pthread_cond_wait(&q->work, &q->lock);
    there = can_finish(q);
    pthread_mutex_unlock(&q->lock);
    return there;
}

static void take_memory(void)
{
    void *volatile taken = malloc(64); /* volatile: else the compiler leaves both calls out */

    free(taken);
}

/* A step that never ends, until the device is closed. */
static void hang(struct step_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (!q->stop)
        pthread_cond_wait(&q->work, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

/* Whether the step is not to run: *result says why. */
static bool fails(struct step_queue *q, enum fault_kind fault, struct step_result *result)
{
    const char *lost = atomic_load(&q->lost);

    if (fault == FAULT_LOST) atomic_store(&q->lost, lost = "a fault asked for by --inject-fault");
    if (lost)
        result->status =
            error_set(&result->error, STATUS_DEVICE_LOST, "the device was lost: %s", lost);
    else if (fault == FAULT_STEP)
        result->status =
            error_set(&result->error, STATUS_DEVICE, "a fault asked for by --inject-fault");
    return result->status != STATUS_OK;
}

static void *queue_main(void *arg)
{
    struct step_queue *q = arg;
    const struct step *step;
    uint32_t index;

    malloc_count_watch(&q->late_allocations);
    while ((step = next_step(q, &index))) {
        enum fault_kind fault = device_fault_at(&q->fault, step->seq_no);
        struct step_result *result = &q->flights[index].result;
        *result = (struct step_result){.seq_no = step->seq_no, .started_ns = clock_mono_ns()};
        if (fault == FAULT_ALLOC) take_memory();
        bool failed = fails(q, fault, result);
        if (!failed) q->ops.body(q->ctx, index, step);
        if (!wait_for_sample(q)) break;
        if (fault == FAULT_HANG) {
            hang(q);
            break;
        }
        if (!failed) q->ops.sample(q->ctx, index, step, q->flights[index].masks, result);
        result->ended_ns = clock_mono_ns();
        finish(q);
    }
    return NULL;
}

enum status step_queue_init(struct step_queue *queue, const struct step_queue_ops *ops, void *ctx,
                            const struct device *device, uint32_t inflight,
                            const struct device_fault *fault, struct error *err)
{
    pthread_condattr_t mono;
    int code;

    assert(inflight >= 1 && inflight <= STEP_QUEUE_MAX);
    queue->ops = *ops, queue->ctx = ctx, queue->device = device, queue->inflight = inflight;
    queue->fault = *fault;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_cond_init(&queue->work, &mono);
    pthread_cond_init(&queue->finished, &mono);
    pthread_condattr_destroy(&mono);
    code = pthread_create(&queue->thread, NULL, queue_main, queue);
    if (code)
        return error_set(err, STATUS_IO, "cannot start the device thread: %s", strerror(code));
    pthread_setname_np(queue->thread, "inferd-device");
    queue->running = true;
    return STATUS_OK;
}

void step_queue_fini(struct step_queue *queue)
{
    if (!queue->running) return;
    pthread_mutex_lock(&queue->lock);
    queue->stop = true;
    pthread_cond_broadcast(&queue->work);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    queue->running = false;
    pthread_cond_destroy(&queue->work);
    pthread_cond_destroy(&queue->finished);
    pthread_mutex_destroy(&queue->lock);
}

enum status step_queue_submit_body(struct step_queue *queue, const struct step *step)
{
    enum status st = STATUS_OK;

    pthread_mutex_lock(&queue->lock);
    if (queue->submitted - queue->released >= queue->inflight) {
        st = STATUS_FULL;
    } else {
        uint32_t index = (uint32_t)(step->seq_no % queue->inflight);
        assert(step->seq_no == queue->submitted + 1);
        queue->flights[index].step = step;
        queue->flights[index].masks = NULL;
        queue->flights[index].sample = false;
        queue->submitted++;
    }
    pthread_mutex_unlock(&queue->lock);
    if (!st) pthread_cond_signal(&queue->work);
    return st;
}

enum status step_queue_submit_sample(struct step_queue *queue, const struct step *step,
                                     const struct step_masks *masks)
{
    uint32_t index = (uint32_t)(step->seq_no % queue->inflight);

    assert(!masks || masks->count == step->output_count);
    pthread_mutex_lock(&queue->lock);
    assert(queue->flights[index].step == step && !queue->flights[index].sample);
    queue->flights[index].masks = masks;
    queue->flights[index].sample = true;
    pthread_mutex_unlock(&queue->lock);
    pthread_cond_signal(&queue->work);
    return STATUS_OK;
}

static struct timespec deadline_after(int64_t timeout_ns)
{
    int64_t now = clock_mono_ns(), at = timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;

    return (struct timespec){at / 1000000000, at % 1000000000};
}

enum status step_queue_wait(struct step_queue *queue, uint64_t seq_no, int64_t timeout_ns,
                            const struct step_result **out)
{
    struct timespec deadline = deadline_after(timeout_ns < 0 ? INT64_MAX : timeout_ns);
    int code = timeout_ns ? 0 : 1;

    pthread_mutex_lock(&queue->lock);
    assert(seq_no > queue->released && seq_no <= queue->submitted);
    while (queue->completed < seq_no && !code)
        code = pthread_cond_timedwait(&queue->finished, &queue->lock, &deadline);
    if (queue->completed >= seq_no) {
        *out = &queue->flights[seq_no % queue->inflight].result;
        code = 0;
    }
    pthread_mutex_unlock(&queue->lock);
    return code ? STATUS_TIMEOUT : STATUS_OK;
}

void step_queue_release(struct step_queue *queue, uint64_t seq_no)
{
    pthread_mutex_lock(&queue->lock);
    assert(seq_no == queue->released + 1 && seq_no <= queue->completed);
    queue->flights[seq_no % queue->inflight].step = NULL;
    queue->released++;
    pthread_mutex_unlock(&queue->lock);
}

void step_queue_drain(struct step_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    while (can_finish(queue))
        pthread_cond_wait(&queue->finished, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
}

struct device_health step_queue_health(const struct step_queue *queue)
{
    const char *lost = atomic_load(&queue->lost);

    return (struct device_health){
        .ok = !lost,
        .reason = lost ? lost : "",
        .late_allocations = atomic_load(&queue->late_allocations),
        .steps_done = atomic_load(&queue->steps_done),
        .last_step_ns = atomic_load(&queue->last_step_ns),
    };
}

static struct queued_device *queued(struct device *device)
{
    return (struct queued_device *)device;
}

enum status queued_submit_sample(struct device *device, const struct step *step,
                                 const struct step_masks *masks)
{
    return step_queue_submit_sample(&queued(device)->queue, step, masks);
}

enum status queued_wait(struct device *device, uint64_t seq_no, int64_t timeout_ns,
                        const struct step_result **out)
{
    return step_queue_wait(&queued(device)->queue, seq_no, timeout_ns, out);
}

void queued_release(struct device *device, uint64_t seq_no)
{
    step_queue_release(&queued(device)->queue, seq_no);
}

struct device_health queued_health(const struct device *device)
{
    return step_queue_health(&((const struct queued_device *)device)->queue);
}

const char *queued_description(const struct device *device)
{
    return ((const struct queued_device *)device)->description;
}
