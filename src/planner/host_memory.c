/* host_memory.c - how much memory this process could still take. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/planner.h"

/* The number behind `key` at the start of a line; behind nothing, of a file of one number. false: not there, or no number
 * ("max"). Files of /proc and /sys have no size, so they are read line by line. */
static bool read_number(const char *path, const char *key, uint64_t *out)
{
    FILE *file = fopen(path, "re");
    char line[256];
    bool found = false;

    while (file && !found && fgets(line, sizeof line, file)) {
        const char *at = line + strlen(key);
        if (strncmp(line, key, strlen(key)) != 0) continue;
        at += strspn(at, " \t");
        found = *at >= '0' && *at <= '9';
        if (found) *out = strtoull(at, NULL, 10);
    }
    if (file) fclose(file);
    return found;
}

/* Page cache counts as used there, but is given back under pressure. */
static bool cgroup_left(uint64_t *out)
{
    static const char *const files[2][3] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
         "/sys/fs/cgroup/memory.stat"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat"},
    };
    uint64_t limit, used, cache;

    for (int v = 0; v < 2; v++) {
        if (!read_number(files[v][0], "", &limit) || !read_number(files[v][1], "", &used)) continue;
        if (read_number(files[v][2], "inactive_file", &cache)) used -= cache < used ? cache : used;
        *out = limit > used ? limit - used : 0;
        return true;
    }
    return false;
}

uint64_t planner_host_available(void)
{
    uint64_t available = 0, left;

    if (!read_number("/proc/meminfo", "MemAvailable:", &available)) return 0;
    available *= 1024; /* the file counts KiB */
    if (cgroup_left(&left) && left < available) available = left ? left : 1;
    return available;
}
