#include "observe/process_metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "observe/exposition.h"

static void put(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    expo_family(out, name, type, help);
    buf_printf(out, "%s %.15g\n", name, value);
}

/* Fields 22 (start, ticks after boot), 23 (virtual bytes) and 24 (resident pages) of /proc/self/stat, proc(5). */
static int read_stat(unsigned long long *start, unsigned long long *bytes, long long *pages)
{
    char text[1024];
    FILE *f = fopen("/proc/self/stat", "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    int fields = 20; /* to skip behind the name, which may have blanks and brackets */

    if (f) fclose(f);
    text[n] = 0;
    char *at = strrchr(text, ')');
    while (at && fields-- > 0)
        at = strchr(at + 1, ' ');
    return at && sscanf(at, " %llu %llu %lld", start, bytes, pages) == 3;
}

/* Unix time at which the system came up. */
static double boot_time(void)
{
    struct timespec wall, up;

    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_BOOTTIME, &up);
    return (double)(wall.tv_sec - up.tv_sec) + (double)(wall.tv_nsec - up.tv_nsec) * 1e-9;
}

/* Negative where none is left to look with: then all that may be are open. */
static int count_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = -3; /* ".", ".." and this very folder */

    if (!dir) return -1;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

void process_metrics(struct buf *out)
{
    unsigned long long start, bytes;
    long long pages;
    struct rusage usage;
    struct rlimit limit;
    int open_files = count_files();

    getrusage(RUSAGE_SELF, &usage);
    put(out, "process_cpu_seconds_total", "counter", "User and system CPU time.",
        (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
            (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
    if (read_stat(&start, &bytes, &pages)) {
        put(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.", (double)bytes);
        put(out, "process_resident_memory_bytes", "gauge", "Resident memory.",
            (double)pages * (double)sysconf(_SC_PAGESIZE));
        put(out, "process_start_time_seconds", "gauge", "Start of the process, unix time.",
            boot_time() + (double)start / (double)sysconf(_SC_CLK_TCK));
    }
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    put(out, "process_open_fds", "gauge", "Open file descriptors.",
        open_files < 0 ? (double)limit.rlim_cur : (double)open_files);
    put(out, "process_max_fds", "gauge", "Most file descriptors that may be open.",
        (double)limit.rlim_cur);
}
