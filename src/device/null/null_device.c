/* null_device.c - made-up tokens at a given pace, to measure everything that is not a model.
 *
 * The token at position p of a sequence with seed s is a hash of both, so texts repeat; it lies in the middle of the
 * vocabulary, away from the special tokens that stand at either end, and is none of the banned or masked ones. There are no
 * logits: logprobs are 0 (the API refuses them), STEP_KEEP_LOGITS gives none. No weights are needed. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/wake_soon.h"
#include "device/device_memory.h"
#include "device/step_queue.h"

enum { WAKE_SLICE_US = 200 }; /* a pretended GPU does not wait for a processor */

struct null_slot {
    uint64_t seed;
    uint32_t ban_until, banned_count;
    int32_t *banned; /* [banned_max] */
};
struct null_device {
    struct queued_device host; /* first */
    uint32_t step_us;
    struct device_fault fault;
    const struct plan *plan;
    struct device_limits limits;
    struct null_slot *slots;
    int32_t *banned;             /* [slots_max * banned_max] */
    struct step_output *outputs; /* [steps_inflight][logits_max] */
    int64_t free_at_ns;          /* when the pretended device has done its last step */
    bool awake_soon;             /* its thread has asked for that */
};

static struct null_device *of(struct device *device)
{
    return (struct null_device *)device;
}

static void free_buffers(struct null_device *d)
{
    free(d->slots);
    free(d->banned);
    free(d->outputs);
}

static void close_device(struct device *device)
{
    step_queue_fini(&of(device)->host.queue);
    free_buffers(of(device));
    free(device);
}

static void open_slot(struct null_device *d, const struct step *step, const struct step_open *o)
{
    struct null_slot *slot = &d->slots[o->slot];

    slot->seed = o->seed;
    slot->ban_until = o->ban_until;
    slot->banned_count = o->banned_count;
    if (o->banned_count)
        memcpy(slot->banned, step_ids(step) + o->banned_first, o->banned_count * sizeof(int32_t));
}

static void run_body(void *ctx, uint32_t index, const struct step *step)
{
    struct null_device *d = ctx;

    (void)index;
    for (uint32_t i = 0; i < step->open_count; i++)
        open_slot(d, step, &step_opens(step)[i]);
}

static bool allowed(const struct null_slot *slot, const uint32_t *mask, uint32_t position,
                    uint32_t id)
{
    if (mask && !(mask[id / 32] >> id % 32 & 1)) return false;
    for (uint32_t i = 0; position < slot->ban_until && i < slot->banned_count; i++)
        if ((uint32_t)slot->banned[i] == id) return false;
    return true;
}

static struct step_output make_token(const struct null_device *d, const struct null_slot *slot,
                                     const uint32_t *mask, uint32_t position)
{
    uint32_t tokens = d->plan->vocab_tokens, middle = tokens < 4 ? 1 : tokens / 4 * 3;
    uint32_t id =
        tokens / 8 + (uint32_t)(hash_mix64(slot->seed ^ hash_mix64(position + 1)) % middle);

    for (uint32_t tried = 0; tried < tokens; tried++, id = (id + 1) % tokens)
        if (allowed(slot, mask, position, id)) return (struct step_output){.token = (int32_t)id};
    return (struct step_output){.flags = OUTPUT_BAD_LOGITS};
}

/* Steps follow each other at the pace, without the drift of each sleep's lateness. */
static void keep_pace(struct null_device *d, int64_t started_ns)
{
    int64_t from = d->free_at_ns > started_ns ? d->free_at_ns : started_ns;
    struct timespec at;

    if (!d->step_us) return;
    if (!d->awake_soon) wake_soon(WAKE_SLICE_US);
    d->awake_soon = true;
    if (started_ns - d->free_at_ns < 200000) from = d->free_at_ns; /* was only woken late */
    d->free_at_ns = from + (int64_t)d->step_us * 1000;
    at = (struct timespec){d->free_at_ns / 1000000000, d->free_at_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) {
    }
}

static void run_sample(void *ctx, uint32_t index, const struct step *step,
                       const struct step_masks *masks, struct step_result *result)
{
    struct null_device *d = ctx;
    struct step_output *outputs = d->outputs + (uint64_t)index * d->limits.logits_max;

    for (uint32_t i = 0; i < step->segment_count; i++) {
        const struct step_segment *s = &step_segments(step)[i];
        for (uint32_t k = 0; k < s->logits_count; k++) {
            uint32_t at = s->output_first + k, pos = s->context_len + s->logits_first + k + 1;
            int32_t target = step_targets(step)[at];
            outputs[at] = target >= 0 ? (struct step_output){.token = target}
                                      : make_token(d, &d->slots[s->slot],
                                                   masks ? masks->masks[at] : NULL, pos);
        }
    }
    result->output_count = step->output_count;
    result->outputs = outputs;
    keep_pace(d, result->started_ns);
}

static uint64_t output_bytes(const struct device_limits *limits)
{
    return (uint64_t)limits->steps_inflight * limits->logits_max * sizeof(struct step_output);
}

static uint64_t slot_bytes(const struct device_limits *limits)
{
    return (uint64_t)limits->slots_max *
           (sizeof(struct null_slot) + limits->banned_max * sizeof(int32_t));
}

enum status null_memory_plan(const struct device_options *options, const struct plan *plan,
                             const struct device_limits *limits, struct device_memory *out,
                             struct error *err)
{
    (void)options, (void)plan, (void)err;
    *out = (struct device_memory){0};
    device_memory_add(out, "sequence state", slot_bytes(limits), false);
    device_memory_add(out, "results", output_bytes(limits), false);
    return STATUS_OK;
}

static enum status compile(struct device *device, const struct plan *plan,
                           const struct device_limits *limits, struct error *err)
{
    static const struct step_queue_ops ops = {run_body, run_sample};
    struct null_device *d = of(device);

    assert(!d->plan);
    if (!limits->slots_max || !limits->logits_max || !limits->steps_inflight ||
        limits->steps_inflight > STEP_QUEUE_MAX || !plan->vocab_tokens)
        return error_set(err, STATUS_INVALID, "null device: %u slots, %u logits rows, %u steps",
                         limits->slots_max, limits->logits_max, limits->steps_inflight);
    d->limits = *limits;
    d->slots = calloc(limits->slots_max, sizeof *d->slots);
    d->banned = calloc((size_t)limits->slots_max * limits->banned_max + 1, sizeof *d->banned);
    d->outputs = calloc(output_bytes(limits), 1);
    if (!d->slots || !d->banned || !d->outputs)
        return error_set(err, STATUS_NOMEM, "no memory for %u slots", limits->slots_max);
    for (uint32_t i = 0; i < limits->slots_max; i++)
        d->slots[i].banned = d->banned + (size_t)i * limits->banned_max;
    d->plan = plan;
    return step_queue_init(&d->host.queue, &ops, d, device, limits->steps_inflight, &d->fault, err);
}

static enum status submit_body(struct device *device, const struct step *step)
{
    struct error err;

    assert(step_check(step, of(device)->plan, &of(device)->limits, &err) == STATUS_OK);
    return step_queue_submit_body(&of(device)->host.queue, step);
}

static uint64_t kv_block_bytes(const struct device *device, uint32_t group)
{
    (void)device, (void)group;
    return 0;
}

static enum status kv_copy_out(struct device *device, uint32_t group, uint32_t block, void *bytes)
{
    (void)device, (void)group, (void)block, (void)bytes;
    return STATUS_UNSUPPORTED;
}

static enum status kv_copy_in(struct device *device, uint32_t group, uint32_t block,
                              const void *bytes)
{
    (void)device, (void)group, (void)block, (void)bytes;
    return STATUS_UNSUPPORTED;
}

enum status device_open_null(const struct device_options *options, struct device **out,
                             struct error *err)
{
    static const struct device_ops ops = {
        .close = close_device,
        .compile = compile,
        .submit_body = submit_body,
        .submit_sample = queued_submit_sample,
        .wait = queued_wait,
        .release = queued_release,
        .health = queued_health,
        .description = queued_description,
        .kv_block_bytes = kv_block_bytes,
        .kv_copy_out = kv_copy_out,
        .kv_copy_in = kv_copy_in,
    };
    struct null_device *d = calloc(1, sizeof *d);

    if (!d) return error_set(err, STATUS_NOMEM, "no memory for the null device");
    d->host.base.ops = &ops;
    d->step_us = options->null_step_us;
    d->fault = options->fault;
    snprintf(d->host.description, sizeof d->host.description, "null, made-up tokens, %u us a step",
             d->step_us);
    *out = &d->host.base;
    return STATUS_OK;
}
