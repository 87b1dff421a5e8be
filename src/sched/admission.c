/* admission.c - from waiting to running: slots, promises of KV blocks, shared prefixes. */
#include <assert.h>
#include <stddef.h>

#include "sched/sched_state.h"

static void lend_tables(struct sched *sched, struct sequence *seq)
{
    uint32_t *blocks = sched->tables + (size_t)seq->slot * sched->table_stride;

    for (uint32_t g = 0; g < sched->kv.table_count; g++) {
        seq->kv.tables[g] = (struct kv_table){.blocks = blocks, .capacity = sched->table_blocks[g]};
        blocks += sched->table_blocks[g];
    }
}

/* --- prefixes ------------------------------------------------------------------------------------------------- */

enum { SPAN_MAX = 64 };

/* What it is called in the index while it computes entries. */
static uint32_t owner_of(const struct sequence *seq)
{
    return seq->slot + 1;
}

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

/* Tokens that are known: the prompt, and what it had sampled if it was preempted. */
static uint32_t known_tokens(const struct sequence *seq)
{
    return seq->prompt_count + seq->sampled_known;
}

/* Of a group with a window a sequence is promised a part of its blocks, over and over: each that it passes must come back to it. So one that was
 * promised all shares none of them with others while it runs. */
static bool shares_nothing(const struct sched *sched, const struct sequence *seq)
{
    return sched->has_window && sequence_needs_all(seq);
}

/* Spans that could be adopted: at least one token is left to compute, and prompts to be scored are computed in full. */
static uint32_t spans_wanted(const struct sched *sched, const struct sequence *seq)
{
    uint32_t span = span_of(sched);

    if (span == 0 || seq->score_prompt || shares_nothing(sched, seq)) return 0;
    return (known_tokens(seq) - 1) / span;
}

/* The tokens of a span: in the prompt itself, or gathered in `text`. */
static const int32_t *span_tokens(const struct sequence *seq, uint32_t index, uint32_t span,
                                  int32_t text[SPAN_MAX])
{
    if ((index + 1) * span <= seq->prompt_count) return seq->prompt + (size_t)index * span;
    for (uint32_t t = 0; t < span; t++)
        text[t] = sequence_token_at(seq, index * span + t);
    return text;
}

/* The READY entries from the start of its tokens behind the last of which it may begin. *pending: the entry that stopped the search, if it was
 * one that is not READY. The search goes on behind those that the last one found: the beginning of a chain is evicted after its end, so all before
 * a READY entry are there. */
static uint32_t count_ready(const struct sched *sched, struct sequence *seq, uint32_t *pending)
{
    const struct kv_prefix *prefix = sched->kv.prefix;
    struct kv_chain chain = kv_chain_start(seq->salt);
    struct kv_landing walk = kv_landing_at(0);
    uint32_t wanted = spans_wanted(sched, seq), span = span_of(sched);
    int32_t text[SPAN_MAX];

    *pending = KV_PREFIX_NONE;
    if (wanted == 0) return seq->hit_spans = 0;
    if (seq->hit_spans && seq->hit_spans <= wanted &&
        kv_prefix_serial(prefix, seq->hit_entry) == seq->hit_serial &&
        kv_prefix_losses(prefix) == seq->hit_losses) {
        walk = kv_landing_at(seq->hit_spans);
        chain = kv_prefix_behind(prefix, seq->hit_entry);
    } else {
        seq->hit_spans = 0;
    }
    seq->hit_losses = kv_prefix_losses(prefix);
    while (walk.spans < wanted) {
        uint32_t entry = kv_prefix_find(prefix, &chain, span_tokens(seq, walk.spans, span, text));

        if (entry == KV_PREFIX_NONE) break;
        if (!kv_prefix_ready(prefix, entry, sched->done_seq_no)) {
            *pending = entry;
            break;
        }
        if (!kv_prefix_landing(prefix, &walk, entry)) continue;
        seq->hit_spans = walk.spans;
        seq->hit_entry = entry;
        seq->hit_serial = kv_prefix_serial(prefix, entry);
    }
    return seq->hit_spans;
}

/* Somebody is at it: a blocked one is not, it waits for its reader. */
static bool is_under_way(const struct sched *sched, uint32_t entry)
{
    uint32_t owner = kv_prefix_owner(sched->kv.prefix, entry);

    return !kv_prefix_ready(sched->kv.prefix, entry, sched->done_seq_no) && owner &&
           sched->by_slot[owner - 1]->state == SEQ_RUNNING;
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

uint32_t admission_cached(const struct sched *sched, struct sequence *seq)
{
    uint32_t pending;

    return count_ready(sched, seq, &pending) * span_of(sched);
}

uint32_t sched_guess_cached(const struct sched *sched, const struct sequence *seq, bool sharing)
{
    uint32_t wanted = spans_wanted(sched, seq);

    if (wanted && !sharing)
        wanted = kv_prefix_guess(sched->kv.prefix, seq->salt, seq->prompt, wanted);
    return wanted * span_of(sched);
}

static void adopt_ready(struct sched *sched, struct sequence *seq)
{
    struct kv_chain chain = kv_chain_start(seq->salt);
    uint32_t pending, ready = count_ready(sched, seq, &pending), span = span_of(sched);
    int32_t text[SPAN_MAX];

    for (uint32_t i = 0; i < ready; i++)
        kv_prefix_adopt(sched->kv.prefix,
                        kv_prefix_find(sched->kv.prefix, &chain, span_tokens(seq, i, span, text)),
                        &seq->kv, ready - 1 - i);
    seq->entries = ready;
    seq->computed = ready * span;
}

/* What it is going to compute is announced, so that others wait instead of doing the same. Entries need their names now; in a group with a window
 * they get their blocks when these are there. */
static void put_pending(struct sched *sched, struct sequence *seq)
{
    uint32_t spans = admission_prompt_spans(sched, seq), span = span_of(sched);
    uint32_t known;
    struct kv_chain chain =
        kv_prefix_chain_of(sched->kv.prefix, &seq->kv, seq->entries, seq->salt, &known);

    assert(known == seq->entries);
    for (uint32_t g = 0; g < sched->kv.table_count && seq->entries < spans; g++)
        if (!sched->kv.groups[g].window) kv_seq_grow_group(&seq->kv, &sched->kv, g, spans * span);
    for (; seq->entries < spans; seq->entries++)
        if (!kv_prefix_put(sched->kv.prefix, &chain, seq->prompt + (size_t)seq->entries * span,
                           &seq->kv, seq->entries, owner_of(seq)))
            return; /* another is at the same, and stands still: what follows is ours alone */
}

void admission_computed(struct sched *sched, const struct sequence *seq, uint32_t from, uint32_t to,
                        uint64_t seq_no)
{
    uint32_t span = span_of(sched);

    for (uint32_t i = span ? from / span : 0; span && i < to / span && i < seq->entries; i++) {
        uint32_t entry = seq->kv.tables[sched->kv.names].blocks[i];

        if (kv_prefix_computed(sched->kv.prefix, entry, owner_of(seq), seq_no) && sched->has_window)
            kv_prefix_complete(sched->kv.prefix, entry, &seq->kv, i);
    }
}

/* The first of its spans that it sees everywhere from now on. */
static uint32_t first_seen(const struct sched *sched, const struct sequence *seq)
{
    uint32_t most = 0;

    for (uint32_t g = 0; g < sched->kv.group_count; g++) {
        uint32_t first = kv_space_first(&sched->kv, g, seq->computed);

        if (first > seq->kv.tables[g].count) first = seq->kv.tables[g].count;
        if (first > most) most = first;
    }
    return most;
}

/* Whether the step that computed the span is done: since it was admitted it has sampled (from then on it computes a row a step), and the token
 * behind the span's last is known. */
static bool is_done(const struct sequence *seq, uint32_t span_end)
{
    return seq->sampled_known > seq->known_before && known_tokens(seq) > span_end;
}

void admission_passing(struct sched *sched, struct sequence *seq)
{
    uint32_t span = span_of(sched), end = first_seen(sched, seq), known;

    if (seq->entries >= end || !seq->last_seq_no || !span || shares_nothing(sched, seq)) return;
    int32_t text[SPAN_MAX];
    struct kv_chain chain =
        kv_prefix_chain_of(sched->kv.prefix, &seq->kv, seq->entries, seq->salt, &known);

    assert(known == seq->entries);
    for (; seq->entries < end && (seq->entries + 1) * span <= known_tokens(seq); seq->entries++) {
        uint32_t i = seq->entries;
        bool done = is_done(seq, (i + 1) * span);

        if (!kv_prefix_put(sched->kv.prefix, &chain, span_tokens(seq, i, span, text), &seq->kv, i,
                           done ? 0 : owner_of(seq)))
            return; /* another has it: what follows is ours alone */
        if (!done)
            kv_prefix_computed(sched->kv.prefix, seq->kv.tables[sched->kv.names].blocks[i],
                               owner_of(seq), seq->last_seq_no);
    }
}

void admission_retract(struct sched *sched, struct sequence *seq)
{
    if (sched->kv.prefix)
        kv_prefix_retract(sched->kv.prefix, &seq->kv, seq->entries, owner_of(seq),
                          sched->done_seq_no);
}

/* Entries, its own and those of others with the same text, that lack blocks in groups with a window get those that it still holds. `chain` stands
 * behind the first `known` of the spans. */
static void complete(struct sched *sched, struct sequence *seq, struct kv_chain chain,
                     uint32_t known, uint32_t spans)
{
    struct kv_prefix *prefix = sched->kv.prefix;
    uint32_t span = span_of(sched);
    int32_t text[SPAN_MAX];

    for (uint32_t i = 0; i < known; i++)
        kv_prefix_complete(prefix, seq->kv.tables[sched->kv.names].blocks[i], &seq->kv, i);
    for (uint32_t i = known; i < spans; i++) {
        uint32_t entry = kv_prefix_find(prefix, &chain, span_tokens(seq, i, span, text));

        if (entry == KV_PREFIX_NONE || !kv_prefix_ready(prefix, entry, sched->done_seq_no)) return;
        kv_prefix_complete(prefix, entry, &seq->kv, i);
    }
}

/* All its steps are done: whole blocks of prompt and answer are of use to whoever continues the text. */
static void put_ready(struct sched *sched, struct sequence *seq)
{
    uint32_t span = span_of(sched), known = known_tokens(seq), i;
    uint32_t tokens = seq->computed < known ? seq->computed : known;
    int32_t text[SPAN_MAX];

    if (span == 0 || seq->spoiled) return;
    struct kv_chain chain =
        kv_prefix_chain_of(sched->kv.prefix, &seq->kv, seq->entries, seq->salt, &i);
    for (; i < tokens / span; i++)
        if (!kv_prefix_put(sched->kv.prefix, &chain, span_tokens(seq, i, span, text), &seq->kv, i,
                           0))
            break; /* another has it: what follows is ours alone */
    if (sched->has_window) complete(sched, seq, chain, i, tokens / span);
}

/* Its beginning stays, if it asks for that: the entries are its own, or another's that were there before. */
static void pin(struct sched *sched, const struct sequence *seq)
{
    struct kv_prefix *prefix = sched->kv.prefix;
    struct kv_chain chain = kv_chain_start(seq->salt);
    uint32_t span = span_of(sched), known = known_tokens(seq);
    uint32_t tokens = seq->pin_tokens < known ? seq->pin_tokens : known;
    int32_t text[SPAN_MAX];

    for (uint32_t i = 0; span && seq->pin_s && i < tokens / span; i++) {
        uint32_t entry = kv_prefix_find(prefix, &chain, span_tokens(seq, i, span, text));

        if (entry == KV_PREFIX_NONE ||
            !kv_prefix_pin(prefix, entry, seq->pin_s, tokens / span - 1 - i))
            return;
    }
}

/* --- in and out ----------------------------------------------------------------------------------------------- */

/* A preempted one whose reader has made no room would only be computed again to stand still. */
static bool stands_still(struct sched *sched, struct sequence *seq)
{
    if (!seq->preemptions || !seq->credit || seq->credit->left) return false;
    if (sched->options.refill) sched->options.refill(sched->options.refill_ctx, seq, sched->now_ns);
    return seq->credit->left == 0;
}

static bool may_start(struct sched *sched, struct sequence *seq)
{
    return !waits_for_prefix(sched, seq) && !stands_still(sched, seq);
}

struct sequence *admission_candidate(struct sched *sched)
{
    if (sched->free_slot_count == 0 || sched->counts[SEQ_LEAVING]) return NULL;
    return order_first(sched, may_start);
}

/* Tokens it is promised blocks for: what is there and one more; all, where it can never be preempted. */
static uint32_t promised_tokens(const struct sequence *seq)
{
    uint32_t all = sequence_kv_tokens(seq), now = known_tokens(seq) + 1;

    return sequence_needs_all(seq) || all < now ? all : now;
}

/* Blocks left in each group for those that run to go on: one each, and four where a preempted one comes back, lest it leave again
 * at once. */
static bool leaves_watermark(const struct sched *sched, const struct sequence *seq)
{
    uint32_t runs = sched->counts[SEQ_RUNNING] + sched->counts[SEQ_BLOCKED];
    uint32_t each = seq->preemptions ? 4 : 1;

    for (uint32_t g = 0; g < sched->kv.table_count; g++)
        if (kv_pool_available_count(sched->kv.pools[g]) < runs * each) return false;
    return true;
}

static void give_back(struct sched *sched, struct sequence *seq)
{
    kv_seq_drop(&seq->kv, &sched->kv);
    seq->computed = seq->entries = 0;
}

/* Shared blocks and the promise of the rest. false: it holds nothing. */
static bool take_blocks(struct sched *sched, struct sequence *seq)
{
    lend_tables(sched, seq);
    if (sched->kv.prefix) adopt_ready(sched, seq);
    if (!kv_seq_promise(&seq->kv, &sched->kv, promised_tokens(seq)) && leaves_watermark(sched, seq))
        return true;
    give_back(sched, seq);
    return false;
}

bool admission_admit(struct sched *sched, struct sequence *seq)
{
    seq->slot = sched->free_slots[sched->free_slot_count - 1];
    sched->by_slot[seq->slot] = seq;
    if (!take_blocks(sched, seq)) {
        bool alone = sched->free_slot_count == sched->options.max_num_seqs;

        /* alone it fits, but for what is pinned */
        if (!alone || !sched->kv.prefix || !kv_prefix_unpin_idle(sched->kv.prefix, UINT32_MAX) ||
            !take_blocks(sched, seq))
            return false;
    }
    if (seq->preemptions)
        sched->recomputed_tokens += known_tokens(seq) - seq->computed;
    else
        seq->cached = seq->computed;
    seq->known_before = seq->sampled_known;
    order_admitted(sched, seq, seq->preemptions ? 0 : known_tokens(seq) - seq->computed);
    if (sched->kv.prefix && !shares_nothing(sched, seq)) put_pending(sched, seq);
    sched->free_slot_count--;
    sched_move(sched, seq, SEQ_RUNNING);
    return true;
}

void admission_release(struct sched *sched, struct sequence *seq)
{
    bool leaving = seq->state == SEQ_LEAVING;

    assert(seq->last_seq_no <= sched->done_seq_no);
    if (sched->kv.prefix) {
        put_ready(sched, seq);
        pin(sched, seq);
    }
    give_back(sched, seq);
    sched->free_slots[sched->free_slot_count++] = seq->slot;
    order_released(sched, seq);
    sched_move(sched, seq, SEQ_GONE);
    if (!leaving) return;
    assert(seq->sampled_known == seq->sampled_planned); /* all its steps are done */
    sched_unlink(sched, seq);
    seq->last_seq_no = 0;
    seq->hit_spans = 0;
    seq->wait_entry = KV_PREFIX_NONE;
    order_enqueue(sched, seq);
}
