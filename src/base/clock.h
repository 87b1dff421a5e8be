/* clock.h - the time. Only those who may read a clock include it; sched/ may not. */
#pragma once

#include <stdint.h>

int64_t clock_mono_ns(void); /* CLOCK_MONOTONIC, nanoseconds */
int64_t clock_wall_s(void);  /* unix time, seconds */
int64_t clock_wall_ns(void); /* unix time, nanoseconds */
