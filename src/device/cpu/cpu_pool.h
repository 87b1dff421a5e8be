/* cpu_pool.h - the CPU device's own threads: one job at a time, cut into chunks that whoever is free takes.
 *
 * The caller of cpu_pool_run() is thread 0 and works too. Between jobs the others spin for some microseconds (stages of a
 * step follow closely), then sleep in the kernel: an idle pool costs nothing. A chunk is claimed by one compare-and-swap on a
 * word that holds the job's number and the chunks left, so a thread that wakes late can never touch a job that has ended.
 * Fewer threads than there are may be used for a while (cpu_pool_use): the rest sleep.
 * Thread: one caller at a time. Memory: fixed at create. */
#pragma once

#include <stdint.h>

#include "device/cpu/cpu_limit.h"

struct cpu_pool;

/* threads: 1..256, the caller included. `list`: worker i is bound to its processor i (NULL: none is; copied); the caller
 * binds itself (cpu_list_bind, 0). Errors: STATUS_NOMEM, STATUS_IO (no thread). */
enum status cpu_pool_create(uint32_t threads, const struct cpu_list *list, struct cpu_pool **out,
                            struct error *err);
void cpu_pool_destroy(struct cpu_pool *pool); /* takes NULL; no job may be running */
uint32_t cpu_pool_threads(const struct cpu_pool *pool);
/* The next jobs run on threads 0..threads-1 only (1 to all of them, the state after create). Between jobs. */
void cpu_pool_use(struct cpu_pool *pool, uint32_t threads);
uint32_t cpu_pool_used(const struct cpu_pool *pool);

/* Items [begin, end) of a job, on thread 0..threads-1 (for scratch memory). */
typedef void (*cpu_pool_fn)(void *ctx, uint32_t begin, uint32_t end, uint32_t thread);

/* Calls fn over 0..items-1 in chunks of `grain` and returns when all are done; everything they wrote is visible to the caller. */
void cpu_pool_run(struct cpu_pool *pool, cpu_pool_fn fn, void *ctx, uint32_t items, uint32_t grain);
