/* waste.c - places of KV blocks that hold no token.
 *
 * Only what one sequence alone owns has empty places: shared blocks are full. So the empty places are the sum over sequences of what their
 * tables hold beyond their tokens, and the places are those of the blocks in use, each once. */
#include "sched/sched_state.h"

static uint64_t empty_places(const struct sched *sched, enum seq_state state)
{
    const struct seq_link *head = &sched->lists[state];
    uint64_t empty = 0;

    for (const struct seq_link *link = head->next; link != head; link = link->next) {
        const struct sequence *seq = sched_link_seq(link);

        for (uint32_t g = 0; g < sched->kv.group_count; g++) {
            uint64_t places = (uint64_t)seq->kv.tables[g].count * sched->kv.block_tokens[g];

            if (places > seq->computed) empty += places - seq->computed;
        }
    }
    return empty;
}

void waste_update(struct sched *sched)
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
    for (uint32_t g = 0; g < sched->kv.group_count; g++)
        w->places += (uint64_t)kv_pool_used_count(sched->kv.pools[g]) * sched->kv.block_tokens[g];
    for (int s = SEQ_RUNNING; s <= SEQ_ENDING; s++)
        empty += empty_places(sched, (enum seq_state)s);
    w->tokens = w->places - (empty < w->places ? empty : w->places);
}
