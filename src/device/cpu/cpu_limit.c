#include "device/cpu/cpu_limit.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"

static_assert(CPU_LIST_MAX <= CPU_SETSIZE, "an id fits the system's mask");

/* --- lists --- */

static const char *parse_id(const char *at, uint32_t *out)
{
    char *end;

    if (*at < '0' || *at > '9') return NULL;
    errno = 0;
    unsigned long value = strtoul(at, &end, 10);
    if (errno || value >= CPU_LIST_MAX) return NULL;
    *out = (uint32_t)value;
    return end;
}

/* Sets bits of `set`; NULL, or where the text is wrong. */
static const char *parse_ranges(const char *at, cpu_set_t *set)
{
    uint32_t first, last;

    for (;;) {
        const char *end = parse_id(at, &first);
        if (!end) return at;
        last = first;
        if (*end == '-') {
            at = end;
            end = parse_id(end + 1, &last);
            if (!end || last < first) return at;
        }
        for (uint32_t id = first; id <= last; id++)
            CPU_SET(id, set);
        if (!*end) return NULL;
        if (*end != ',') return end;
        at = end + 1;
    }
}

static enum status read_ranges(const char *text, cpu_set_t *set, struct error *err)
{
    const char *wrong;

    CPU_ZERO(set);
    wrong = parse_ranges(text, set);
    if (!wrong) return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "the CPU set \"%s\" is wrong at \"%s\"; numbers below %d and ranges, as in "
                     "0-3,8, are right",
                     text, wrong, CPU_LIST_MAX);
}

enum status cpu_list_check(const char *text, struct error *err)
{
    cpu_set_t set;

    return read_ranges(text, &set, err);
}

enum status cpu_list_parse(const char *text, struct cpu_list *out, struct error *err)
{
    cpu_set_t wanted, allowed;
    enum status st = read_ranges(text, &wanted, err);

    if (st) return st;
    out->count = 0;
    bool known = !sched_getaffinity(0, sizeof allowed, &allowed);
    for (uint32_t id = 0; id < CPU_LIST_MAX; id++) {
        if (!CPU_ISSET(id, &wanted)) continue;
        if (known && !CPU_ISSET(id, &allowed))
            return error_set(
                err, STATUS_INVALID,
                "the CPU set \"%s\" names processor %u, which this process may not use", text, id);
        out->ids[out->count++] = (uint16_t)id;
    }
    return STATUS_OK;
}

enum status cpu_list_bind(const struct cpu_list *list, uint32_t thread, struct error *err)
{
    cpu_set_t set;
    uint32_t id = list->ids[thread % list->count];

    CPU_ZERO(&set);
    CPU_SET(id, &set);
    int code = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    return code ? error_set(err, STATUS_IO, "cannot bind a thread to processor %u: %s", id,
                            strerror(code))
                : STATUS_OK;
}

/* --- control groups --- */

static uint32_t whole_processors(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return UINT32_MAX;
    long long whole = quota / period;
    return whole < 1 ? 1 : whole < UINT32_MAX ? (uint32_t)whole : UINT32_MAX;
}

static uint32_t folder_limit(const char *folder, bool v2)
{
    long long quota = 0, period = 0, none;

    if (v2)
        return cgroup_numbers(folder, "cpu.max", &quota, &period) == 2
                   ? whole_processors(quota, period)
                   : UINT32_MAX;
    if (cgroup_numbers(folder, "cpu.cfs_quota_us", &quota, &none) < 1 ||
        cgroup_numbers(folder, "cpu.cfs_period_us", &period, &none) < 1)
        return UINT32_MAX;
    return whole_processors(quota, period);
}

static void take_least(void *ctx, const char *folder, bool v2)
{
    uint32_t *least = ctx, limit = folder_limit(folder, v2);

    if (limit < *least) *least = limit;
}

uint32_t cpu_limit_cgroup(const char *root)
{
    uint32_t least = UINT32_MAX;

    cgroup_each(root, "cpu", take_least, &least);
    return least;
}

uint32_t cpu_limit_processors(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t usable = online > 0 ? (uint32_t)online : 1, limit = cpu_limit_cgroup("");

    if (!sched_getaffinity(0, sizeof set, &set)) usable = (uint32_t)CPU_COUNT(&set);
    return limit < usable ? limit : usable;
}
