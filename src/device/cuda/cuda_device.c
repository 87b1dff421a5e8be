/* cuda_device.c - opens and closes the CUDA device and gives its operations; see cuda_device.h for the threads. */
#include "device/cuda/cuda_device.h"

#include <assert.h>
#include <errno.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/cuda_driver.h"
#include "fault.h"

/* How often free memory is looked at: a call of some microseconds, but into the driver. */
static const int64_t LOOK_NS = 5ll * 1000000000;
enum { FAULT_SPIN_S = 20 };
/* How long the waiting thread sleeps between looks: far below a step, and no burnt core. */
static const long POLL_NS = 5000;

static struct cuda_device *of(struct device *device)
{
    return (struct cuda_device *)device;
}

static const struct cuda_device *of_const(const struct device *device)
{
    return (const struct cuda_device *)device;
}

/* --- results --- */

static void lose(struct cuda_device *d, const char *reason)
{
    if (!atomic_exchange(&d->lost, true)) {
        atomic_store(&d->reason, reason);
        log_error("device lost", "reason=\"%s\"", reason);
    }
}

/* Whether the context answers no call any more. Never waits: a step may hang on the stream. */
static bool is_sticky(struct cuda_device *d)
{
    cudaError_t e;

    cudaGetLastError(); /* clears what is not sticky */
    e = cudaStreamQuery(d->ctx.stream);
    return e && e != cudaErrorNotReady;
}

static void fail(struct cuda_device *d, struct step_result *r, cudaError_t e, const char *what)
{
    bool sticky = is_sticky(d);

    if (sticky) lose(d, cudaGetErrorName(e));
    r->status = error_set(&r->error, sticky ? STATUS_DEVICE_LOST : STATUS_DEVICE, "%s: CUDA: %s",
                          what, cudaGetErrorString(e));
}

static void fail_lost(struct cuda_device *d, struct step_result *r)
{
    r->status = error_set(&r->error, STATUS_DEVICE_LOST, "the CUDA device was lost: %s",
                          atomic_load(&d->reason));
}

/* Until the step's last event has come, also where the step failed: what was enqueued of it still reads its image. */
static void wait_event(struct cuda_device *d, struct cuda_flight_state *f)
{
    static const struct timespec nap = {0, POLL_NS};
    int64_t begun = clock_mono_ns(), limit_ns = (int64_t)d->options.step_timeout_ms * 1000000;
    cudaError_t e = cudaErrorNotReady;

    while (!atomic_load(&d->lost) && (e = cudaEventQuery(f->done)) == cudaErrorNotReady) {
        if (limit_ns && clock_mono_ns() - begun > limit_ns)
            lose(d, "the GPU has stopped answering: a step took longer than --step-timeout-s "
                    "allows");
        nanosleep(&nap, NULL);
    }
    if (e && !atomic_load(&d->lost)) lose(d, cudaGetErrorName(e));
    if (atomic_load(&d->lost)) fail_lost(d, &f->result);
}

static void finish(struct cuda_device *d, uint32_t index)
{
    struct cuda_flight_state *f = &d->flights[index];
    struct cuda_flight *memory = &d->b.flights[index];
    struct step_result *r = &f->result;

    if (f->recorded) wait_event(d, f);
    r->ended_ns = clock_mono_ns();
    if (atomic_load(&d->last_step_ns) > r->started_ns) /* it began when the one before it ended */
        r->started_ns = atomic_load(&d->last_step_ns);
    if (!r->status) {
        r->output_count = f->step->output_count;
        r->outputs = (const struct step_output *)memory->host_outputs;
        r->tops = (const struct top_logprob *)memory->host_tops;
        r->top_stride = d->limits.top_logprobs_max;
        r->logits = f->step->flags & STEP_KEEP_LOGITS ? memory->host_logits : NULL;
    }
}

static void *wait_main(void *arg)
{
    struct cuda_device *d = arg;
    int64_t look_ns = clock_mono_ns() + LOOK_NS;

    cudaSetDevice(d->options.ordinal);
    prctl(PR_SET_TIMERSLACK, 1000);
    for (;;) {
        pthread_mutex_lock(&d->lock);
        while (d->completed == d->sampled && !d->stop)
            pthread_cond_wait(&d->work, &d->lock);
        bool more = d->completed != d->sampled;
        uint64_t seq_no = d->completed + 1;
        pthread_mutex_unlock(&d->lock);
        if (!more) return NULL;
        uint32_t index = (uint32_t)(seq_no % d->limits.steps_inflight);
        nvtxRangePushA("wait for step");
        finish(d, index);
        nvtxRangePop();
        atomic_store(&d->last_step_ns, d->flights[index].result.ended_ns);
        atomic_fetch_add(&d->steps_done, 1);
        pthread_mutex_lock(&d->lock);
        d->completed = seq_no;
        pthread_cond_broadcast(&d->finished);
        pthread_mutex_unlock(&d->lock);
        if (d->base.notify) d->base.notify(d->base.notify_ctx);
        if (d->flights[index].result.ended_ns < look_ns || atomic_load(&d->lost)) continue;
        cuda_memory_look(&d->memory);
        look_ns = d->flights[index].result.ended_ns + LOOK_NS;
    }
}

/* --- operations --- */

/* The current device belongs to the thread, and any one thread may be the caller. */
static void make_current(const struct cuda_device *d)
{
    static _Thread_local int current = -1;

    if (current != d->options.ordinal && !cudaSetDevice(d->options.ordinal))
        current = d->options.ordinal;
}

static cudaError_t run_padding(struct cuda_device *d)
{
    struct cuda_forward one = {
        .rows = 1, .decode_rows = 1, .decode_tokens = d->limits.context_tokens, .outputs = 1};
    cudaEvent_t uploaded = d->flights[0].uploaded;
    cudaError_t e = cudaEventRecord(uploaded, d->upload);

    if (!e) e = cudaStreamWaitEvent(d->ctx.stream, uploaded, 0);
    if (!e) e = cuda_pad_rows(d);
    if (!e)
        e = d->graphs[0] ? cudaGraphLaunch(d->graphs[0], d->ctx.stream) : cuda_forward_run(d, &one);
    return e ? e : cudaStreamSynchronize(d->ctx.stream);
}

/* The runtime takes some host memory at a thread's first calls; a step of padding alone has all of them. */
static void begin_thread(struct device *device)
{
    struct cuda_device *d = of(device);
    cudaError_t e;

    make_current(d);
    cudaStreamQuery(d->ctx.stream);
    e = run_padding(d);
    if (e) log_error("a step of padding failed", "cause=\"%s\"", cudaGetErrorString(e));
}

/* What --inject-fault asks for, as the hardware and the runtime would have it. */
static cudaError_t make_fault(struct cuda_device *d, uint64_t seq_no)
{
    switch (device_fault_at(&d->options.fault, seq_no)) {
    case FAULT_STEP:
        return cudaMemsetAsync(NULL, 0, 16, d->ctx.stream); /* refused: no such memory */
    case FAULT_LOST: return fault_trap(&d->ctx);
    case FAULT_HANG: return fault_spin(&d->ctx, FAULT_SPIN_S);
    case FAULT_ALLOC: return cuda_memory_take_late(&d->memory);
    case FAULT_NONE: break;
    }
    return cudaSuccess;
}

static enum status submit_body(struct device *device, const struct step *step)
{
    struct cuda_device *d = of(device);
    uint32_t index = (uint32_t)(step->seq_no % d->limits.steps_inflight);
    struct cuda_flight_state *f = &d->flights[index];
    struct error err;

    if (step_check(step, d->plan, &d->limits, &err)) {
        log_error("bad step", "seq_no=%llu reason=\"%s\"", (unsigned long long)step->seq_no,
                  err.message);
        assert(!"a step outside of the device's limits is the scheduler's bug");
    }
    pthread_mutex_lock(&d->lock);
    bool full = d->submitted - d->released >= d->limits.steps_inflight;
    if (!full) {
        assert(step->seq_no == d->submitted + 1);
        d->submitted++;
    }
    pthread_mutex_unlock(&d->lock);
    if (full) return STATUS_FULL;
    f->step = step;
    f->recorded = false;
    f->result = (struct step_result){.seq_no = step->seq_no, .started_ns = clock_mono_ns()};
    if (atomic_load(&d->lost)) {
        fail_lost(d, &f->result);
        return STATUS_OK;
    }
    make_current(d);
    cudaError_t e = cuda_enqueue_body(d, index, step);
    if (!e) e = make_fault(d, step->seq_no);
    if (e) fail(d, &f->result, e, "the body of a step");
    return STATUS_OK;
}

static enum status submit_sample(struct device *device, const struct step *step,
                                 const struct step_masks *masks)
{
    struct cuda_device *d = of(device);
    uint32_t index = (uint32_t)(step->seq_no % d->limits.steps_inflight);
    struct cuda_flight_state *f = &d->flights[index];

    assert(f->step == step && (!masks || masks->count == step->output_count));
    assert(step->seq_no == d->sampled + 1); /* written by this thread only */
    make_current(d);
    if (!f->result.status) {
        cudaError_t e = cuda_enqueue_sample(d, index, step, masks);
        f->recorded = !e;
        if (e) fail(d, &f->result, e, "the sampling of a step");
    }
    if (f->result.status == STATUS_DEVICE) f->recorded = !cudaEventRecord(f->done, d->ctx.stream);
    pthread_mutex_lock(&d->lock);
    d->sampled = step->seq_no;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    return STATUS_OK;
}

static struct timespec deadline_after(int64_t timeout_ns)
{
    int64_t now = clock_mono_ns(), at = timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;

    return (struct timespec){at / 1000000000, at % 1000000000};
}

static enum status wait_step(struct device *device, uint64_t seq_no, int64_t timeout_ns,
                             const struct step_result **out)
{
    struct cuda_device *d = of(device);
    struct timespec deadline = deadline_after(timeout_ns < 0 ? INT64_MAX : timeout_ns);
    int code = timeout_ns ? 0 : 1;

    pthread_mutex_lock(&d->lock);
    assert(seq_no > d->released && seq_no <= d->submitted);
    while (d->completed < seq_no && !code)
        code = pthread_cond_timedwait(&d->finished, &d->lock, &deadline);
    if (d->completed >= seq_no) {
        *out = &d->flights[seq_no % d->limits.steps_inflight].result;
        code = 0;
    }
    pthread_mutex_unlock(&d->lock);
    return code ? STATUS_TIMEOUT : STATUS_OK;
}

static void release(struct device *device, uint64_t seq_no)
{
    struct cuda_device *d = of(device);

    pthread_mutex_lock(&d->lock);
    assert(seq_no == d->released + 1 && seq_no <= d->completed);
    d->flights[seq_no % d->limits.steps_inflight].step = NULL;
    d->released++;
    pthread_mutex_unlock(&d->lock);
}

static struct device_health health(const struct device *device)
{
    const struct cuda_device *d = of_const(device);

    return (struct device_health){
        .ok = !atomic_load(&d->lost),
        .reason = atomic_load(&d->lost) ? atomic_load(&d->reason) : "",
        .steps_done = atomic_load(&d->steps_done),
        .last_step_ns = atomic_load(&d->last_step_ns),
        .late_allocations = atomic_load(&d->memory.late_allocations),
        .memory_drift = atomic_load(&d->memory.drift),
    };
}

static const char *description(const struct device *device)
{
    return of_const(device)->description;
}

static uint64_t kv_block_bytes(const struct device *device, uint32_t group)
{
    const struct cuda_device *d = of_const(device);

    assert(group < d->plan->group_count);
    return d->b.groups[group].block_bytes * d->plan->groups[group].layers;
}

/* Some layers at a time through the pinned staging memory. */
static enum status copy_block(struct cuda_device *d, uint32_t group, uint32_t block, char *bytes,
                              bool in)
{
    struct cuda_group *g = &d->b.groups[group];
    uint32_t layers = d->plan->groups[group].layers,
             some = (uint32_t)(CUDA_STAGING_BYTES / g->block_bytes);
    make_current(d);
    cudaError_t e = cudaStreamSynchronize(d->ctx.stream);

    assert(group < d->plan->group_count && block < g->blocks && some > 0);
    for (uint32_t first = 0; !e && first < layers; first += some) {
        uint32_t n = layers - first < some ? layers - first : some;
        if (in) memcpy(d->b.staging[0], bytes + first * g->block_bytes, n * g->block_bytes);
        e = state_gather_block(&d->ctx, g->pool + first * g->layer_bytes, n, g->blocks,
                               g->block_bytes, block, d->b.staging[0], in);
        if (!e) e = cudaStreamSynchronize(d->ctx.stream);
        if (!e && !in) memcpy(bytes + first * g->block_bytes, d->b.staging[0], n * g->block_bytes);
    }
    return e ? STATUS_DEVICE : STATUS_OK;
}

static enum status kv_copy_out(struct device *device, uint32_t group, uint32_t block, void *bytes)
{
    return copy_block(of(device), group, block, bytes, false);
}

static enum status kv_copy_in(struct device *device, uint32_t group, uint32_t block,
                              const void *bytes)
{
    return copy_block(of(device), group, block, (char *)(uintptr_t)bytes, true);
}

/* --- life --- */

static void stop_thread(struct cuda_device *d)
{
    if (!d->running) return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    d->running = false;
}

static void close_device(struct device *device)
{
    struct cuda_device *d = of(device);

    stop_thread(d);
    if (!atomic_load(
            &d->lost)) { /* else no call would do anything, or it would wait for a kernel that hangs */
        make_current(d);
        if (d->ctx.stream) cudaStreamSynchronize(d->ctx.stream);
        cuda_free_all(d);
        if (d->ctx.stream) cudaStreamDestroy(d->ctx.stream);
        if (d->upload) cudaStreamDestroy(d->upload);
    }
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->finished);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static void describe(struct cuda_device *d)
{
    const char *type = d->compute_dtype == DTYPE_F16    ? ", f16"
                       : d->compute_dtype == DTYPE_BF16 ? ", bf16"
                                                        : ""; /* before compile */

    snprintf(d->description, sizeof d->description, "CUDA, %s, code for sm_%d%s, %s", d->name,
             d->ctx.capability, type, d->options.enforce_eager ? "no graphs" : "graphs");
}

static enum status compile(struct device *device, const struct plan *plan,
                           const struct device_limits *limits, struct error *err)
{
    struct cuda_device *d = of(device);
    enum status st = cuda_compile(d, plan, limits, err);
    int code;

    if (st) return st;
    describe(d);
    code = pthread_create(&d->thread, NULL, wait_main, d);
    if (code)
        return error_set(err, STATUS_IO, "cannot start the device thread: %s", strerror(code));
    pthread_setname_np(d->thread, "inferd-cuda");
    d->running = true;
    return STATUS_OK;
}

static enum status start(struct cuda_device *d, struct error *err)
{
    struct cudaDeviceProp prop;
    struct error why;
    int count = 0;
    enum status st = cuda_driver_count(&count, &why);
    cudaError_t e;

    if (st) return error_set(err, st, "%s; --device cpu or auto needs no GPU", why.message);
    if (d->options.ordinal < 0 || d->options.ordinal >= count)
        return error_set(err, STATUS_UNSUPPORTED, "CUDA device %d of %d; 0 to %d are right",
                         d->options.ordinal, count, count - 1);
    e = cudaSetDevice(d->options.ordinal);
    if (!e) e = cudaGetDeviceProperties(&prop, d->options.ordinal);
    if (!e) e = kernel_context_init(&d->ctx);
    if (!e) e = cudaStreamCreateWithFlags(&d->ctx.stream, cudaStreamNonBlocking);
    if (!e) e = cudaStreamCreateWithFlags(&d->upload, cudaStreamNonBlocking);
    if (e)
        return error_set(err, STATUS_DEVICE, "CUDA device %d: %s", d->options.ordinal,
                         cudaGetErrorString(e));
    if (prop.major < 8)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s has compute capability %d.%d; 8.0 and up are right", prop.name,
                         prop.major, prop.minor);
    d->memory_bytes = prop.totalGlobalMem;
    snprintf(d->name, sizeof d->name, "%.99s", prop.name);
    describe(d);
    e = cuda_memory_phase(&d->memory, CUDA_PHASE_CONTEXT);
    return e ? error_set(err, STATUS_DEVICE, "asking for free memory: %s", cudaGetErrorString(e))
             : STATUS_OK;
}

static uint64_t memory_bytes(const struct device *device)
{
    return of_const(device)->memory_bytes;
}

enum status device_open_cuda(const struct device_options *options, struct device **out,
                             struct error *err)
{
    static const struct device_ops ops = {
        .close = close_device,
        .compile = compile,
        .submit_body = submit_body,
        .submit_sample = submit_sample,
        .wait = wait_step,
        .release = release,
        .health = health,
        .description = description,
        .kv_block_bytes = kv_block_bytes,
        .kv_copy_out = kv_copy_out,
        .kv_copy_in = kv_copy_in,
        .memory_bytes = memory_bytes,
        .begin_thread = begin_thread,
    };
    struct cuda_device *d = calloc(1, sizeof *d);
    pthread_condattr_t mono;
    enum status st;

    if (!d) return error_set(err, STATUS_NOMEM, "no memory for the CUDA device");
    d->base.ops = &ops;
    d->options = *options;
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_cond_init(&d->work, &mono);
    pthread_cond_init(&d->finished, &mono);
    pthread_condattr_destroy(&mono);
    atomic_store(&d->reason, "");
    st = start(d, err);
    if (st) {
        close_device(&d->base);
        return st;
    }
    *out = &d->base;
    return STATUS_OK;
}
