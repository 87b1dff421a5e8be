/* notify.h - wakes one thread that sleeps: a counter on a futex.
 *
 * The sleeper reads notify_count(), looks for work, and if there is none calls notify_wait() with the count that it read: a
 * signal that came in between ends the wait at once, so none is lost. A signal costs a system call only when somebody sleeps.
 * Shared by reference count, because who signals may outlive who sleeps.
 * Thread: signal from any, wait from one. */
#pragma once

#include <stdint.h>

struct notify; /* opaque */

struct notify *notify_create(void); /* one reference; NULL: no memory */
void notify_ref(struct notify *notify);
void notify_unref(struct notify *notify); /* takes NULL */

uint32_t notify_count(const struct notify *notify);
void notify_signal(struct notify *notify);
/* Returns when the count differs from `seen`, or after timeout_ns (negative: never), or now and then for no reason. */
void notify_wait(struct notify *notify, uint32_t seen, int64_t timeout_ns);
