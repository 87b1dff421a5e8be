/* admission.c - from waiting to running: the order of the waiting list, slots, promises of KV blocks, shared prefixes. */
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

/* --- prefixes ------------------------------------------------------------------------------------------------- */

enum { SPAN_MAX = 64 };

static uint32_t span_of(const struct sched *sched)
{
    return sched->kv.prefix ? kv_prefix_span(sched->kv.prefix) : 0;
}

uint32_t admission_prompt_spans(const struct sched *sched, const struct sequence *seq)
{
    uint32_t span = span_of(sched), tokens = sequence_kv_tokens(seq);

    if (span == 0) return 0;
    return (tokens < seq->prompt_count ? tokens : seq->prompt_count) / span;
}

/* Spans that could be adopted: at least one prompt token is left to compute, and prompts to be scored are computed in full. */
static uint32_t spans_wanted(const struct sched *sched, const struct sequence *seq)
{
    uint32_t span = span_of(sched);

    return span == 0 || seq->score_prompt ? 0 : (seq->prompt_count - 1) / span;
}

/* READY entries from the start of the prompt. *pending: the entry that stopped the search, if it was one that is not READY. */
static uint32_t count_ready(const struct sched *sched, const struct sequence *seq,
                            uint32_t *pending)
{
    const struct kv_prefix *prefix = sched->kv.prefix;
    struct kv_chain chain = kv_chain_start(seq->salt);
    uint32_t wanted = spans_wanted(sched, seq), span = span_of(sched);

    *pending = KV_PREFIX_NONE;
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t entry = kv_prefix_find(prefix, &chain, seq->prompt + (size_t)i * span);

        if (entry == KV_PREFIX_NONE) return i;
        if (!kv_prefix_ready(prefix, entry, sched->done_seq_no)) {
            *pending = entry;
            return i;
        }
    }
    return wanted;
}

/* Somebody is at it: a blocked one is not, it waits for its reader. */
static bool is_under_way(const struct sched *sched, uint32_t entry)
{
    const struct sequence *owner = kv_prefix_owner(sched->kv.prefix, entry);

    return !kv_prefix_ready(sched->kv.prefix, entry, sched->done_seq_no) && owner &&
           owner->state == SEQ_RUNNING;
}

static bool waits_for_prefix(struct sched *sched, struct sequence *seq)
{
    const struct kv_prefix *prefix = sched->kv.prefix;
    uint32_t pending;

    if (!prefix) return false;
    if (seq->wait_entry != KV_PREFIX_NONE &&
        kv_prefix_serial(prefix, seq->wait_entry) == seq->wait_serial &&
        is_under_way(sched, seq->wait_entry))
        return true; /* as before: the search is spared */
    count_ready(sched, seq, &pending);
    seq->wait_entry = KV_PREFIX_NONE;
    if (pending == KV_PREFIX_NONE || !is_under_way(sched, pending)) return false;
    seq->wait_entry = pending;
    seq->wait_serial = kv_prefix_serial(prefix, pending);
    return true;
}

uint32_t admission_cached(const struct sched *sched, const struct sequence *seq)
{
    uint32_t pending;

    return count_ready(sched, seq, &pending) * span_of(sched);
}

static void adopt_ready(struct sched *sched, struct sequence *seq)
{
    struct kv_chain chain = kv_chain_start(seq->salt);
    uint32_t pending, ready = count_ready(sched, seq, &pending), span = span_of(sched);

    for (uint32_t i = 0; i < ready; i++)
        kv_prefix_adopt(sched->kv.prefix,
                        kv_prefix_find(sched->kv.prefix, &chain, seq->prompt + (size_t)i * span),
                        &seq->kv);
    seq->entries = ready;
    seq->cached = seq->computed = ready * span;
}

/* What it is going to compute is announced, so that others wait instead of doing the same. */
static void put_pending(struct sched *sched, struct sequence *seq)
{
    uint32_t spans = admission_prompt_spans(sched, seq), span = span_of(sched);
    struct kv_chain chain = kv_chain_start(seq->salt);

    kv_seq_grow(&seq->kv, &sched->kv, spans * span);
    for (uint32_t i = 0; i < spans; i++) {
        void *owner = i < seq->entries ? NULL : seq;

        if (!kv_prefix_put(sched->kv.prefix, &chain, seq->prompt + (size_t)i * span, &seq->kv, i,
                           owner))
            return; /* another is at the same, and stands still: what follows is ours alone */
        if (owner) seq->entries++;
    }
}

void admission_computed(struct sched *sched, const struct sequence *seq, uint32_t from, uint32_t to,
                        uint64_t seq_no)
{
    uint32_t span = span_of(sched);

    for (uint32_t i = span ? from / span : 0; span && i < to / span && i < seq->entries; i++)
        kv_prefix_computed(sched->kv.prefix, seq->kv.tables[0].blocks[i], (void *)(uintptr_t)seq,
                           seq_no);
}

void admission_retract(struct sched *sched, struct sequence *seq)
{
    if (sched->kv.prefix)
        kv_prefix_retract(sched->kv.prefix, &seq->kv, seq->entries, seq, sched->done_seq_no);
}

/* All its steps are done: whole blocks of prompt and answer are of use to whoever continues the text. */
static void put_ready(struct sched *sched, struct sequence *seq)
{
    struct kv_chain chain = kv_chain_start(seq->salt);
    uint32_t span = span_of(sched), known = seq->prompt_count + seq->sampled_known;
    uint32_t tokens = seq->computed < known ? seq->computed : known;
    int32_t text[SPAN_MAX];

    if (span == 0 || span > SPAN_MAX || seq->spoiled) return;
    for (uint32_t i = 0; i < tokens / span; i++) {
        for (uint32_t t = 0; t < span; t++)
            text[t] = sequence_token_at(seq, i * span + t);
        if (!kv_prefix_put(sched->kv.prefix, &chain, text, &seq->kv, i, NULL)) return;
    }
}

/* --- in and out ----------------------------------------------------------------------------------------------- */

struct sequence *admission_candidate(struct sched *sched)
{
    struct seq_link *head = &sched->lists[SEQ_WAITING];

    if (sched->free_slot_count == 0) return NULL;
    for (struct seq_link *link = head->next; link != head; link = link->next)
        if (!waits_for_prefix(sched, sched_link_seq(link))) return sched_link_seq(link);
    return NULL;
}

bool admission_admit(struct sched *sched, struct sequence *seq)
{
    seq->slot = sched->free_slots[sched->free_slot_count - 1];
    lend_tables(sched, seq);
    if (sched->kv.prefix) adopt_ready(sched, seq);
    if (kv_seq_promise(&seq->kv, &sched->kv, sequence_kv_tokens(seq))) {
        seq->cached = seq->computed = seq->entries = 0;
        return false;
    }
    if (sched->kv.prefix) put_pending(sched, seq);
    sched->free_slot_count--;
    sched_move(sched, seq, SEQ_RUNNING);
    return true;
}

void admission_release(struct sched *sched, struct sequence *seq)
{
    assert(seq->last_seq_no <= sched->done_seq_no);
    if (sched->kv.prefix) put_ready(sched, seq);
    kv_seq_drop(&seq->kv, &sched->kv);
    sched->free_slots[sched->free_slot_count++] = seq->slot;
    sched_move(sched, seq, SEQ_GONE);
}
