/* preempt.c - who gives up blocks when there are none, by recompute. */
#include "sched/sched_state.h"

static bool goes_first(const struct sched *sched, const struct sequence *a,
                       const struct sequence *b)
{
    if (a->state != b->state) return a->state == SEQ_BLOCKED; /* it does not use them now */
    if (a->priority == b->priority && flood_floods(sched, a) != flood_floods(sched, b))
        return flood_floods(sched, a);
    return order_before(sched, b, a);
}

static struct sequence *worst(const struct sched *sched, enum seq_state state,
                              struct sequence *victim)
{
    const struct seq_link *head = &sched->lists[state];

    for (const struct seq_link *link = head->next; link != head; link = link->next) {
        struct sequence *seq = sched_link_seq(link);

        /* promised all that it needs; but one that stands still may do so for long */
        if (seq->score_prompt || (state == SEQ_RUNNING && sequence_needs_all(seq))) continue;
        if (goes_first(sched, seq, victim)) victim = seq;
    }
    return victim;
}

/* The victim may be in the step that is being planned: it gives up its blocks when that is done. */
bool preempt_for(struct sched *sched, struct sequence *needy)
{
    struct sequence *victim;

    /* Blocks are on their way: those of one that leaves or ends when its steps are done. */
    if (sched->counts[SEQ_LEAVING] + sched->counts[SEQ_ENDING]) return false;
    victim = worst(sched, SEQ_RUNNING, needy);
    victim = worst(sched, SEQ_BLOCKED, victim);
    if (victim == needy && sched->kv.prefix && kv_prefix_unpin_idle(sched->kv.prefix, 1))
        return true; /* before it would give way to what nobody uses */
    victim->preemptions++;
    sched->preemptions++;
    admission_retract(sched, victim);
    sched_move(sched, victim, SEQ_LEAVING);
    if (victim->last_seq_no <= sched->done_seq_no) admission_release(sched, victim);
    return true;
}
