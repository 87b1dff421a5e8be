/* cpu_device.c - opens and closes the CPU device and gives its operations. */
#include "device/cpu/cpu_device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static struct cpu_device *of(struct device *device)
{
    return (struct cpu_device *)device;
}

static const struct cpu_device *of_const(const struct device *device)
{
    return (const struct cpu_device *)device;
}

static void close_device(struct device *device)
{
    struct cpu_device *d = of(device);

    step_queue_fini(&d->host.queue);
    cpu_pool_destroy(d->pool);
    cpu_unmap_regions(d);
    free(d);
}

static enum status compile(struct device *device, const struct plan *plan,
                           const struct device_limits *limits, struct error *err)
{
    static const struct step_queue_ops ops = {cpu_run_body, cpu_run_sample};
    struct cpu_device *d = of(device);
    enum status st = cpu_compile(d, plan, limits, err);

    if (!st)
        st = step_queue_init(&d->host.queue, &ops, d, device, limits->steps_inflight,
                             &d->options.fault, err);
    return st;
}

static enum status submit_body(struct device *device, const struct step *step)
{
    struct cpu_device *d = of(device);
    struct error err;

    if (step_check(step, d->plan, &d->limits, &err)) {
        log_error("bad step", "seq_no=%llu reason=\"%s\"", (unsigned long long)step->seq_no,
                  err.message);
        assert(!"a step outside of the device's limits is the scheduler's bug");
    }
    return step_queue_submit_body(&d->host.queue, step);
}

static uint64_t kv_block_bytes(const struct device *device, uint32_t group)
{
    assert(group < of_const(device)->plan->group_count);
    return of_const(device)->b.groups[group].block_bytes;
}

static char *block_at(struct cpu_device *d, uint32_t group, uint32_t block)
{
    assert(group < d->plan->group_count && block < d->limits.kv_blocks[group]);
    step_queue_drain(&d->host.queue);
    return d->b.groups[group].pool + block * d->b.groups[group].block_bytes;
}

static enum status kv_copy_out(struct device *device, uint32_t group, uint32_t block, void *bytes)
{
    memcpy(bytes, block_at(of(device), group, block), kv_block_bytes(device, group));
    return STATUS_OK;
}

static enum status kv_copy_in(struct device *device, uint32_t group, uint32_t block,
                              const void *bytes)
{
    memcpy(block_at(of(device), group, block), bytes, kv_block_bytes(device, group));
    return STATUS_OK;
}

enum status device_open_cpu(const struct device_options *options, struct device **out,
                            struct error *err)
{
    static const struct device_ops ops = {
        .close = close_device,
        .compile = compile,
        .submit_body = submit_body,
        .submit_sample = queued_submit_sample,
        .wait = queued_wait,
        .release = queued_release,
        .health = queued_health,
        .description = queued_description,
        .kv_block_bytes = kv_block_bytes,
        .kv_copy_out = kv_copy_out,
        .kv_copy_in = kv_copy_in,
    };
    enum cpu_isa isa;
    enum status st = cpu_isa_choose(options->isa, &isa, err);
    struct cpu_threads threads = cpu_thread_counts(options);
    struct cpu_device *d;

    if (st) return st;
    d = calloc(1, sizeof *d);
    if (!d) return error_set(err, STATUS_NOMEM, "no memory for the CPU device");
    d->host.base.ops = &ops;
    d->options = *options;
    d->numerics = options->numerics;
    d->isa = isa;
    d->kernels = cpu_kernels(isa);
    if (options->cpu_set) st = cpu_list_parse(options->cpu_set, &d->list, err);
    if (!st) st = cpu_pool_create(threads.all, options->cpu_set ? &d->list : NULL, &d->pool, err);
    if (st) {
        free(d);
        return st;
    }
    d->threads = threads;
    char prompts[32] = "";
    if (threads.batch != threads.decode)
        snprintf(prompts, sizeof prompts, " (%u for prompts)", threads.batch);
    snprintf(d->host.description, sizeof d->host.description, "CPU, %u thread%s%s, %s, %s",
             threads.decode, plural(threads.decode), prompts, cpu_isa_name(isa),
             options->numerics == CPU_FAST ? "fast" : "exact");
    *out = &d->host.base;
    return STATUS_OK;
}
