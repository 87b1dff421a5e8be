/* step.c - the layout of a step, and whether one keeps to its limits. */
#include "device/step.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { ALIGN = 64, SLOTS_CHECKED_MAX = 16384 };

static uint64_t blocks_per_sequence(const struct plan *plan, const struct device_limits *limits,
                                    uint32_t group)
{
    uint32_t tokens = plan->groups[group].block_tokens;

    return ((uint64_t)limits->context_tokens + tokens - 1) / tokens;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Each capacity with its reason; all but ids hold whatever a scheduler can ask for within the limits. */
static void set_capacities(struct step *s, const struct plan *plan, const struct device_limits *lim)
{
    uint64_t slots = lim->slots_max, context = lim->context_tokens, tables = 0;
    uint64_t history = slots * context; /* penalties of reopened slots; bounded for long contexts */
    uint64_t history_max = context > 1u << 19 ? 2 * context : 1u << 20;

    for (uint32_t g = 0; g < plan->group_count;
         g++) /* a block is new once, or shared on admission */
        tables += min_u64(slots * blocks_per_sequence(plan, lim, g),
                          lim->kv_blocks[g] + slots + blocks_per_sequence(plan, lim, g));
    s->segment_cap = (uint32_t)min_u64(lim->rows_max, slots); /* one a sequence */
    s->row_cap = lim->rows_max;
    s->output_cap = lim->logits_max;
    s->table_cap = (uint32_t)tables;
    s->copy_cap = (uint32_t)(slots * plan->group_count); /* a sequence writes into one block */
    s->open_cap = lim->slots_max;
    s->id_cap = (uint32_t)(slots * lim->banned_max + min_u64(history, history_max));
    s->bias_cap = (uint32_t)(slots * lim->bias_max);
}

static uint32_t take(uint64_t *at, uint64_t count, size_t size)
{
    uint64_t offset = *at;

    *at = (offset + count * size + ALIGN - 1) / ALIGN * ALIGN;
    assert(*at <= UINT32_MAX);
    return (uint32_t)offset;
}

static struct step layout(const struct plan *plan, const struct device_limits *limits)
{
    struct step s = {0};
    uint64_t at = 0;

    set_capacities(&s, plan, limits);
    take(&at, 1, sizeof s);
    s.segments_at = take(&at, s.segment_cap, sizeof(struct step_segment));
    s.tokens_at = take(&at, s.row_cap, sizeof(int32_t));
    s.targets_at = take(&at, s.output_cap, sizeof(int32_t));
    s.tables_at = take(&at, s.table_cap, sizeof(struct step_table_change));
    s.copies_at = take(&at, s.copy_cap, sizeof(struct step_copy));
    s.opens_at = take(&at, s.open_cap, sizeof(struct step_open));
    s.ids_at = take(&at, s.id_cap, sizeof(int32_t));
    s.biases_at = take(&at, s.bias_cap, sizeof(struct step_bias));
    s.bytes = (uint32_t)at;
    return s;
}

size_t step_bytes(const struct plan *plan, const struct device_limits *limits)
{
    return layout(plan, limits).bytes;
}

struct step *step_init(void *memory, const struct plan *plan, const struct device_limits *limits)
{
    struct step *s = memory;

    assert((uintptr_t)memory % ALIGN == 0);
    *s = layout(plan, limits);
    return s;
}

void step_clear(struct step *step, uint64_t seq_no)
{
    step->seq_no = seq_no;
    step->segment_count = step->row_count = step->output_count = 0;
    step->table_count = step->copy_count = step->open_count = 0;
    step->id_count = step->bias_count = 0;
    step->flags = 0;
}

#define REFUSE(...)                                                  \
    do {                                                             \
        return error_set(err, STATUS_INVALID, "step: " __VA_ARGS__); \
    } while (0)

static enum status check_header(const struct step *s, const struct step *want, struct error *err)
{
    if (memcmp(&s->segment_cap, &want->segment_cap,
               sizeof *s - offsetof(struct step, segment_cap)) != 0)
        REFUSE("its layout is not the one of these limits (%u bytes; %u are right)", s->bytes,
               want->bytes);
    if (s->seq_no == 0) REFUSE("seq_no is 0; the first is 1");
    if (s->segment_count > s->segment_cap || s->row_count > s->row_cap ||
        s->output_count > s->output_cap || s->table_count > s->table_cap ||
        s->copy_count > s->copy_cap || s->open_count > s->open_cap || s->id_count > s->id_cap ||
        s->bias_count > s->bias_cap)
        REFUSE("a count is over its capacity (%u segments, %u rows, %u outputs, %u table changes, "
               "%u copies, %u opens, %u ids, %u biases)",
               s->segment_count, s->row_count, s->output_count, s->table_count, s->copy_count,
               s->open_count, s->id_count, s->bias_count);
    if (s->flags & ~(uint32_t)STEP_KEEP_LOGITS) REFUSE("flags 0x%x are not known", s->flags);
    return STATUS_OK;
}

static enum status check_segments(const struct step *s, const struct device_limits *lim,
                                  struct error *err)
{
    uint64_t seen[SLOTS_CHECKED_MAX / 64] = {0};
    uint32_t rows = 0, outputs = 0;

    for (uint32_t i = 0; i < s->segment_count; i++) {
        const struct step_segment *g = &step_segments(s)[i];
        if (g->slot >= lim->slots_max)
            REFUSE("segment %u has slot %u; below %u is right", i, g->slot, lim->slots_max);
        if (seen[g->slot / 64] >> g->slot % 64 & 1)
            REFUSE("segment %u is the second of slot %u", i, g->slot);
        seen[g->slot / 64] |= (uint64_t)1 << g->slot % 64;
        if (!g->rows || g->first_row != rows || g->rows > s->row_count - rows)
            REFUSE("segment %u has rows %u from %u; it must start at %u and end within %u", i,
                   g->rows, g->first_row, rows, s->row_count);
        if ((uint64_t)g->context_len + g->rows > lim->context_tokens)
            REFUSE("segment %u ends at position %llu of %u", i,
                   (unsigned long long)g->context_len + g->rows, lim->context_tokens);
        if ((uint64_t)g->logits_first + g->logits_count > g->rows)
            REFUSE("segment %u wants logits of rows %u+%u of %u", i, g->logits_first,
                   g->logits_count, g->rows);
        if (g->output_first != outputs || g->logits_count > s->output_count - outputs)
            REFUSE("segment %u has outputs %u+%u; they must start at %u and end within %u", i,
                   g->output_first, g->logits_count, outputs, s->output_count);
        if (g->adapter) REFUSE("segment %u has adapter %u; there is none", i, g->adapter);
        rows += g->rows, outputs += g->logits_count;
    }
    if (rows != s->row_count || outputs != s->output_count)
        REFUSE("its segments have %u rows and %u outputs; it says %u and %u", rows, outputs,
               s->row_count, s->output_count);
    return STATUS_OK;
}

static enum status check_tokens(const struct step *s, const struct plan *plan,
                                const struct device_limits *lim, struct error *err)
{
    for (uint32_t i = 0; i < s->row_count; i++) {
        int32_t t = step_tokens(s)[i];
        if (token_is_ref(t) ? token_ref_slot(t) >= lim->slots_max : (uint32_t)t >= plan->vocab_rows)
            REFUSE("row %u has token %d, outside of %u tokens and %u slots", i, t, plan->vocab_rows,
                   lim->slots_max);
    }
    for (uint32_t i = 0; i < s->output_count; i++) {
        int32_t t = step_targets(s)[i];
        if (t < TARGET_SAMPLE || (t >= 0 && (uint32_t)t >= plan->vocab_rows))
            REFUSE("target %u is %d; -1 to %u is right", i, t, plan->vocab_rows - 1);
    }
    for (uint32_t i = 0; i < s->id_count; i++)
        if ((uint32_t)step_ids(s)[i] >= plan->vocab_rows)
            REFUSE("id %u is %d; 0 to %u is right", i, step_ids(s)[i], plan->vocab_rows - 1);
    for (uint32_t i = 0; i < s->bias_count; i++) {
        struct step_bias b = step_biases(s)[i];
        if ((uint32_t)b.id >= plan->vocab_rows || !isfinite(b.bias))
            REFUSE("bias %u is %g of token %d", i, (double)b.bias, b.id);
    }
    return STATUS_OK;
}

static enum status check_tables(const struct step *s, const struct plan *plan,
                                const struct device_limits *lim, struct error *err)
{
    for (uint32_t i = 0; i < s->table_count; i++) {
        const struct step_table_change *t = &step_tables(s)[i];
        if (t->slot >= lim->slots_max || t->group >= plan->group_count ||
            t->index >= blocks_per_sequence(plan, lim, t->group) ||
            t->block >= lim->kv_blocks[t->group])
            REFUSE("table change %u (slot %u, group %u, index %u, block %u) is out of range", i,
                   t->slot, t->group, t->index, t->block);
    }
    for (uint32_t i = 0; i < s->copy_count; i++) {
        const struct step_copy *c = &step_copies(s)[i];
        if (c->group >= plan->group_count || c->from >= lim->kv_blocks[c->group] ||
            c->to >= lim->kv_blocks[c->group] || c->from == c->to)
            REFUSE("copy %u (group %u, block %u to %u) is out of range", i, c->group, c->from,
                   c->to);
    }
    return STATUS_OK;
}

static bool within(uint32_t first, uint32_t count, uint32_t total)
{
    return (uint64_t)first + count <= total;
}

static enum status check_open(const struct step *s, uint32_t i, const struct device_limits *lim,
                              struct error *err)
{
    const struct step_open *o = &step_opens(s)[i];

    if (o->slot >= lim->slots_max)
        REFUSE("open %u has slot %u; below %u is right", i, o->slot, lim->slots_max);
    if (!(o->temperature >= 0) || !isfinite(o->temperature) || !(o->top_p > 0 && o->top_p <= 1) ||
        !(o->min_p >= 0 && o->min_p <= 1))
        REFUSE("open %u has temperature %g, top_p %g, min_p %g; >= 0, (0, 1], [0, 1] are right", i,
               (double)o->temperature, (double)o->top_p, (double)o->min_p);
    if (!(o->repetition_penalty > 0) || !isfinite(o->repetition_penalty) ||
        !isfinite(o->frequency_penalty) || !isfinite(o->presence_penalty))
        REFUSE("open %u has penalties %g, %g, %g; > 0 and finite are right", i,
               (double)o->repetition_penalty, (double)o->frequency_penalty,
               (double)o->presence_penalty);
    if (o->top_logprobs > lim->top_logprobs_max || o->want_logprobs > 1)
        REFUSE("open %u wants %u top logprobs; at most %u", i, o->top_logprobs,
               lim->top_logprobs_max);
    if (o->banned_count > lim->banned_max || o->bias_count > lim->bias_max)
        REFUSE("open %u has %u banned ids and %u biases; at most %u and %u", i, o->banned_count,
               o->bias_count, lim->banned_max, lim->bias_max);
    if (!within(o->banned_first, o->banned_count, s->id_count) ||
        !within(o->prompt_first, o->prompt_count, s->id_count) ||
        !within(o->sampled_first, o->sampled_count, s->id_count) ||
        !within(o->bias_first, o->bias_count, s->bias_count))
        REFUSE("open %u names ids or biases that the step does not have", i);
    return STATUS_OK;
}

enum status step_check(const struct step *step, const struct plan *plan,
                       const struct device_limits *limits, struct error *err)
{
    struct step want = layout(plan, limits);
    enum status st = STATUS_OK;

    if (limits->slots_max > SLOTS_CHECKED_MAX)
        return error_set(err, STATUS_LIMIT, "%u slots; at most %d are right", limits->slots_max,
                         SLOTS_CHECKED_MAX);
    st = check_header(step, &want, err);
    if (!st) st = check_segments(step, limits, err);
    if (!st) st = check_tokens(step, plan, limits, err);
    if (!st) st = check_tables(step, plan, limits, err);
    for (uint32_t i = 0; !st && i < step->open_count; i++)
        st = check_open(step, i, limits, err);
    return st;
}
