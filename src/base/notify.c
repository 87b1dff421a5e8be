#include "base/notify.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct notify {
    _Atomic uint32_t count;
    _Atomic uint32_t sleeping; /* 1 while the sleeper may be in the kernel */
    _Atomic uint32_t refs;
};

struct notify *notify_create(void)
{
    struct notify *notify = calloc(1, sizeof *notify);

    if (notify) atomic_init(&notify->refs, 1);
    return notify;
}

void notify_ref(struct notify *notify)
{
    atomic_fetch_add_explicit(&notify->refs, 1, memory_order_relaxed);
}

void notify_unref(struct notify *notify)
{
    if (notify && atomic_fetch_sub_explicit(&notify->refs, 1, memory_order_acq_rel) == 1)
        free(notify);
}

uint32_t notify_count(const struct notify *notify)
{
    return atomic_load(&notify->count);
}

/* Both sides write one word and then read the other's, in one total order: either the signaller sees the sleeper, or the
 * kernel sees the new count and does not sleep. */
void notify_signal(struct notify *notify)
{
    atomic_fetch_add(&notify->count, 1);
    if (atomic_load(&notify->sleeping))
        syscall(SYS_futex, &notify->count, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void notify_wait(struct notify *notify, uint32_t seen, int64_t timeout_ns)
{
    struct timespec limit = {timeout_ns / 1000000000, timeout_ns % 1000000000};

    atomic_store(&notify->sleeping, 1);
    if (atomic_load(&notify->count) == seen && timeout_ns != 0)
        syscall(SYS_futex, &notify->count, FUTEX_WAIT_PRIVATE, seen, timeout_ns < 0 ? NULL : &limit,
                NULL, 0);
    atomic_store(&notify->sleeping, 0);
}
