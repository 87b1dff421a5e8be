#include "sched/sched.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sched/sched_state.h"

static_assert((int)KV_GROUPS_MAX == (int)PLAN_GROUPS_MAX, "a table per group of the plan");

enum {
    CHUNK_TOKENS = 16
}; /* borders of prompt chunks: a whole block of every format's smallest size */

struct sequence *sched_link_seq(const struct seq_link *link)
{
    return (struct sequence *)((char *)(uintptr_t)link - offsetof(struct sequence, link));
}

void sched_unlink(struct sched *sched, struct sequence *seq)
{
    seq->link.prev->next = seq->link.next;
    seq->link.next->prev = seq->link.prev;
    sched->counts[seq->state]--;
}

/* To the end of the list of `state`. */
void sched_move(struct sched *sched, struct sequence *seq, enum seq_state state)
{
    struct seq_link *link = &seq->link, *head = &sched->lists[state];

    sched_unlink(sched, seq);
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
    sched->counts[state]++;
    seq->state = state;
}

static enum status check_options(const struct sched_options *options,
                                 const struct device_limits *limits, struct error *err)
{
    if (options->max_num_seqs < 1 || options->max_num_seqs > limits->slots_max)
        return error_set(err, STATUS_INVALID, "--max-num-seqs is %u; it must be 1 to %u",
                         options->max_num_seqs, limits->slots_max);
    if (options->max_num_batched_tokens < 1 || options->max_num_batched_tokens > limits->rows_max)
        return error_set(err, STATUS_INVALID, "--max-num-batched-tokens is %u; it must be 1 to %u",
                         options->max_num_batched_tokens, limits->rows_max);
    return STATUS_OK;
}

static enum status alloc_tables(struct sched *sched)
{
    uint32_t seqs = sched->options.max_num_seqs;

    for (uint32_t g = 0; g < sched->kv.table_count; g++) {
        sched->table_blocks[g] = kv_space_blocks(&sched->kv, g, sched->limits->context_tokens);
        sched->table_stride += sched->table_blocks[g];
    }
    sched->tables = calloc((size_t)seqs * sched->table_stride, sizeof *sched->tables);
    sched->free_slots = calloc(seqs, sizeof *sched->free_slots);
    sched->by_slot = calloc(seqs, sizeof *sched->by_slot);
    if (!sched->tables || !sched->free_slots || !sched->by_slot) return STATUS_NOMEM;
    for (uint32_t i = 0; i < seqs; i++)
        sched->free_slots[i] = seqs - 1 - i;
    sched->free_slot_count = seqs;
    return STATUS_OK;
}

/* Names for prefixes, where all groups have windows: of whole sequences, as many as there could be in the smallest pool. */
static uint32_t name_count(const struct plan *plan, const struct device_limits *limits)
{
    uint64_t most = KV_POOL_BLOCKS_MAX;

    for (uint32_t g = 0; g < plan->group_count; g++) {
        const struct plan_kv_group *group = &plan->groups[g];
        uint64_t whole =
            (limits->context_tokens + (uint64_t)group->block_tokens - 1) / group->block_tokens;
        uint64_t names =
            (limits->kv_blocks[g] / plan_group_blocks(group, limits->context_tokens, 1) + 1) *
            whole;

        if (names < most) most = names;
    }
    return (uint32_t)most;
}

static enum status make_space(struct sched *sched)
{
    const struct plan *plan = sched->plan;
    const struct device_limits *limits = sched->limits;
    struct kv_group groups[KV_GROUPS_MAX];
    bool share = sched->options.share_prefixes;

    for (uint32_t g = 0; g < plan->group_count; g++) {
        const struct plan_kv_group *group = &plan->groups[g];

        groups[g] =
            (struct kv_group){.block_tokens = group->block_tokens,
                              .capacity = limits->kv_blocks[g],
                              .window = group->window < limits->context_tokens ? group->window : 0,
                              .held_max = plan_group_blocks(group, limits->context_tokens,
                                                            sched->options.max_num_batched_tokens)};
    }
    enum status st =
        kv_space_init(&sched->kv, plan->group_count, groups, share ? name_count(plan, limits) : 0);
    sched->has_window = !st && kv_space_has_window(&sched->kv);
    return st;
}

enum status sched_create(const struct sched_options *options, const struct plan *plan,
                         const struct device_limits *limits, struct sched **out, struct error *err)
{
    enum status st = check_options(options, limits, err);

    if (st) return st;
    struct sched *sched = calloc(1, sizeof *sched);
    if (!sched) return error_set(err, STATUS_NOMEM, "no memory for the scheduler");
    sched->options = *options;
    sched->plan = plan;
    sched->limits = limits;
    window_init(&sched->window, options->max_wait_ns, options->target_throughput);
    sched->window.fixed = options->fixed_window;
    cost_model_init(&sched->cost);
    for (int s = 0; s < SEQ_STATE_COUNT; s++)
        sched->lists[s] = (struct seq_link){&sched->lists[s], &sched->lists[s]};
    order_init(sched);
    st = make_space(sched);
    if (!st) st = alloc_tables(sched);
    if (st) {
        sched_destroy(sched);
        return error_set(err, st, "the scheduler's block pools and tables could not be made");
    }
    *out = sched;
    return STATUS_OK;
}

void sched_destroy(struct sched *sched)
{
    if (!sched) return;
    for (int s = 0; s < SEQ_STATE_COUNT; s++)
        assert(sched->counts[s] == 0);
    kv_space_fini(&sched->kv);
    free(sched->tables);
    free(sched->free_slots);
    free(sched->by_slot);
    free(sched);
}

enum status sched_fits(const struct sched *sched, const struct sequence *seq, struct error *err)
{
    uint32_t tokens = sequence_kv_tokens(seq);

    if ((uint64_t)seq->prompt_count + seq->max_new > sched->limits->context_tokens)
        return error_set(err, STATUS_INVALID,
                         "prompt (%u token%s) and max_tokens (%u) are more than the context of %u",
                         seq->prompt_count, plural(seq->prompt_count), seq->max_new,
                         sched->limits->context_tokens);
    if (seq->open.banned_count > sched->limits->banned_max)
        return error_set(err, STATUS_INVALID, "%u stop ids; with min_tokens at most %u",
                         seq->open.banned_count, sched->limits->banned_max);
    if (seq->open.bias_count > sched->limits->bias_max)
        return error_set(err, STATUS_INVALID, "%u logit_bias entries; at most %u",
                         seq->open.bias_count, sched->limits->bias_max);
    if (!kv_space_fits(&sched->kv, tokens))
        return error_set(
            err, STATUS_INVALID,
            "prompt and max_tokens need KV for %u tokens; the pool has %u block%s of %u", tokens,
            kv_pool_capacity(sched->kv.pools[sched->kv.names]),
            plural(kv_pool_capacity(sched->kv.pools[sched->kv.names])),
            sched->kv.groups[sched->kv.names].block_tokens);
    return STATUS_OK;
}

void sched_add(struct sched *sched, struct sequence *seq, int64_t now_ns)
{
    assert(seq->state == SEQ_NEW && seq->prompt_count >= 1 && sequence_rows_left(seq) > 0);
    seq->arrival = ++sched->arrivals;
    seq->arrived_ns = now_ns;
    window_arrival(&sched->window, now_ns);
    seq->wait_entry = KV_PREFIX_NONE;
    order_enqueue(sched, seq);
}

void sched_end(struct sched *sched, struct sequence *seq)
{
    switch (seq->state) {
    case SEQ_WAITING: sched_move(sched, seq, SEQ_GONE); break;
    case SEQ_RUNNING:
    case SEQ_BLOCKED:
    case SEQ_LEAVING:
        admission_retract(sched, seq);
        sched_move(sched, seq, SEQ_ENDING);
        if (seq->last_seq_no <= sched->done_seq_no) admission_release(sched, seq);
        break;
    case SEQ_ENDING:
    case SEQ_GONE: break;
    default: assert(!"a sequence that was never added");
    }
}

struct sequence *sched_reap(struct sched *sched)
{
    struct seq_link *first = sched->lists[SEQ_GONE].next;

    if (first == &sched->lists[SEQ_GONE]) return NULL;
    sched_unlink(sched, sched_link_seq(first));
    return sched_link_seq(first);
}

/* Those of a list whose steps are done give back slot and blocks. */
static void release_done(struct sched *sched, enum seq_state state)
{
    struct seq_link *head = &sched->lists[state], *next;

    for (struct seq_link *link = head->next; link != head; link = next) {
        next = link->next;
        if (sched_link_seq(link)->last_seq_no <= sched->done_seq_no)
            admission_release(sched, sched_link_seq(link));
    }
}

void sched_step_done(struct sched *sched, uint64_t seq_no)
{
    assert(seq_no >= sched->done_seq_no);
    sched->done_seq_no = seq_no;
    release_done(sched, SEQ_ENDING);
    release_done(sched, SEQ_LEAVING);
}

/* --- planning ------------------------------------------------------------------------------------------------- */

struct planning {
    struct sched *sched;
    struct step *step;
    struct sched_step *out;
    uint64_t seq_no;
    int64_t now_ns;
    uint32_t rows_left, logits_left;
    uint32_t decodes; /* rows of sequences that would feel a long step */
    uint64_t pairs;
    bool preempted; /* somebody gave up blocks for this step */
};

/* Whether one more sample may be planned. Without credit the sequence is blocked. */
static bool has_credit(struct planning *p, struct sequence *seq)
{
    struct sched *sched = p->sched;

    if (!seq->credit || seq->credit->left > 0) return true;
    if (sched->options.refill) {
        sched->options.refill(sched->options.refill_ctx, seq, p->now_ns);
        if (seq->credit->left > 0) return true;
    }
    seq->blocked_since_ns = p->now_ns;
    sched_move(sched, seq, SEQ_BLOCKED);
    return false;
}

/* Beside sequences that decode a chunk is no longer than their gap allows; one block of it always goes, or it would never end. */
static uint32_t bounded_rows(const struct planning *p, const struct sequence *seq, uint32_t rows)
{
    const struct sched *sched = p->sched;
    uint32_t fit;

    if (!sched->options.max_step_ns || !p->decodes || rows <= CHUNK_TOKENS ||
        !cost_model_ready(&sched->cost))
        return rows;
    fit = cost_model_rows(&sched->cost, p->step->row_count, p->pairs, seq->computed, rows,
                          sched->options.max_step_ns);
    return fit > CHUNK_TOKENS ? fit : CHUNK_TOKENS;
}

/* How many of the rows left go into this step; 0: none fit. */
static uint32_t chunk_rows(const struct planning *p, const struct sequence *seq)
{
    uint32_t left = sequence_rows_left(seq), rows = left < p->rows_left ? left : p->rows_left;

    if (p->logits_left == 0) return 0;
    rows = bounded_rows(p, seq, rows);
    if (left > 1 && (rows = flood_rows(p->sched, seq, rows)) == 0) return 0;
    if (seq->score_prompt && rows > p->logits_left) rows = p->logits_left;
    if (rows == left) return rows;
    uint32_t end = (seq->computed + rows) / CHUNK_TOKENS * CHUNK_TOKENS;
    return end > seq->computed ? end - seq->computed : rows;
}

static uint32_t table_changes(const struct sched *sched, const struct sequence *seq,
                              uint32_t tokens)
{
    uint32_t changes = 0;

    for (uint32_t g = 0; g < sched->kv.group_count; g++) {
        const struct kv_table *table = &seq->kv.tables[g];
        uint32_t blocks = kv_space_blocks(&sched->kv, g, tokens);

        /* a shared prefix, a prompt's blocks; in a group with a window some have gone already */
        if (blocks < table->count) blocks = table->count;
        changes += blocks > table->sent ? blocks - table->sent : 0;
    }
    return changes;
}

/* Whether the step's arrays take this sequence's open and the tables of so many tokens. */
static bool arrays_have_room(const struct planning *p, const struct sequence *seq, uint32_t tokens)
{
    const struct step *step = p->step;

    if (step->segment_count == step->segment_cap) return false;
    if (step->table_count + table_changes(p->sched, seq, tokens) > step->table_cap) return false;
    if (seq->last_seq_no) return true; /* its slot is open */
    return step->open_count < step->open_cap &&
           step->id_count + sequence_open_ids(seq) <= step->id_cap &&
           step->bias_count + seq->open.bias_count <= step->bias_cap;
}

static uint32_t put_ids(struct step *step, const int32_t *ids, uint32_t count)
{
    uint32_t first = step->id_count;

    if (count) memcpy(step_ids(step) + first, ids, count * sizeof *ids);
    step->id_count += count;
    return first;
}

static void put_open(struct step *step, const struct sequence *seq)
{
    struct step_open open = seq->open;
    bool repetition = open.repetition_penalty != 1;
    bool counts = open.frequency_penalty != 0 || open.presence_penalty != 0;

    open.slot = seq->slot;
    open.banned_first = put_ids(step, seq->banned, open.banned_count);
    open.prompt_count = repetition ? seq->prompt_count : 0;
    open.prompt_first = put_ids(step, seq->prompt, open.prompt_count);
    open.sampled_count = repetition || counts ? seq->sampled_known : 0;
    open.sampled_first = put_ids(step, seq->sampled, open.sampled_count);
    open.bias_first = step->bias_count;
    if (open.bias_count)
        memcpy(step_biases(step) + step->bias_count, seq->biases,
               open.bias_count * sizeof *seq->biases);
    step->bias_count += open.bias_count;
    step_opens(step)[step->open_count++] = open;
}

/* Of blocks that the device does not know yet. */
static void put_tables(struct planning *p, struct sequence *seq)
{
    struct sched *sched = p->sched;

    for (uint32_t g = 0; g < sched->kv.group_count; g++) {
        struct kv_table *table = &seq->kv.tables[g];

        /* the device reads no place before the window */
        if (table->sent < table->first) table->sent = table->first;
        for (; table->sent < table->count; table->sent++)
            step_tables(p->step)[p->step->table_count++] =
                (struct step_table_change){seq->slot, g, table->sent, table->blocks[table->sent]};
    }
}

/* Those of the next `rows` rows. */
static void put_tokens(int32_t *tokens, const struct sequence *seq, uint32_t rows)
{
    uint32_t at = seq->computed, given = at < seq->prompt_count ? seq->prompt_count - at : 0;

    if (given > rows) given = rows;
    if (given) memcpy(tokens, seq->prompt + at, given * sizeof *tokens);
    for (uint32_t i = given; i < rows; i++)
        tokens[i] = sequence_token_at(seq, at + i);
}

static void put_targets(struct step *step, const struct sequence *seq,
                        const struct sched_entry *entry)
{
    int32_t *targets = step_targets(step) + entry->output_first;
    uint32_t scores = entry->output_count - entry->samples;

    for (uint32_t i = 0; i < scores; i++)
        targets[i] = seq->prompt[entry->first_position + i + 1];
    if (entry->samples) targets[scores] = TARGET_SAMPLE;
}

/* Adds the next `rows` rows of a sequence. Everything has been found to fit. */
static void put_segment(struct planning *p, struct sequence *seq, uint32_t rows)
{
    struct step *step = p->step;
    uint32_t end = seq->computed + rows;
    bool samples = seq->max_new > 0 && end == sequence_target(seq);
    uint32_t outputs = seq->score_prompt && seq->computed < seq->prompt_count ? rows : samples;
    struct sched_entry *entry = &p->out->entries[p->out->entry_count++];

    *entry = (struct sched_entry){seq, seq->computed, rows, step->output_count, outputs, samples};
    if (!seq->last_seq_no) put_open(step, seq);
    put_tables(p, seq);
    step_segments(step)[step->segment_count++] = (struct step_segment){
        .slot = seq->slot,
        .first_row = step->row_count,
        .rows = rows,
        .context_len = seq->computed,
        .logits_first = outputs ? rows - outputs : 0,
        .logits_count = outputs,
        .output_first = step->output_count,
    };
    put_tokens(step_tokens(step) + step->row_count, seq, rows);
    put_targets(step, seq, entry);
    flood_put(p->sched, seq, rows);
    if (rows == 1)
        p->decodes++;
    else
        window_computed(&p->sched->window, rows, p->now_ns);
    p->pairs += cost_pairs(seq->computed, rows);
    step->row_count += rows;
    step->output_count += outputs;
    p->rows_left -= rows;
    p->logits_left -= outputs;
    admission_computed(p->sched, seq, seq->computed, end, p->seq_no);
    seq->computed = end;
    seq->last_seq_no = p->seq_no;
    if (samples) {
        if (seq->sampled_planned++ == 0)
            window_first_token(&p->sched->window, p->now_ns - seq->arrived_ns);
        order_sampled(p->sched, seq);
        if (seq->credit) {
            seq->credit->left--;
            seq->credit->in_flight++;
        }
    }
}

enum put {
    PUT_DONE,
    PUT_SKIPPED,
    PUT_NO_ROOM,
    PUT_PREEMPTED, /* some sequence has left its list: begin again */
};

static enum put put_sequence(struct planning *p, struct sequence *seq)
{
    uint32_t rows = chunk_rows(p, seq);

    if (rows == 0 || !arrays_have_room(p, seq, seq->computed + rows)) return PUT_NO_ROOM;
    if (seq->max_new && rows == sequence_rows_left(seq) && !has_credit(p, seq)) return PUT_SKIPPED;
    if (p->sched->has_window) {
        admission_passing(p->sched, seq);
        kv_seq_pass(&seq->kv, &p->sched->kv, seq->computed);
    }
    if (kv_seq_extend(&seq->kv, &p->sched->kv, seq->computed + rows)) {
        assert(!sequence_needs_all(seq) || seq->state != SEQ_RUNNING); /* it was promised all */
        p->preempted = true;
        return preempt_for(p->sched, seq) ? PUT_PREEMPTED : PUT_SKIPPED;
    }
    put_segment(p, seq, rows);
    return PUT_DONE;
}

/* The list begins with `first` from now on: who was left out is served first in the next step. */
static void rotate_to(struct seq_link *head, struct seq_link *first)
{
    head->prev->next = head->next;
    head->next->prev = head->prev;
    head->prev = first->prev;
    head->next = first;
    first->prev->next = head;
    first->prev = head;
}

static void plan_decodes(struct planning *p)
{
    struct seq_link *head = &p->sched->lists[SEQ_RUNNING], *next;

    for (struct seq_link *link = head->next; link != head; link = next) {
        struct sequence *seq = sched_link_seq(link);

        next = link->next;
        if (seq->last_seq_no == p->seq_no || sequence_rows_left(seq) != 1) continue;
        switch (put_sequence(p, seq)) {
        case PUT_NO_ROOM: rotate_to(head, link); return;
        case PUT_PREEMPTED: next = head->next; break;
        default: break;
        }
    }
}

/* Of those that flood, or of all others. */
static void plan_chunks(struct planning *p, bool floods)
{
    struct seq_link *head = &p->sched->lists[SEQ_RUNNING], *next;

    for (struct seq_link *link = head->next; link != head && p->rows_left; link = next) {
        struct sequence *seq = sched_link_seq(link);

        next = link->next;
        if (seq->last_seq_no == p->seq_no || sequence_rows_left(seq) == 0) continue;
        if (flood_floods(p->sched, seq) != floods) continue;
        switch (put_sequence(p, seq)) {
        case PUT_NO_ROOM: return;
        case PUT_PREEMPTED: next = head->next; break;
        default: break;
        }
    }
}

/* Whether the step could carry the first rows of a sequence that is not admitted yet. */
static bool first_chunk_fits(const struct planning *p, struct sequence *seq)
{
    const struct sched *sched = p->sched;
    struct sequence as_if = *seq;
    uint32_t spans = admission_prompt_spans(sched, seq);

    as_if.computed = admission_cached(sched, seq);
    for (uint32_t g = 0; g < sched->kv.group_count; g++)
        as_if.kv.tables[g] = (struct kv_table){.count = spans};
    uint32_t rows = chunk_rows(p, &as_if);
    return rows > 0 && arrays_have_room(p, &as_if, as_if.computed + rows);
}

static bool window_is_open(const struct planning *p)
{
    struct sched *sched = p->sched;
    uint32_t waiting = sched->counts[SEQ_WAITING], room = sched->free_slot_count;
    bool idle = p->step->row_count == 0; /* the device would run dry, now or after its step */
    bool asks_age = (!idle || sched->window.fixed) && waiting > 0 &&
                    waiting < room; /* else its age decides nothing */

    if (sched->options.max_wait_ns == 0) return true;
    return window_opens(&sched->window, idle, waiting, room,
                        asks_age ? order_oldest_ns(sched, p->now_ns) : p->now_ns, p->now_ns,
                        cost_model_predict(&sched->cost, p->step->row_count, p->pairs));
}

/* Admits while it can; what kept it from more. */
static enum seq_hold admit(struct planning *p)
{
    struct sched *sched = p->sched;
    struct sequence *seq;

    if (p->preempted) return HOLD_BLOCKS; /* they were short just now */
    if (!window_is_open(p)) return sched->free_slot_count ? HOLD_WINDOW : HOLD_SLOTS;
    while (p->rows_left && (seq = admission_candidate(sched))) {
        if (!first_chunk_fits(p, seq)) return HOLD_ROWS;
        if (!admission_admit(sched, seq)) return HOLD_BLOCKS;
        if (!seq->preemptions && seq->arrived_ns < sched->held_ns) seq->held = sched->held;
        enum put put = put_sequence(p, seq);
        assert(put != PUT_PREEMPTED); /* its first rows were promised */
        if (put == PUT_NO_ROOM) return HOLD_ROWS;
    }
    if (!p->rows_left) return HOLD_ROWS;
    if (!sched->free_slot_count) return HOLD_SLOTS;
    return sched->counts[SEQ_LEAVING] ? HOLD_BLOCKS : HOLD_TURN;
}

static void plan_admissions(struct planning *p)
{
    struct sched *sched = p->sched;

    if (sched->counts[SEQ_WAITING] == 0) return;
    enum seq_hold held = admit(p);
    if (sched->counts[SEQ_WAITING] == 0) return;
    sched->held = held;
    sched->held_ns = p->now_ns;
    sched->holds[held]++;
}

bool sched_unblock(struct sched *sched, int64_t now_ns)
{
    struct seq_link *head = &sched->lists[SEQ_BLOCKED], *next;
    bool any = false;

    for (struct seq_link *link = head->next; link != head; link = next) {
        struct sequence *seq = sched_link_seq(link);

        next = link->next;
        if (seq->credit->left == 0 && sched->options.refill)
            sched->options.refill(sched->options.refill_ctx, seq, now_ns);
        if (seq->credit->left == 0) continue;
        sched_move(sched, seq, SEQ_RUNNING);
        any = true;
    }
    return any;
}

bool sched_plan(struct sched *sched, uint64_t seq_no, int64_t now_ns, struct step *step,
                struct sched_step *out)
{
    struct planning p = {
        .sched = sched,
        .step = step,
        .out = out,
        .seq_no = seq_no,
        .now_ns = now_ns,
        .rows_left = sched->options.max_num_batched_tokens,
        .logits_left = sched->limits->logits_max,
    };

    assert(seq_no > sched->done_seq_no);
    sched->now_ns = now_ns;
    if (sched->kv.prefix) kv_prefix_set_time(sched->kv.prefix, now_ns);
    step_clear(step, seq_no);
    out->seq_no = seq_no;
    out->entry_count = out->row_count = 0;
    sched_unblock(sched, now_ns);
    flood_tick(sched);
    if (seq_no > sched->done_seq_no + 1 && flood_has_device(sched)) return false; /* not ahead */
    flood_begin_step(sched);
    plan_decodes(&p);
    plan_chunks(&p, false);
    if (sched->flood.count) { /* they come behind all others */
        sched->flood.closed = true;
        plan_admissions(&p);
        sched->flood.closed = false;
        sched->flood.idle = step->row_count == 0;
        plan_chunks(&p, true);
        sched->flood.idle = step->row_count == 0;
    }
    plan_admissions(&p);
    survey(sched);
    out->row_count = step->row_count;
    out->pairs = p.pairs;
    return out->entry_count > 0;
}

/* --- looking -------------------------------------------------------------------------------------------------- */

void sched_observe(struct sched *sched, const struct sched_step *step, int64_t device_ns)
{
    cost_model_observe(&sched->cost, step->row_count, step->pairs, device_ns);
}

const struct cost_model *sched_cost_model(const struct sched *sched)
{
    return &sched->cost;
}

const struct window *sched_window(const struct sched *sched)
{
    return &sched->window;
}

int64_t sched_opens_ns(const struct sched *sched)
{
    if (!sched->window.fixed || sched->counts[SEQ_WAITING] == 0 || sched->free_slot_count == 0)
        return INT64_MAX;
    return order_oldest_ns(sched, sched->now_ns) + sched->window.wait_max_ns;
}

struct sched_counts sched_counts(const struct sched *sched)
{
    struct sched_counts counts = {
        .waiting = sched->counts[SEQ_WAITING],
        .running = sched->counts[SEQ_RUNNING],
        .blocked = sched->counts[SEQ_BLOCKED],
        .flooding = sched->flood.count,
        .leaving = sched->counts[SEQ_LEAVING],
        .ending = sched->counts[SEQ_ENDING],
        .preemptions = sched->preemptions,
        .recomputed_tokens = sched->recomputed_tokens,
        .kv_held_ns = (uint64_t)sched->waste.held_ns,
        .kv_wasted_ns = (uint64_t)sched->waste.wasted_ns,
        .kv_places = sched->waste.places,
        .kv_tokens = sched->waste.tokens,
        .held = sched->held,
    };

    memcpy(counts.holds, sched->holds, sizeof counts.holds);
    for (uint32_t g = 0; g < sched->kv.group_count; g++) {
        uint32_t capacity = kv_pool_capacity(sched->kv.pools[g]);
        uint32_t used = kv_pool_used_count(sched->kv.pools[g]);

        if (sched->kv.prefix) used -= kv_prefix_kept(sched->kv.prefix, g);
        uint32_t ppm = (uint32_t)((uint64_t)used * 1000000 / capacity);
        counts.kv_blocks_total += capacity;
        counts.kv_blocks_used += used;
        if (ppm > counts.kv_usage_ppm) counts.kv_usage_ppm = ppm;
    }
    if (sched->kv.prefix) {
        struct kv_prefix_counts prefix = kv_prefix_counts(sched->kv.prefix);

        counts.prefix_entries = prefix.entries;
        counts.prefix_evictions = prefix.evicted;
        counts.prefix_pinned = prefix.pinned;
    }
    return counts;
}

struct sums {
    uint32_t holders, blocks[KV_GROUPS_MAX], promised[KV_GROUPS_MAX];
};

static void check_sequence(const struct sched *sched, const struct sequence *seq, struct sums *sums)
{
    bool holds = seq->state >= SEQ_RUNNING && seq->state <= SEQ_ENDING;

    assert(seq->sampled_known <= seq->sampled_planned && seq->sampled_planned <= seq->max_new);
    for (uint32_t g = 0; g < sched->kv.table_count; g++) {
        const struct kv_table *table = &seq->kv.tables[g];
        const struct kv_group *group = &sched->kv.groups[g];

        assert(holds || (table->count == 0 && table->promised == 0));
        assert(g >= sched->kv.group_count || table->sent == table->count || !seq->last_seq_no);
        if (seq->state != SEQ_ENDING && holds)
            assert(table->count * group->block_tokens >= seq->computed);
        if (group->window && holds) {
            assert(table->first <= kv_space_first(&sched->kv, g, seq->computed));
            assert(table->count - table->first <= group->held_max);
        } else {
            assert(table->first == 0);
        }
        sums->blocks[g] += table->count - table->first;
        sums->promised[g] += table->promised;
    }
    sums->holders += holds;
}

/* Returns how many are on it. */
static uint32_t check_list(const struct sched *sched, const struct seq_link *head,
                           enum seq_state state, struct sums *sums)
{
    uint32_t count = 0;

    for (const struct seq_link *link = head->next; link != head; link = link->next) {
        assert(sched_link_seq(link)->state == state && link->next->prev == link);
        check_sequence(sched, sched_link_seq(link), sums);
        count++;
    }
    return count;
}

static uint32_t check_accounts(const struct sched *sched, struct sums *sums)
{
    uint32_t count = 0, listed = 0, holds = 0, holders = 0;

    for (uint32_t i = 0; i < ACCOUNTS; i++) {
        const struct account *account = &sched->accounts[i];
        const struct seq_link *head = &account->waiting;

        assert(account->listed || head->next == head);
        listed += account->listed;
        holds += account->holds;
        holders += account->holds > 0;
        for (const struct seq_link *link = head->next; link->next != head && link != head;
             link = link->next)
            assert(order_before(sched, sched_link_seq(link), sched_link_seq(link->next)));
        count += check_list(sched, head, SEQ_WAITING, sums);
    }
    assert(listed == sched->listed_count && holders == sched->holder_count);
    assert(holds + sched->free_slot_count == sched->options.max_num_seqs);
    return count;
}

void sched_check(const struct sched *sched)
{
    struct sums sums = {0};

    kv_space_check(&sched->kv);
    assert(check_accounts(sched, &sums) == sched->counts[SEQ_WAITING]);
    for (int s = SEQ_RUNNING; s < SEQ_STATE_COUNT; s++)
        assert(check_list(sched, &sched->lists[s], (enum seq_state)s, &sums) == sched->counts[s]);
    assert(sums.holders + sched->free_slot_count == sched->options.max_num_seqs);
    for (uint32_t g = 0; g < sched->kv.table_count; g++) {
        const struct kv_pool *pool = sched->kv.pools[g];
        uint64_t held = sched->kv.prefix ? kv_prefix_held(sched->kv.prefix, g) : 0;

        assert(kv_pool_refs_sum(pool) == sums.blocks[g] + held);
        assert(kv_pool_promised_count(pool) == sums.promised[g]);
    }
}
