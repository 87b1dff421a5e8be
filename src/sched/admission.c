/* admission.c - from waiting to running: the order of the waiting list, slots, promises of KV blocks. */
#include <assert.h>
#include <stddef.h>

#include "sched/sched_state.h"

static bool goes_before(const struct sequence *a, const struct sequence *b)
{
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->arrival < b->arrival;
}

/* Almost always the end of the list: the search starts there. */
void admission_enqueue(struct sched *sched, struct sequence *seq)
{
    struct seq_link *head = &sched->lists[SEQ_WAITING], *after = head->prev;

    while (after != head && goes_before(seq, sched_link_seq(after)))
        after = after->prev;
    seq->link.prev = after;
    seq->link.next = after->next;
    after->next->prev = &seq->link;
    after->next = &seq->link;
    seq->state = SEQ_WAITING;
    sched->counts[SEQ_WAITING]++;
}

static void lend_tables(struct sched *sched, struct sequence *seq)
{
    uint32_t *blocks = sched->tables + (size_t)seq->slot * sched->table_stride;

    for (uint32_t g = 0; g < sched->kv.group_count; g++) {
        seq->kv.tables[g] = (struct kv_table){.blocks = blocks, .capacity = sched->table_blocks[g]};
        blocks += sched->table_blocks[g];
    }
}

struct sequence *admission_next(struct sched *sched)
{
    struct seq_link *first = sched->lists[SEQ_WAITING].next;

    if (first == &sched->lists[SEQ_WAITING] || sched->free_slot_count == 0) return NULL;
    struct sequence *seq = sched_link_seq(first);
    seq->slot = sched->free_slots[sched->free_slot_count - 1];
    lend_tables(sched, seq);
    if (kv_seq_promise(&seq->kv, &sched->kv, sequence_kv_tokens(seq))) return NULL;
    sched->free_slot_count--;
    sched_move(sched, seq, SEQ_RUNNING);
    return seq;
}

void admission_release(struct sched *sched, struct sequence *seq)
{
    assert(seq->last_seq_no <= sched->done_seq_no);
    kv_seq_drop(&seq->kv, &sched->kv);
    sched->free_slots[sched->free_slot_count++] = seq->slot;
    sched_move(sched, seq, SEQ_GONE);
}
