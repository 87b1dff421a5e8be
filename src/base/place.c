#include "base/place.h"

void place_begin(struct place *p, const cpu_set_t *cpus)
{
    p->moved = cpus && !sched_getaffinity(0, sizeof p->before, &p->before) &&
               !sched_setaffinity(0, sizeof *cpus, cpus);
}

void place_end(struct place *p)
{
    if (p->moved) sched_setaffinity(0, sizeof p->before, &p->before);
    p->moved = false;
}
