#include "cli/io_cpus.h"

#include "device/cpu/cpu_limit.h"

enum status io_cpus_read(const struct config *config, cpu_set_t *set, const cpu_set_t **out,
                         struct error *err)
{
    struct cpu_list list;
    struct error why;

    *out = NULL;
    if (!config->io_cpu_set || !*config->io_cpu_set) return STATUS_OK;
    if (cpu_list_parse(config->io_cpu_set, &list, &why))
        return error_set(err, STATUS_INVALID, "--io-cpu-set: %.400s", why.message);
    CPU_ZERO(set);
    for (uint32_t i = 0; i < list.count; i++)
        CPU_SET(list.ids[i], set);
    *out = set;
    return STATUS_OK;
}
