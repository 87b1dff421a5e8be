/* world.h - the real scheduler in virtual time: arrivals, a device whose step times are a formula, and what each request felt. */
#pragma once

#include "sched/sched.h"
#include "test.h"

struct visit { /* one request */
    double at_s;
    uint32_t prompt_count, max_new;
    uint64_t tenant;
    int32_t priority;
    uint32_t
        text; /* 0: a prompt of its own; else its first `alike` tokens are those of that text */
    uint32_t alike;
    /* filled by world_run */
    double first_s, end_s; /* times of the first and the last token */
    double predicted_s;    /* first_s as predicted when it came; 0: no prediction yet */
    bool started;
    struct sequence seq;
};

struct world {
    uint32_t slots, rows, blocks, context;
    double step_s, row_s, pair_s; /* a step takes step_s + row_s * rows + pair_s * pairs */
    struct sched_options options; /* slots and rows are filled from above */
    bool one_tenant;              /* whatever the visits say */
    uint32_t check_every;         /* steps between calls of sched_check; 0: none */
    /* results */
    uint64_t steps;
    bool floods;         /* some tenant is held back */
    uint32_t flood_ends; /* times that this ended */
    uint64_t ahead_alone
        [8]; /* by tenant % 8, while some tenant floods: steps of it alone, planned while another ran */
    double end_s;
    struct sched_counts counts;
    uint64_t fired[WINDOW_TRIGGERS];
    double waste; /* kv_wasted / kv_held */
};

/* Defaults: 32 slots, 512 rows, 4096 blocks of 16, steps of 8 ms + 20 us a row. */
void world_init(struct world *world);
/* Runs all visits to their ends; they must be in order of at_s. Two steps in flight, as the engine does it. */
void world_run(struct world *world, struct visit *visits, uint32_t count);

/* Poisson arrivals for `seconds` from start_s on; prompt and answer lengths uniform between bounds. Returns how many were added at visits. */
uint32_t world_poisson(struct visit *visits, uint32_t room, double rate, double start_s,
                       double seconds, uint32_t prompt_min, uint32_t prompt_max, uint32_t new_min,
                       uint32_t new_max, uint64_t tenant);
void world_sort(struct visit *visits, uint32_t count); /* by at_s */
/* The q-quantile of the time to the first token of those of a tenant (UINT64_MAX: all). */
double world_ttft(const struct visit *visits, uint32_t count, uint64_t tenant, double q);
