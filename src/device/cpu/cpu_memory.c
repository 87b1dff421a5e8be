/* cpu_memory.c - the CPU device's memory plan: what cpu_layout() will carve, by region. */
#include <string.h>

#include "device/cpu/cpu_device.h"

enum status cpu_isa_choose(const char *name, enum cpu_isa *out, struct error *err)
{
    enum cpu_isa best = cpu_isa_best();

    *out = best;
    if (!name) return STATUS_OK;
    for (uint32_t i = 0; i < CPU_ISA_COUNT; i++) {
        if (strcmp(name, cpu_isa_name(i)) != 0) continue;
        if ((enum cpu_isa)i > best)
            return error_set(err, STATUS_UNSUPPORTED,
                             "this processor has no %s; the best it has is %s", name,
                             cpu_isa_name(best));
        *out = i;
        return STATUS_OK;
    }
    return error_set(
        err, STATUS_UNSUPPORTED,
        "CPU instruction set '%s' is not known; generic, avx2, avx512, avx512-vnni and amx are",
        name);
}

struct cpu_threads cpu_thread_counts(const struct device_options *options)
{
    struct cpu_list list;
    struct error err;
    struct cpu_threads n = {.decode = options->threads};

    if (!n.decode && options->cpu_set && !cpu_list_parse(options->cpu_set, &list, &err))
        n.decode = list.count;
    if (!n.decode) n.decode = cpu_limit_processors();
    n.batch = options->threads_batch ? options->threads_batch : n.decode;
    n.all = n.batch > n.decode ? n.batch : n.decode;
    return n;
}

static enum status check_group(const struct plan *plan, uint32_t g, uint32_t blocks,
                               struct error *err)
{
    const struct plan_kv_group *group = &plan->groups[g];

    if (group->kind != KV_ATTENTION)
        return error_set(err, STATUS_UNSUPPORTED, "KV group %u: the CPU device has no such state",
                         g);
    if (!group->block_tokens || group->block_tokens % KV_TILE)
        return error_set(err, STATUS_UNSUPPORTED,
                         "a KV block of %u tokens; the CPU device takes multiples of %d",
                         group->block_tokens, KV_TILE);
    if (!group->head_dim || group->head_dim % 2 || group->head_dim > 1024)
        return error_set(err, STATUS_UNSUPPORTED, "head_dim %u; even and at most 1024 is right",
                         group->head_dim);
    if (!blocks) return error_set(err, STATUS_INVALID, "KV group %u has no blocks", g);
    return STATUS_OK;
}

static enum status check_stage(const struct plan *plan, const struct stage *stage,
                               struct error *err)
{
    bool reduce = (stage->kind == STAGE_ATTN_OUT && stage->attn_out.reduce) ||
                  (stage->kind == STAGE_FFN_OUT && stage->ffn_out.reduce);

    if (reduce)
        return error_set(err, STATUS_UNSUPPORTED,
                         "layer %u %s is split over ranks; the CPU device runs one rank",
                         stage->layer, stage_kind_name(stage->kind));
    if (stage->kind == STAGE_ATTN_IN &&
        plan->ropes[stage->attn_in.rope].dim > stage->attn_in.head_dim)
        return error_set(err, STATUS_UNSUPPORTED, "layer %u rotates more than its head_dim",
                         stage->layer);
    if (stage->kind > STAGE_SAMPLE)
        return error_set(err, STATUS_UNSUPPORTED, "stage kind %d is not known", (int)stage->kind);
    return STATUS_OK;
}

enum status cpu_plan_check(const struct plan *plan, const struct device_limits *limits,
                           struct error *err)
{
    enum status st = STATUS_OK;

    if (!limits->slots_max || !limits->rows_max || !limits->logits_max ||
        limits->logits_max > limits->rows_max || !limits->steps_inflight ||
        limits->steps_inflight > CPU_STEPS_MAX || limits->top_logprobs_max > 20 ||
        !limits->context_tokens || limits->context_tokens > plan->context_tokens)
        return error_set(err, STATUS_INVALID,
                         "device limits: %u slots, %u rows, %u logits rows, %u steps in flight, %u "
                         "top logprobs, context %u of %u",
                         limits->slots_max, limits->rows_max, limits->logits_max,
                         limits->steps_inflight, limits->top_logprobs_max, limits->context_tokens,
                         plan->context_tokens);
    for (uint32_t g = 0; !st && g < plan->group_count; g++)
        st = check_group(plan, g, limits->kv_blocks[g], err);
    for (uint32_t i = 0; !st && i < plan->stage_count; i++)
        st = check_stage(plan, &plan->stages[i], err);
    return st;
}

enum status cpu_memory_plan(const struct device_options *options, const struct plan *plan,
                            const struct device_limits *limits, struct device_memory *out,
                            struct error *err)
{
    static const char *const names[CPU_REGION_COUNT] = {
        [CPU_WEIGHTS] = "weights, packed", [CPU_KV] = "KV pool",
        [CPU_ACTIVATIONS] = "activations", [CPU_LOGITS] = "logits",
        [CPU_ROPE] = "rope tables",        [CPU_SLOTS] = "sequence state",
        [CPU_RESULTS] = "results",
    };
    struct cpu_region_map regions[CPU_REGION_COUNT] = {0};
    struct cpu_buffers buffers;
    enum cpu_isa isa;
    enum status st = cpu_isa_choose(options->isa, &isa, err);

    if (!st) st = cpu_plan_check(plan, limits, err);
    if (st) return st;
    *out = (struct device_memory){0};
    cpu_layout(plan, limits, options->numerics, isa, cpu_thread_counts(options).all, regions,
               &buffers);
    for (uint32_t r = 0; r < CPU_REGION_COUNT; r++)
        device_memory_add(out, names[r], regions[r].bytes, false);
    for (uint32_t g = 0; g < plan->group_count; g++)
        out->kv_block_bytes[g] = buffers.groups[g].block_bytes;
    return STATUS_OK;
}
