#include "device/device_memory.h"

#include <assert.h>
#include <string.h>

void device_memory_add(struct device_memory *memory, const char *name, uint64_t bytes, bool host)
{
    struct device_memory_line *line = NULL;

    if (!bytes) return;
    for (uint32_t i = 0; i < memory->line_count; i++)
        if (memory->lines[i].host == host && strcmp(memory->lines[i].name, name) == 0)
            line = &memory->lines[i];
    if (!line) {
        assert(memory->line_count < DEVICE_MEMORY_LINES_MAX);
        line = &memory->lines[memory->line_count++];
        *line = (struct device_memory_line){.name = name, .host = host};
    }
    line->bytes += bytes;
    *(host ? &memory->host_bytes : &memory->device_bytes) += bytes;
}

void device_memory_add_estimate(struct device_memory *memory, const char *name, uint64_t bytes)
{
    if (!bytes) return;
    device_memory_add(memory, name, bytes, false);
    memory->lines[memory->line_count - 1].estimate = true;
    memory->estimate_bytes += bytes;
}

enum status device_memory_plan(const struct device_options *options, const struct plan *plan,
                               const struct device_limits *limits, struct device_memory *out,
                               struct error *err)
{
    switch (options->kind) {
    case DEVICE_CPU: return cpu_memory_plan(options, plan, limits, out, err);
    case DEVICE_NULL: return null_memory_plan(options, plan, limits, out, err);
    case DEVICE_CUDA:
#if defined(INFERD_HAVE_CUDA_PLAN) && INFERD_HAVE_CUDA_PLAN /* plain C, built without nvcc too */
        return cuda_memory_plan(options, plan, limits, out, err);
#else
        return error_set(err, STATUS_UNSUPPORTED, "this source tree has no CUDA device");
#endif
    }
    return error_set(err, STATUS_UNSUPPORTED, "device kind %d is not known", (int)options->kind);
}
