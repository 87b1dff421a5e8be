/* place.h - on which processors threads run.
 *
 * A thread begins with the processors of the one that started it; so for a while the starter moves there itself, which also
 * reaches threads that a library starts. Thread: for the calling one. */
#pragma once

#include <sched.h>
#include <stdbool.h>

struct place {
    cpu_set_t before;
    bool moved;
};

/* Threads that are started until place_end run on `cpus` alone. NULL, or processors that the process may not use: nothing changes. */
void place_begin(struct place *place, const cpu_set_t *cpus);
void place_end(struct place *place);
