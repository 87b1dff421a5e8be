/* text_pool.h - a few threads for text work, and a bounded queue of jobs before them; and the lanes that jobs of a kind wait in.
 *
 * A text of megabytes takes a thread for seconds. So that nobody's text waits behind a much longer one, each lane is a pool of its own
 * and the system shares the processors among them; and so that generation never waits behind what is only to be tokenised, that has
 * lanes of its own. The threads of long texts have a lower priority than all others of the process: the engine's come first.
 *
 *     bytes of the body      generation    tokenize, detokenize
 *     to 128 KiB             SHORT (--text-threads threads)
 *     to 1 MiB               LONG          LONG_ASK               (one thread each)
 *     more                   HUGE          HUGE_ASK */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct text_pool; /* opaque */

/* run(job) is called on a thread of the pool, jobs start in order. capacity: jobs waiting at once. nice: how much lower the threads'
 * priority is than the caller's, 0 to 19. */
enum status text_pool_create(uint32_t threads, uint32_t capacity, int nice, void (*run)(void *job),
                             struct text_pool **out, struct error *err);
/* STATUS_FULL, an ordinary event: the job was not taken. Never blocks. */
enum status text_pool_submit(struct text_pool *pool, void *job);
/* Runs what is queued, then joins the threads. Takes NULL. */
void text_pool_destroy(struct text_pool *pool);

enum text_lane { LANE_SHORT, LANE_LONG, LANE_HUGE, LANE_LONG_ASK, LANE_HUGE_ASK, TEXT_LANES };
struct text_lanes {
    struct text_pool *pools[TEXT_LANES]; /* owned */
};

/* asks: the request generates nothing. */
enum text_lane text_lane_of(size_t bytes, bool asks);
/* *out is zero before, and ended by the caller after a failure too. */
enum status text_lanes_create(uint32_t short_threads, void (*run)(void *job),
                              struct text_lanes *out, struct error *err);
enum status text_lanes_submit(struct text_lanes *lanes, enum text_lane lane,
                              void *job); /* as text_pool_submit */
void text_lanes_destroy(struct text_lanes *lanes);
