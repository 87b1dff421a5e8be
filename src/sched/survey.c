/* survey.c - once a step, a look at all that hold blocks: places of KV that hold no token, and the work that is left.
 *
 * Only what one sequence alone owns has empty places: shared blocks are full. So the empty places are the sum over sequences of what their
 * tables hold beyond their tokens, and the places are those of the blocks in use, each once. */
#include <string.h>

#include "sched/sched_state.h"

static uint64_t empty_places(const struct sched *sched, enum seq_state state)
{
    const struct seq_link *head = &sched->lists[state];
    uint64_t empty = 0;

    for (const struct seq_link *link = head->next; link != head; link = link->next) {
        const struct sequence *seq = sched_link_seq(link);

        for (uint32_t g = 0; g < sched->kv.group_count; g++) {
            uint64_t places = (uint64_t)seq->kv.tables[g].count * sched->kv.groups[g].block_tokens;

            if (places > seq->computed) empty += places - seq->computed;
        }
    }
    return empty;
}

static void count_waste(struct sched *sched)
{
    struct waste *w = &sched->waste;
    double elapsed_ns = (double)(sched->now_ns - w->since_ns);
    uint64_t empty = 0;

    if (w->places && elapsed_ns > 0) {
        w->held_ns += elapsed_ns;
        w->wasted_ns += elapsed_ns * (double)(w->places - w->tokens) / (double)w->places;
    }
    w->since_ns = sched->now_ns;
    w->places = 0;
    for (uint32_t g = 0; g < sched->kv.group_count; g++) {
        uint64_t used = kv_pool_used_count(sched->kv.pools[g]);

        if (sched->kv.prefix) used -= kv_prefix_kept(sched->kv.prefix, g);
        w->places += used * sched->kv.groups[g].block_tokens;
    }
    for (int s = SEQ_RUNNING; s <= SEQ_ENDING; s++)
        empty += empty_places(sched, (enum seq_state)s);
    w->tokens = w->places - (empty < w->places ? empty : w->places);
}

static void count_end(struct load *load, uint32_t steps)
{
    if (steps < FORECAST_STEPS) load->ends[steps]++;
}

static void count_load(struct sched *sched)
{
    const struct seq_link *head = &sched->lists[SEQ_RUNNING];
    struct load load = {.ends = {(uint16_t)sched->counts[SEQ_ENDING]}};

    for (const struct seq_link *link = head->next; link != head; link = link->next) {
        const struct sequence *seq = sched_link_seq(link);
        uint32_t rows = sequence_rows_left(seq);

        if (rows > 1) {
            load.rows_under_way += rows;
            if (flood_floods(sched, seq)) load.rows_of_floods += rows;
        }
        count_end(&load, seq->max_new - seq->sampled_planned + (rows > 1));
        if (sequence_all_planned(seq)) continue;
        load.decodes++;
        load.decode_pairs += seq->computed + 1;
    }
    sched->load = load;
}

void survey(struct sched *sched)
{
    count_waste(sched);
    count_load(sched);
}

struct forecast sched_forecast(const struct sched *sched)
{
    struct forecast f = {
        .ready = cost_model_ready(&sched->cost),
        .decodes = sched->load.decodes,
        .decode_pairs = sched->load.decode_pairs,
        .rows_under_way = sched->load.rows_under_way,
        .free_slots = sched->free_slot_count,
        .rows_max = sched->options.max_num_batched_tokens,
        .rows_of_floods = sched->load.rows_of_floods,
        .max_step_ns = sched->options.max_step_ns,
        .by_class = sched->options.class_age_ns > 0,
    };

    memcpy(f.ends, sched->load.ends, sizeof f.ends);
    for (uint32_t g = 0; g < sched->kv.group_count; g++) {
        uint64_t tokens = (uint64_t)kv_pool_available_count(sched->kv.pools[g]) *
                          sched->kv.groups[g].block_tokens;

        if (g == 0 || tokens < f.kv_tokens) f.kv_tokens = tokens;
    }
    cost_model_weights(&sched->cost, &f.step_ns, &f.row_ns, &f.pair_ns);
    return f;
}
