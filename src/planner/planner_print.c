/* planner_print.c - a fit as a page for people and as JSON for programs. */
#include <string.h>

#include "planner/planner.h"

/* "16.06 GB": units of 1000, as memory is sold. */
static const char *amount(uint64_t bytes, char out[static 32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double value = (double)bytes;
    int u = 0;

    for (; value >= 1000 && u < 4; u++)
        value /= 1000;
    snprintf(out, 32, u ? "%.2f %s" : "%.0f %s", value, units[u]);
    return out;
}

static void print_line(FILE *to, const char *name, uint64_t bytes, const char *note)
{
    char text[32];

    fprintf(to, "  %-36s %16llu  %10s%s\n", name, (unsigned long long)bytes, amount(bytes, text),
            note);
}

static void print_stored(const struct planner_subject *s, const struct plan *plan, FILE *to)
{
    struct planner_stored stored;
    char name[64];

    planner_stored_weights(plan, &stored);
    fprintf(to, "weights as %s\n", s->weights_present ? "stored" : "the config has them");
    for (int d = 0; d < DTYPE_COUNT; d++) {
        if (!stored.tensors[d]) continue;
        snprintf(name, sizeof name, "%s, %u tensor%s", dtype_info((enum dtype)d)->name,
                 stored.tensors[d], plural(stored.tensors[d]));
        print_line(to, name, stored.bytes[d], "");
    }
}

static void print_memory(const struct planner_options *o, const struct planner_fit *fit, FILE *to)
{
    const struct device_memory *m = &fit->memory;

    fprintf(to, "memory, bytes\n");
    for (uint32_t i = 0; i < m->line_count; i++)
        print_line(to, m->lines[i].name, m->lines[i].bytes,
                   m->lines[i].host       ? "  (host)"
                   : m->lines[i].estimate ? "  (the driver's, about)"
                                          : "");
    print_line(to, o->device.kind == DEVICE_CUDA ? "sum on the device" : "sum", m->device_bytes,
               "");
    if (m->host_bytes) print_line(to, "sum on the host", m->host_bytes, "");
    if (!fit->budget_bytes) return;
    print_line(to, "may be used", fit->budget_bytes, "");
    if (fit->budget_bytes >= m->device_bytes)
        print_line(to, "left of it", fit->budget_bytes - m->device_bytes, "");
}

/* One line where all layers keep the same; else one a group. */
static void print_pools(const struct plan *plan, const struct planner_fit *fit, FILE *to)
{
    for (uint32_t g = 0; g < plan->group_count; g++) {
        const struct plan_kv_group *group = &plan->groups[g];
        uint64_t blocks = fit->limits.kv_blocks[g], bytes = fit->memory.kv_block_bytes[g];
        char of[96] = "";

        if (group->window)
            snprintf(of, sizeof of, " of %u layer%s with a window of %u token%s", group->layers,
                     plural(group->layers), group->window, plural(group->window));
        else if (plan->group_count > 1)
            snprintf(of, sizeof of, " of %u layer%s with full attention", group->layers,
                     plural(group->layers));
        fprintf(to,
                "KV pool%s: %llu block%s of %u tokens, %llu bytes each (%llu bytes a token): %llu "
                "tokens\n",
                of, (unsigned long long)blocks, plural(blocks), group->block_tokens,
                (unsigned long long)bytes, (unsigned long long)(bytes / group->block_tokens),
                (unsigned long long)(blocks * group->block_tokens));
    }
}

void planner_print(const struct planner_subject *s, const struct planner_options *o,
                   const struct plan *plan, const struct planner_fit *fit, FILE *to)
{
    char text[32];

    fprintf(to, "%s\n%s, %.2f G parameters, on %s\n", s->path, s->description,
            (double)s->parameters / 1e9, s->device);
    if (o->memory_bytes)
        fprintf(to, "memory %llu bytes (%s), %.4g of it may be used\n",
                (unsigned long long)o->memory_bytes, amount(o->memory_bytes, text), o->utilization);
    print_stored(s, plan, to);
    if (fit->memory.line_count) print_memory(o, fit, to);
    if (s->refused) {
        fprintf(to, "does not fit: %s\n", s->refused);
        return;
    }
    print_pools(plan, fit, to);
    fprintf(
        to,
        "fits: --max-model-len %u, %llu sequence%s of that length at once (--max-num-seqs %u)\n",
        fit->limits.context_tokens, (unsigned long long)fit->full_sequences,
        plural(fit->full_sequences), fit->limits.slots_max);
}

static json_t *lines_json(const struct device_memory *m)
{
    json_t *lines = json_array();

    for (uint32_t i = 0; i < m->line_count; i++)
        json_array_append_new(lines, json_pack("{s:s, s:I, s:b, s:b}", "what", m->lines[i].name,
                                               "bytes", (json_int_t)m->lines[i].bytes, "host",
                                               m->lines[i].host, "estimate", m->lines[i].estimate));
    return lines;
}

static json_t *groups_json(const struct plan *plan, const struct planner_fit *fit)
{
    json_t *groups = json_array();

    for (uint32_t g = 0; g < plan->group_count; g++)
        json_array_append_new(groups, json_pack("{s:i, s:i, s:I, s:I}", "layers",
                                                (int)plan->groups[g].layers, "window",
                                                (int)plan->groups[g].window, "block_bytes",
                                                (json_int_t)fit->memory.kv_block_bytes[g], "blocks",
                                                (json_int_t)fit->limits.kv_blocks[g]));
    return groups;
}

static json_t *stored_json(const struct plan *plan)
{
    struct planner_stored stored;
    json_t *list = json_array();

    planner_stored_weights(plan, &stored);
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (stored.tensors[d])
            json_array_append_new(list, json_pack("{s:s, s:i, s:I}", "dtype",
                                                  dtype_info((enum dtype)d)->name, "tensors",
                                                  (int)stored.tensors[d], "bytes",
                                                  (json_int_t)stored.bytes[d]));
    return list;
}

json_t *planner_json(const struct planner_subject *s, const struct planner_options *o,
                     const struct plan *plan, const struct planner_fit *fit)
{
    json_t *kv =
        json_pack("{s:i, s:I, s:I, s:I, s:o}", "block_tokens", (int)fit->block_tokens,
                  "block_bytes", (json_int_t)fit->block_bytes, "blocks", (json_int_t)fit->blocks,
                  "tokens", (json_int_t)fit->kv_tokens, "groups", groups_json(plan, fit));
    json_t *page = json_pack(
        "{s:s, s:s, s:I, s:s, s:b, s:o, s:o, s:I, s:I, s:I, s:I, s:f, s:I, s:o, s:b}", "model",
        s->path, "description", s->description, "parameters", (json_int_t)s->parameters, "device",
        s->device, "weights_present", s->weights_present, "stored", stored_json(plan), "lines",
        lines_json(&fit->memory), "device_bytes", (json_int_t)fit->memory.device_bytes,
        "host_bytes", (json_int_t)fit->memory.host_bytes, "host_available_bytes",
        (json_int_t)s->host_available, "memory_bytes", (json_int_t)o->memory_bytes, "utilization",
        o->utilization, "budget_bytes", (json_int_t)fit->budget_bytes, "kv", kv, "fits",
        s->refused == NULL);

    if (!page) return NULL;
    if (s->refused) {
        json_object_set_new(page, "refused", json_string(s->refused));
        return page;
    }
    json_object_set_new(page, "max_model_len", json_integer(fit->limits.context_tokens));
    json_object_set_new(page, "max_num_seqs", json_integer(fit->limits.slots_max));
    json_object_set_new(page, "max_num_batched_tokens", json_integer(fit->limits.rows_max));
    json_object_set_new(page, "full_length_sequences",
                        json_integer((json_int_t)fit->full_sequences));
    return page;
}
