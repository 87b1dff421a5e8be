#include "device/cpu/cpu_limit.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static_assert(CPU_LIST_MAX <= CPU_SETSIZE, "an id fits the system's mask");
enum { PATH_BYTES = 1024 };

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

enum status cpu_list_parse(const char *text, struct cpu_list *out, struct error *err)
{
    cpu_set_t wanted, allowed;
    const char *wrong;

    CPU_ZERO(&wanted);
    wrong = parse_ranges(text, &wanted);
    if (wrong)
        return error_set(
            err, STATUS_INVALID,
            "the CPU set \"%s\" is wrong at \"%s\"; numbers below %d and ranges, as in "
            "0-3,8, are right",
            text, wrong, CPU_LIST_MAX);
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

static FILE *open_in(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);

    return length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
}

/* The first numbers of a file; how many there are. "max" is none. */
static int read_numbers(const char *folder, const char *name, long long *a, long long *b)
{
    FILE *f = open_in(folder, name);
    int count = f ? fscanf(f, "%lld %lld", a, b) : 0;

    if (f) fclose(f);
    return count;
}

static uint32_t whole_processors(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return UINT32_MAX;
    long long whole = quota / period;
    return whole < 1 ? 1 : whole < UINT32_MAX ? (uint32_t)whole : UINT32_MAX;
}

static uint32_t folder_limit(const char *folder, bool second)
{
    long long quota = 0, period = 0, none;

    if (second)
        return read_numbers(folder, "cpu.max", &quota, &period) == 2
                   ? whole_processors(quota, period)
                   : UINT32_MAX;
    if (read_numbers(folder, "cpu.cfs_quota_us", &quota, &none) < 1 ||
        read_numbers(folder, "cpu.cfs_period_us", &period, &none) < 1)
        return UINT32_MAX;
    return whole_processors(quota, period);
}

/* The least limit of `mount`/`group` and of all folders above it, `mount` included: in a container without a namespace of
 * its own the group's path is the host's, and only the mount itself is there. */
static uint32_t path_limit(const char *mount, const char *group, bool second)
{
    char path[PATH_BYTES];
    size_t base = strlen(mount);
    uint32_t least = UINT32_MAX;
    int length = snprintf(path, sizeof path, "%s%s", mount, group);

    if (length < 0 || (size_t)length >= sizeof path) return UINT32_MAX;
    for (;;) {
        uint32_t limit = folder_limit(path, second);
        if (limit < least) least = limit;
        char *slash = strrchr(path + base, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, len) == 0 && (at[len] == ',' || !at[len])) return true;
    return false;
}

uint32_t cpu_limit_cgroup(const char *root)
{
    char line[PATH_BYTES], mount[PATH_BYTES];
    uint32_t least = UINT32_MAX;
    FILE *f = open_in(root, "proc/self/cgroup");

    while (f && fgets(line, sizeof line, f)) { /* number:controllers:/path */
        char *controllers = strchr(line, ':'), *group, *end;
        if (!controllers || !(group = strchr(controllers + 1, ':'))) continue;
        *controllers++ = 0, *group++ = 0;
        if ((end = strchr(group, '\n'))) *end = 0;
        bool second = !*controllers;
        if (!second && !has_word(controllers, "cpu")) continue;
        int length = snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, second ? "" : "/",
                              controllers);
        if (length < 0 || (size_t)length >= sizeof mount) continue;
        uint32_t limit = path_limit(mount, group, second);
        if (limit < least) least = limit;
    }
    if (f) fclose(f);
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
