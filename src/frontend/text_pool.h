/* text_pool.h - a few threads for text work, and a bounded queue of jobs before them. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct text_pool; /* opaque */

/* run(job) is called on a thread of the pool, jobs start in order. capacity: jobs waiting at once. */
enum status text_pool_create(uint32_t threads, uint32_t capacity, void (*run)(void *job),
                             struct text_pool **out, struct error *err);
/* STATUS_FULL, an ordinary event: the job was not taken. Never blocks. */
enum status text_pool_submit(struct text_pool *pool, void *job);
/* Runs what is queued, then joins the threads. Takes NULL. */
void text_pool_destroy(struct text_pool *pool);
