/* harness.h - an engine over the fake device, and clients that know which tokens they must get. */
#pragma once

#include "engine/engine.h"
#include "fake_device.h"
#include "test.h"

enum { VOCAB = 61, CONTEXT = 256, CHOICES_MAX = 8, PROMPTS_MAX = 2 };

struct rig {
    struct plan plan;
    struct device_limits limits;
    struct engine_options options;
    struct fake_options fake;
    struct device *device;
    struct engine *engine;
};

/* Defaults: 8 slots, 64 rows, 2 groups of 64 blocks, 2 steps in flight, no delay. Change fields, then rig_start. */
void rig_init(struct rig *rig);
void rig_start(struct rig *rig);
/* Waits until the engine is idle, checks that the pool is full again and that the counters add up, ends everything. */
void rig_stop(struct rig *rig);
/* Waits until the condition holds of the numbers, a minute or more. */
#define RIG_WAIT(rig, stats, cond)                                                         \
    do {                                                                                   \
        for (int tries_ = 0;; tries_++) {                                                  \
            engine_stats((rig)->engine, &(stats));                                         \
            if (cond) break;                                                               \
            if (tries_ == 600000) fail_msg("%s:%d: never: %s", __FILE__, __LINE__, #cond); \
            rig_pause_us(100);                                                             \
        }                                                                                  \
    } while (0)
void rig_pause_us(uint32_t us);

/* What came for a choice so far. */
struct got {
    int32_t tokens[CONTEXT];
    uint32_t count;
    bool finished, scored;
    enum finish_reason reason;
};
struct client {
    struct request *request;
    struct got choices[CHOICES_MAX];
    bool error;
    enum status error_status;
    uint32_t finished_count;
    uint32_t wrong; /* outputs that differ from the fake device's sum, or come after an end */
};

/* A request of random prompt tokens; the test changes its fields before submitting. */
struct request *client_request(uint32_t prompts, uint32_t prompt_tokens, uint32_t best_of,
                               uint32_t max_tokens, uint32_t ring_capacity);
void client_init(struct client *client, struct request *request);
/* Reads at most `most` outputs of the ring and checks each; returns how many. */
uint32_t client_read(struct client *client, uint32_t most);
/* Reads until all choices are finished or an error came, a minute or more. */
void client_finish(struct client *client);
void client_fini(struct client *client); /* drops the request */
/* The token that choice must get as its index-th, given what it got before. */
int32_t client_expects(const struct client *client, uint32_t choice);
