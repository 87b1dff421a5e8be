/* device.c - which kind of device, and the calls that pass on to it. */
#include "device/device.h"

#include <assert.h>

enum status device_open(const struct device_options *options, struct device **out,
                        struct error *err)
{
    switch (options->kind) {
    case DEVICE_CPU: return device_open_cpu(options, out, err);
    case DEVICE_NULL: return device_open_null(options, out, err);
    case DEVICE_CUDA:
#if defined(INFERD_HAVE_CUDA) && INFERD_HAVE_CUDA
        return device_open_cuda(options, out, err);
#else
        return error_set(
            err, STATUS_UNSUPPORTED,
            "this build has no CUDA device: configure with nvcc on PATH (preset cuda), "
            "or use the CPU device");
#endif
    }
    return error_set(err, STATUS_UNSUPPORTED, "device kind %d is not known", (int)options->kind);
}

void device_close(struct device *device)
{
    if (device) device->ops->close(device);
}

enum status device_compile(struct device *device, const struct plan *plan,
                           const struct device_limits *limits, struct error *err)
{
    return device->ops->compile(device, plan, limits, err);
}

void device_set_notify(struct device *device, void (*notify)(void *ctx), void *ctx)
{
    device->notify = notify;
    device->notify_ctx = ctx;
}

void device_begin_thread(struct device *device)
{
    if (device->ops->begin_thread) device->ops->begin_thread(device);
}

enum status device_submit_body(struct device *device, const struct step *step)
{
    return device->ops->submit_body(device, step);
}

enum status device_submit_sample(struct device *device, const struct step *step,
                                 const struct step_masks *masks)
{
    return device->ops->submit_sample(device, step, masks);
}

enum status device_wait(struct device *device, uint64_t seq_no, int64_t timeout_ns,
                        const struct step_result **out)
{
    return device->ops->wait(device, seq_no, timeout_ns, out);
}

void device_release(struct device *device, uint64_t seq_no)
{
    device->ops->release(device, seq_no);
}

uint64_t device_memory_bytes(const struct device *device)
{
    return device->ops->memory_bytes ? device->ops->memory_bytes(device) : 0;
}

struct device_health device_health(const struct device *device)
{
    return device->ops->health(device);
}

const char *device_description(const struct device *device)
{
    return device->ops->description(device);
}

uint64_t device_kv_block_bytes(const struct device *device, uint32_t group)
{
    return device->ops->kv_block_bytes(device, group);
}

enum status device_kv_copy_out(struct device *device, uint32_t group, uint32_t block, void *bytes)
{
    return device->ops->kv_copy_out(device, group, block, bytes);
}

enum status device_kv_copy_in(struct device *device, uint32_t group, uint32_t block,
                              const void *bytes)
{
    return device->ops->kv_copy_in(device, group, block, bytes);
}
