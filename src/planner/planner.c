#include "planner/planner.h"

#include <string.h>

enum {
    STEPS_INFLIGHT = 2, /* one on the device, one being planned ahead */
    LOGITS_ROWS_MIN =
        64, /* rows of logits a step can give, so that scoring a prompt goes in fair pieces */
    BLOCKS_MAX = 0x7fffffff / 16, /* a device's token index fits 31 bits */
    BIAS_MAX = 1024,              /* docs/api.md section 8 */
    BANNED_MAX = 256,             /* end-of-sequence ids and 128 stop_token_ids */
    NULL_BLOCK_BYTES =
        4096, /* the null device keeps no state: a block is counted as if it had so much */
};

static uint32_t at_least(uint32_t value, uint32_t least)
{
    return value < least ? least : value;
}

static struct device_limits first_limits(const struct planner_options *o, const struct plan *plan)
{
    struct device_limits limits = {
        .slots_max = o->max_num_seqs,
        .rows_max = at_least(o->max_num_batched_tokens, o->max_num_seqs),
        .steps_inflight = STEPS_INFLIGHT,
        .top_logprobs_max = o->max_logprobs,
        .bias_max = BIAS_MAX,
        .banned_max = BANNED_MAX,
        .context_tokens = o->max_model_len ? (uint32_t)o->max_model_len : plan->context_tokens,
    };

    limits.logits_max = at_least(o->max_num_seqs, LOGITS_ROWS_MIN);
    if (limits.logits_max > limits.rows_max) limits.logits_max = limits.rows_max;
    return limits;
}

/* Sums for the pools that fit->limits has. */
static enum status sum_memory(const struct planner_options *o, const struct plan *plan,
                              struct planner_fit *fit, struct error *err)
{
    enum status st = device_memory_plan(&o->device, plan, &fit->limits, &fit->memory, err);

    if (st) return st;
    fit->block_bytes = fit->pool_bytes = fit->blocks = 0;
    for (uint32_t g = 0; g < plan->group_count; g++) {
        uint64_t blocks = fit->limits.kv_blocks[g], bytes = fit->memory.kv_block_bytes[g];

        fit->block_bytes += bytes;
        fit->pool_bytes += blocks * bytes;
        if (blocks > fit->blocks) fit->blocks = blocks;
    }
    fit->fixed_bytes = fit->memory.device_bytes - fit->pool_bytes;
    fit->kv_tokens = fit->blocks * fit->block_tokens;
    return STATUS_OK;
}

/* --- how large the pools are (planner.h) --- */

struct pools { /* what their sizes follow from */
    const struct plan *plan;
    const struct device_limits *limits;
    uint64_t block_bytes[PLAN_GROUPS_MAX];
};

static struct pools pools_of(const struct plan *plan, const struct planner_fit *fit)
{
    struct pools p = {.plan = plan, .limits = &fit->limits};

    for (uint32_t g = 0; g < plan->group_count; g++) {
        p.block_bytes[g] = fit->memory.kv_block_bytes[g];
        if (!p.block_bytes[g]) p.block_bytes[g] = NULL_BLOCK_BYTES * plan->groups[g].layers;
        if (!fit->memory.kv_block_bytes[g] && plan->layers) p.block_bytes[g] /= plan->layers;
        if (!p.block_bytes[g]) p.block_bytes[g] = NULL_BLOCK_BYTES;
    }
    return p;
}

/* Bytes of one sequence's blocks, where a step computes so many rows. */
static uint64_t sequence_bytes(const struct pools *p, uint64_t tokens, uint32_t rows)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < p->plan->group_count; g++)
        bytes += plan_group_blocks(&p->plan->groups[g], tokens, rows) * p->block_bytes[g];
    return bytes;
}

/* What each pool would need for the load that asks most of it, of all loads of equal sequences that `bytes` could hold if each block could be of
 * any group. */
static void most_wanted(const struct pools *p, uint64_t bytes, double wanted[])
{
    uint64_t context = p->limits->context_tokens;

    for (uint64_t tokens = 16, last = 0; last < context; tokens *= 2) {
        last = tokens < context ? tokens : context;
        double sequences = (double)bytes / (double)sequence_bytes(p, last, 1);

        if (sequences > p->limits->slots_max) sequences = p->limits->slots_max;
        for (uint32_t g = 0; g < p->plan->group_count; g++) {
            double need = sequences * plan_group_blocks(&p->plan->groups[g], last, 1);
            if (need > wanted[g]) wanted[g] = need;
        }
    }
}

/* The group that keeps most of a sequence gets what is left over. */
static uint32_t widest(const struct plan *plan)
{
    uint32_t widest = 0;

    for (uint32_t g = 1; g < plan->group_count; g++) {
        uint32_t window = plan->groups[g].window, most = plan->groups[widest].window;
        if (most && (!window || window > most)) widest = g;
    }
    return widest;
}

static uint32_t block_limit(uint64_t blocks)
{
    return (uint32_t)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
}

/* Deals `bytes` to the pools: to each what one sequence of the whole context needs (they hold that), the rest in proportion to what is wanted. */
static void size_pools(const struct pools *p, uint64_t bytes, uint32_t blocks[])
{
    double wanted[PLAN_GROUPS_MAX] = {0}, wanted_bytes = 0;
    uint32_t rest = widest(p->plan);
    uint64_t least = sequence_bytes(p, p->limits->context_tokens, p->limits->rows_max);
    uint64_t left = bytes, more = bytes > least ? bytes - least : 0;

    most_wanted(p, bytes, wanted);
    for (uint32_t g = 0; g < p->plan->group_count; g++)
        wanted_bytes += wanted[g] * (double)p->block_bytes[g];
    for (uint32_t g = 0; g < p->plan->group_count; g++) {
        if (g == rest) continue;
        blocks[g] = block_limit(
            plan_group_blocks(&p->plan->groups[g], p->limits->context_tokens, p->limits->rows_max) +
            (uint64_t)((double)more * wanted[g] / wanted_bytes));
        left -= blocks[g] * p->block_bytes[g];
    }
    blocks[rest] = block_limit(left / p->block_bytes[rest]);
}

/* The longest context of which the pools could hold one sequence, in whole blocks. */
static uint64_t context_within(const struct pools *p, uint64_t bytes, uint32_t block_tokens)
{
    uint64_t low = 1, high = p->limits->context_tokens / block_tokens + 1;

    while (low < high) { /* low fits */
        uint64_t middle = low + (high - low + 1) / 2;

        if (sequence_bytes(p, middle * block_tokens, p->limits->rows_max) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low * block_tokens;
}

/* "16.1 GB weights + 0.3 GB activations + ..." of the device's own memory, the largest first. */
static void list_lines(const struct device_memory *memory, char *out, size_t size)
{
    bool said[DEVICE_MEMORY_LINES_MAX] = {0};
    size_t n = 0;

    for (uint32_t k = 0; k < memory->line_count; k++) {
        uint32_t most = memory->line_count;
        for (uint32_t i = 0; i < memory->line_count; i++)
            if (!said[i] && !memory->lines[i].host &&
                strcmp(memory->lines[i].name, "KV pool") != 0 &&
                (most == memory->line_count || memory->lines[i].bytes > memory->lines[most].bytes))
                most = i;
        if (most == memory->line_count || n + 1 >= size) return;
        said[most] = true;
        n += (size_t)snprintf(out + n, size - n, "%s%s %llu", n ? " + " : "",
                              memory->lines[most].name,
                              (unsigned long long)memory->lines[most].bytes);
    }
}

static enum status refuse_fixed(const struct planner_options *o, const struct plan *plan,
                                const struct planner_fit *fit, uint64_t pool_bytes,
                                struct error *err)
{
    char lines[256] = "", blocks[96] = "";
    uint64_t need = fit->fixed_bytes + pool_bytes;

    list_lines(&fit->memory, lines, sizeof lines);
    if (plan->group_count == 1 && fit->block_bytes)
        snprintf(blocks, sizeof blocks, "%llu block%s of %llu ",
                 (unsigned long long)(pool_bytes / fit->block_bytes),
                 plural(pool_bytes / fit->block_bytes), (unsigned long long)fit->block_bytes);
    return error_set(
        err, STATUS_NOMEM,
        "%llu byte%s of memory * %.4g = %llu may be used; %s + KV pool %llu (%sfor %u token%s) = "
        "%llu: %llu byte%s too many",
        (unsigned long long)o->memory_bytes, plural(o->memory_bytes), o->utilization,
        (unsigned long long)fit->budget_bytes, lines, (unsigned long long)pool_bytes, blocks,
        fit->limits.context_tokens, plural(fit->limits.context_tokens), (unsigned long long)need,
        (unsigned long long)(need - fit->budget_bytes), plural(need - fit->budget_bytes));
}

static enum status refuse_pool(const struct planner_options *o, const struct planner_fit *fit,
                               uint64_t holds, uint64_t needed, struct error *err)
{
    if (!o->max_model_len)
        return error_set(err, STATUS_NOMEM,
                         "--kv-cache-memory of %llu bytes holds no sequence at all: %llu bytes are "
                         "needed",
                         (unsigned long long)o->kv_bytes, (unsigned long long)needed);
    return error_set(
        err, STATUS_NOMEM,
        "--kv-cache-memory of %llu bytes holds %llu tokens (%llu bytes for %u tokens), too "
        "few for --max-model-len %llu: %llu bytes are needed",
        (unsigned long long)o->kv_bytes, (unsigned long long)holds,
        (unsigned long long)fit->block_bytes, fit->block_tokens,
        (unsigned long long)o->max_model_len, (unsigned long long)needed);
}

/* Bytes that the KV pool may have. */
static uint64_t pool_bytes(const struct planner_options *o, const struct planner_fit *fit)
{
    uint64_t left = fit->budget_bytes > fit->fixed_bytes ? fit->budget_bytes - fit->fixed_bytes : 0;

    if (!fit->budget_bytes) return o->kv_bytes;
    return o->kv_bytes && o->kv_bytes < left ? o->kv_bytes : left;
}

/* The pools of so many bytes; a context that was not asked for is cut to what they hold. */
static void deal(const struct planner_options *o, const struct pools *p, uint64_t bytes,
                 struct planner_fit *fit)
{
    uint64_t context = context_within(p, bytes, fit->block_tokens);

    if (!o->max_model_len && fit->limits.context_tokens > context)
        fit->limits.context_tokens = (uint32_t)context;
    size_pools(p, bytes, fit->limits.kv_blocks);
}

/* Some lines grow a little with the number of blocks (a step names them): then the pool gives way. */
static enum status sum_within_budget(const struct planner_options *o, const struct plan *plan,
                                     const struct pools *p, uint64_t bytes, uint64_t needed,
                                     struct planner_fit *fit, struct error *err)
{
    enum status st;

    deal(o, p, bytes, fit);
    st = sum_memory(o, plan, fit, err);
    while (!st && fit->budget_bytes && fit->memory.device_bytes > fit->budget_bytes) {
        uint64_t over = fit->memory.device_bytes - fit->budget_bytes;

        if (!fit->block_bytes || o->kv_bytes || fit->pool_bytes < needed + over)
            return refuse_fixed(o, plan, fit, o->kv_bytes ? fit->pool_bytes : needed, err);
        deal(o, p, fit->pool_bytes - over, fit);
        st = sum_memory(o, plan, fit, err);
    }
    return st;
}

static uint64_t full_sequences(const struct plan *plan, const struct device_limits *limits)
{
    uint64_t most = UINT64_MAX;

    for (uint32_t g = 0; g < plan->group_count; g++) {
        uint64_t here =
            limits->kv_blocks[g] / plan_group_blocks(&plan->groups[g], limits->context_tokens, 1);
        if (here < most) most = here;
    }
    return most;
}

enum status planner_fit(const struct planner_options *o, const struct plan *plan,
                        struct planner_fit *fit, struct error *err)
{
    uint64_t bytes, needed, each = 0;
    struct pools p;
    enum status st;

    *fit = (struct planner_fit){.block_tokens = plan->groups[0].block_tokens};
    if (o->max_model_len > plan->context_tokens)
        return error_set(err, STATUS_INVALID,
                         "--max-model-len is %llu; this model's own is %u (tokens)",
                         (unsigned long long)o->max_model_len, plan->context_tokens);
    fit->budget_bytes = (uint64_t)((double)o->memory_bytes * o->utilization);
    if (o->memory_bytes && !fit->budget_bytes) fit->budget_bytes = 1; /* 0: there is no bound */
    fit->limits = first_limits(o, plan);
    for (uint32_t g = 0; g < plan->group_count; g++)
        fit->limits.kv_blocks[g] = 1;
    st = sum_memory(o, plan, fit, err);
    if (st) return st;

    p = pools_of(plan, fit);
    for (uint32_t g = 0; g < plan->group_count; g++)
        each += p.block_bytes[g];
    needed = sequence_bytes(&p, o->max_model_len ? o->max_model_len : 1, fit->limits.rows_max);
    bytes = pool_bytes(o, fit);
    if (bytes / each > BLOCKS_MAX) bytes = BLOCKS_MAX * each;
    if (fit->block_bytes && fit->budget_bytes && fit->budget_bytes < fit->fixed_bytes + needed)
        return refuse_fixed(o, plan, fit, needed, err);
    if (fit->budget_bytes && fit->budget_bytes < fit->fixed_bytes)
        return refuse_fixed(o, plan, fit, 0, err);
    /* What was asked for by the byte is had in full or refused, never quietly cut. */
    if (o->kv_bytes && bytes / each < o->kv_bytes / each && bytes / each < BLOCKS_MAX)
        return refuse_fixed(o, plan, fit, o->kv_bytes / each * fit->block_bytes, err);
    if (bytes < needed)
        return refuse_pool(o, fit, bytes < each ? 0 : context_within(&p, bytes, fit->block_tokens),
                           needed, err);
    st = sum_within_budget(o, plan, &p, bytes, needed, fit, err);
    if (st) return st;
    fit->full_sequences = full_sequences(plan, &fit->limits);
    return STATUS_OK;
}

enum status planner_check_host(const struct planner_fit *fit, enum device_kind kind,
                               uint64_t available, struct error *err)
{
    uint64_t need = fit->memory.host_bytes;
    char lines[256] = "";

    if (kind != DEVICE_CUDA) need += fit->memory.device_bytes;
    if (!available || need <= available) return STATUS_OK;
    if (kind == DEVICE_CUDA)
        return error_set(
            err, STATUS_NOMEM,
            "%llu bytes of host memory are needed for staging and results; %llu are available",
            (unsigned long long)need, (unsigned long long)available);
    list_lines(&fit->memory, lines, sizeof lines);
    return error_set(
        err, STATUS_NOMEM,
        "%s + KV pool %llu = %llu bytes; this machine has %llu available: %llu too many "
        "(a smaller --kv-cache-memory, --max-num-seqs or --max-model-len takes less)",
        lines, (unsigned long long)fit->pool_bytes, (unsigned long long)need,
        (unsigned long long)available, (unsigned long long)(need - available));
}

static bool same_weight(const struct plan_weight *a, const struct plan_weight *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->dtype == b->dtype &&
           (a->data ? a->data == b->data : !b->data && a->dummy_seed == b->dummy_seed);
}

static void add_stored(struct planner_stored *s, const struct plan_weight *w)
{
    uint64_t bytes = dtype_row_bytes(w->dtype, w->cols) * w->rows;

    if (!w->rows) return;
    s->tensors[w->dtype]++;
    s->bytes[w->dtype] += bytes;
    s->total_bytes += bytes;
}

static void add_attn_in(struct planner_stored *s, const struct stage_attn_in *a)
{
    add_stored(s, &a->norm.gain);
    add_stored(s, &a->q);
    add_stored(s, &a->k);
    add_stored(s, &a->v);
    add_stored(s, &a->q_bias);
    add_stored(s, &a->k_bias);
    add_stored(s, &a->v_bias);
    add_stored(s, &a->q_norm.gain);
    add_stored(s, &a->k_norm.gain);
}

static void add_ffn_in(struct planner_stored *s, const struct stage_ffn_in *f)
{
    add_stored(s, &f->norm.gain);
    add_stored(s, &f->gate);
    add_stored(s, &f->up);
    add_stored(s, &f->gate_bias);
    add_stored(s, &f->up_bias);
}

static void add_project(struct planner_stored *s, const struct stage_project *p)
{
    add_stored(s, &p->weight);
    add_stored(s, &p->bias);
    add_stored(s, &p->post_norm.gain);
}

void planner_stored_weights(const struct plan *plan, struct planner_stored *out)
{
    const struct plan_weight *embed = NULL;

    *out = (struct planner_stored){0};
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct stage *stage = &plan->stages[i];
        switch (stage->kind) {
        case STAGE_EMBED:
            embed = &stage->embed.table;
            add_stored(out, embed);
            break;
        case STAGE_ATTN_IN: add_attn_in(out, &stage->attn_in); break;
        case STAGE_ATTN_OUT: add_project(out, &stage->attn_out); break;
        case STAGE_FFN_IN: add_ffn_in(out, &stage->ffn_in); break;
        case STAGE_FFN_OUT: add_project(out, &stage->ffn_out); break;
        case STAGE_HEAD:
            add_stored(out, &stage->head.norm.gain);
            if (!embed || !same_weight(embed, &stage->head.weight))
                add_stored(out, &stage->head.weight);
            break;
        case STAGE_ATTN:
        case STAGE_SAMPLE: break;
        }
    }
}
