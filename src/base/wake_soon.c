#include "base/wake_soon.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* sched_setattr(2), which the C library has not; the first version of the kernel's struct. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

void wake_soon(uint32_t slice_us)
{
    struct attributes a = {.size = sizeof a,
                           .policy = SCHED_OTHER,
                           .nice = getpriority(PRIO_PROCESS, 0), /* of this thread */
                           .runtime_ns = (uint64_t)slice_us * 1000};

    if (sched_getscheduler(0) == SCHED_OTHER) syscall(SYS_sched_setattr, 0, &a, 0);
}
