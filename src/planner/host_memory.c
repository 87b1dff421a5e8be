/* host_memory.c - how much memory this process could still take. */
#include "base/cgroup.h"
#include "planner/planner.h"

/* Page cache counts as used there, but is given back under pressure. */
static bool folder_left(const char *folder, bool v2, uint64_t *out)
{
    long long limit, used, none;
    uint64_t cache = 0;

    if (cgroup_numbers(folder, v2 ? "memory.max" : "memory.limit_in_bytes", &limit, &none) < 1 ||
        cgroup_numbers(folder, v2 ? "memory.current" : "memory.usage_in_bytes", &used, &none) < 1 ||
        limit < 0 || used < 0)
        return false;
    cgroup_keyed_number(folder, "memory.stat", v2 ? "inactive_file" : "total_inactive_file",
                        &cache);
    used -= cache < (uint64_t)used ? (long long)cache : used;
    *out = limit > used ? (uint64_t)(limit - used) : 0;
    return true;
}

static void take_least(void *ctx, const char *folder, bool v2)
{
    uint64_t *least = ctx, left;

    if (folder_left(folder, v2, &left) && left < *least) *least = left;
}

uint64_t planner_cgroup_left(const char *root)
{
    uint64_t least = UINT64_MAX;

    cgroup_each(root, "memory", take_least, &least);
    return least;
}

uint64_t planner_host_available(void)
{
    uint64_t available = 0, left = planner_cgroup_left("");

    if (!cgroup_keyed_number("/proc", "meminfo", "MemAvailable:", &available)) return 0;
    available *= 1024; /* the file counts KiB */
    if (left < available) available = left ? left : 1;
    return available;
}
