/* engine_host_time.c - host work of one step: what the engine thread spends outside waiting, per step and per sequence.
 *
 * Method: S sequences decode side by side on a device that computes nothing (null:0, or null at a given pace); the engine's own counter
 * of its time outside waiting, over the steps of a run of at least two seconds. The target (issue 5): at most 50 us + 0.5 us per
 * sequence. A reader thread takes the outputs, as a frontend would.
 *     build/release/bin/engine_host_time [step_us [window]]      window: a second KV group, of layers that see so many tokens */
#include <pthread.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"

enum { PROMPT = 64, ANSWER = 2000, CONTEXT = 4096 };

struct reader {
    struct output_bell bell;
    _Atomic uint32_t finished;
    _Atomic uint32_t stop;
};

static void *read_outputs(void *arg)
{
    struct reader *reader = arg;
    struct output out;
    uint64_t rings;

    while (!atomic_load(&reader->stop)) {
        struct pollfd fd = {reader->bell.event_fd, POLLIN, 0};
        struct request *next;

        if (poll(&fd, 1, 100) <= 0) continue;
        if (read(fd.fd, &rings, sizeof rings) < 0) continue;
        for (struct request *r = output_bell_take(&reader->bell); r; r = next) {
            next = output_bell_next(r);
            while (output_ring_pop(r->ring, &out) == STATUS_OK)
                if (out.kind == OUTPUT_FINISHED) atomic_fetch_add(&reader->finished, 1);
            request_unref(r);
        }
    }
    return NULL;
}

static struct request *make_request(struct output_bell *bell, uint64_t seed)
{
    struct request *r = request_create(0);
    struct request_prompt *prompt = arena_alloc(&r->arena, sizeof *prompt);
    int32_t *ids = arena_alloc(&r->arena, PROMPT * sizeof *ids);

    for (int i = 0; i < PROMPT; i++)
        ids[i] = i + 1;
    *prompt = (struct request_prompt){ids, PROMPT};
    r->prompt_count = r->best_of = 1;
    r->prompts = prompt;
    r->max_tokens = ANSWER;
    r->sampling = (struct request_sampling){
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = seed};
    r->ring = output_ring_create(64, 0);
    r->bell = bell;
    return r;
}

static void must(enum status st, const struct error *err)
{
    if (!st) return;
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static void measure(uint32_t seqs, uint32_t step_us, uint32_t window)
{
    struct plan plan = {
        .arch = "none",
        .vocab_rows = 32000,
        .vocab_tokens = 32000,
        .context_tokens = CONTEXT,
        .group_count = window ? 2 : 1,
        .groups = {
            {.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16},
            {.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16, .window = window}}};
    struct device_limits limits = {.slots_max = 256,
                                   .rows_max = 2048,
                                   .logits_max = 2048,
                                   .steps_inflight = 2,
                                   .context_tokens = CONTEXT,
                                   .kv_blocks = {256 * 140, 256 * 140},
                                   .bias_max = 300,
                                   .banned_max = 16};
    struct engine_options options = {.max_num_seqs = 256,
                                     .max_num_batched_tokens = 2048,
                                     .queue_seqs_max = 512,
                                     .queue_tokens_max = 1 << 24,
                                     .client_stall_ms = 30000,
                                     .context_tokens = CONTEXT};
    struct device_options device_options = {.kind = DEVICE_NULL, .null_step_us = step_us};
    struct engine_stats before, after;
    struct reader reader = {0};
    struct request *requests[256];
    struct device *device;
    struct engine *engine;
    struct error err;
    pthread_t thread;
    uint32_t retry;

    must(device_open(&device_options, &device, &err), &err);
    must(device_compile(device, &plan, &limits, &err), &err);
    must(engine_create(&options, device, &plan, &limits, &engine, &err), &err);
    if (output_bell_init(&reader.bell)) exit(1);
    pthread_create(&thread, NULL, read_outputs, &reader);
    for (uint32_t i = 0; i < seqs; i++) {
        requests[i] = make_request(&reader.bell, i);
        must(engine_submit(engine, requests[i], &retry, &err), &err);
    }
    do
        engine_stats(engine, &before);
    while (before.steps < 200); /* all are decoding by then */
    int64_t started_ns = clock_mono_ns();
    do {
        usleep(1000);
        engine_stats(engine, &after);
    } while (after.steps < ANSWER - 100);
    double steps = (double)(after.steps - before.steps);
    double rows = (double)(after.step_rows_sum - before.step_rows_sum) / steps;
    double host_us = (double)(after.host_ns_sum - before.host_ns_sum) / steps / 1e3;
    printf("%9u %9.1f %12.2f %12.2f %14.2f %8llu\n", seqs, rows, host_us, 50 + 0.5 * rows,
           (double)(clock_mono_ns() - started_ns) / steps / 1e3,
           (unsigned long long)after.late_mallocs);
    while (atomic_load(&reader.finished) < seqs)
        usleep(1000);
    atomic_store(&reader.stop, 1);
    pthread_join(thread, NULL);
    engine_destroy(engine);
    output_bell_fini(&reader.bell);
    for (uint32_t i = 0; i < seqs; i++)
        request_unref(requests[i]);
    device_close(device);
}

int main(int argc, char **argv)
{
    static const uint32_t seqs[] = {1, 64, 256};
    uint32_t step_us = argc > 1 ? (uint32_t)atoi(argv[1]) : 2000;
    uint32_t window = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;

    printf("null device, %u us a step\n", step_us);
    printf("%9s %9s %12s %12s %14s %8s\n", "sequences", "rows", "host us/step", "target",
           "wall us/step", "mallocs");
    for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++)
        measure(seqs[i], step_us, window);
    return 0;
}
