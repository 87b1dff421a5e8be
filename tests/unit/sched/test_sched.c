/* test_sched.c - no sequence is lost, starved, given a wrong position or another's block, whatever happens to it.
 * Method: random operations (add, end, plan a step, finish a step, give and take credit) on the real scheduler beside a plain
 * model: an array of sequences with what each must get next, an array of who owns which block. After each operation
 * sched_check() must hold; each step is checked row by row. With shared prefixes the model keeps what each block holds: every position
 * before a segment must read, through the tables, the very token that the sequence has there, as far as the group's window goes; places in front of
 * the window are read by nobody, and who holds their blocks by then does not matter. 300,000 operations, 13 million with INFERD_TEST_LONG. */
#include "test.h"

#include <stdlib.h>

#include "sched/sched.h"

enum { GROUPS = 2, BLOCKS = 48, CONTEXT = 160, VOCAB = 1000, SEQS = 24, SLOTS = 6, FLIGHTS = 2 };

static const int64_t tick_ns = 50000000; /* a step: pins last for 20 and 40 */

struct model {
    struct sequence seq;
    struct seq_credit credit;
    int32_t prompt[CONTEXT], sampled[CONTEXT];
    int32_t future[CONTEXT]; /* what it will sample */
    bool used, ended, opened;
    bool fresh;                 /* opened, and nothing of it computed since */
    uint32_t computed, planned; /* positions, samples */
    uint32_t skipped;           /* steps in a row in which it could have decoded and did not */
    uint64_t last_seq_no;
    uint32_t tables[GROUPS][CONTEXT / 16];
    uint32_t table_count[GROUPS];
    uint32_t segment_from; /* first position of its last segment */
};

struct shape { /* of the KV groups; prefixes are shared where all blocks have one size */
    uint32_t block_tokens[GROUPS], windows[GROUPS], blocks[GROUPS];
};
static const struct shape two_sizes = {{16, 32}, {0, 0}, {12, 8}};
static const struct shape shared = {{16, 16}, {0, 0}, {12, 12}};
static const struct shape full_and_window = {{16, 16}, {0, 40}, {12, 9}};
static const struct shape window_and_full = {{16, 16}, {17, 0}, {8, 12}};
static const struct shape narrow_window = {{16, 16}, {0, 17}, {12, 5}};
static const struct shape windows_alone = {{16, 16}, {16, 33}, {8, 9}};

struct world {
    struct plan plan;
    struct device_limits limits;
    struct sched_options options;
    struct sched *sched;
    struct model models[SEQS];
    struct model *slots[SLOTS]; /* who has it, as the steps told */
    bool shares, floods;
    struct cell {
        int32_t token;
        uint32_t position; /* + 1; 0: nothing written */
    } cells[GROUPS][BLOCKS][32];
    void *memory;
    struct step *step;
    struct sched_step flights[FLIGHTS];
    struct sched_entry entries[FLIGHTS][SLOTS];
    uint64_t planned_no, done_no;
    uint64_t steps, rows, finished, blocked, cached, preempted, pinned, flooded;
};

static struct model *model_of(struct sequence *seq)
{
    return (struct model *)seq;
}

static void world_init(struct world *w, uint32_t rows, uint32_t logits, const struct shape *shape)
{
    bool shares = shape->block_tokens[0] == shape->block_tokens[1];
    struct error err;

    memset(w, 0, sizeof *w);
    w->plan = (struct plan){.vocab_rows = VOCAB, .vocab_tokens = VOCAB, .group_count = GROUPS};
    for (int g = 0; g < GROUPS; g++) {
        w->plan.groups[g].block_tokens = shape->block_tokens[g];
        w->plan.groups[g].window = shape->windows[g];
    }
    w->shares = shares;
    w->limits = (struct device_limits){.slots_max = SLOTS,
                                       .rows_max = 64,
                                       .logits_max = logits,
                                       .steps_inflight = FLIGHTS,
                                       .context_tokens = CONTEXT,
                                       .kv_blocks = {shape->blocks[0], shape->blocks[1]},
                                       .bias_max = 2,
                                       .banned_max = 4};
    w->options = (struct sched_options){.max_num_seqs = SLOTS,
                                        .max_num_batched_tokens = rows,
                                        .share_prefixes = shares,
                                        .class_age_ns = 50 * tick_ns};
    if (shares) { /* with a window, and chunks cut by predicted time: the model must hold all the same */
        w->options.max_wait_ns = 30 * tick_ns;
        w->options.max_step_ns = 200;
    }
    EXPECT_OK_ERR(sched_create(&w->options, &w->plan, &w->limits, &w->sched, &err), &err);
    w->memory = aligned_alloc(64, step_bytes(&w->plan, &w->limits));
    memset(w->memory, 0, step_bytes(&w->plan, &w->limits));
    w->step = step_init(w->memory, &w->plan, &w->limits);
    for (int i = 0; i < FLIGHTS; i++)
        w->flights[i].entries = w->entries[i];
}

static void world_fini(struct world *w)
{
    sched_destroy(w->sched);
    free(w->memory);
}

static void add(struct world *w)
{
    struct model *m = &w->models[test_rand_below(SEQS)];
    struct error err;
    static const int32_t banned[4] = {1, 2, 3, 4};
    static const struct step_bias biases[2] = {{5, 1}, {6, -1}};

    if (m->used) return;
    memset(m, 0, sizeof *m);
    m->used = true;
    m->credit.left = test_rand_below(8) ? 1000 : test_rand_below(3);
    uint32_t alike = test_rand_below(CONTEXT), text = test_rand_below(3);
    for (uint32_t i = 0; i < CONTEXT; i++) {
        m->prompt[i] = (int32_t)(i < alike ? (i * 7 + text) % VOCAB : test_rand_below(VOCAB));
        m->future[i] = (int32_t)test_rand_below(VOCAB);
    }
    m->seq = (struct sequence){
        .prompt = m->prompt,
        .prompt_count = 1 + test_rand_below(test_rand_below(3) ? 20 : 120),
        .max_new = test_rand_below(test_rand_below(3) ? 40 : 130),
        .sampled = m->sampled,
        .score_prompt = test_rand_below(6) == 0,
        .open = {.temperature = 1,
                 .top_p = 1,
                 .repetition_penalty = test_rand_below(3) ? 1 : 1.5f,
                 .banned_count = test_rand_below(5),
                 .bias_count = test_rand_below(3)},
        .banned = banned,
        .biases = biases,
        .priority = (int32_t)test_rand_below(3),
        .credit = &m->credit,
        .pin_tokens = test_rand_below(3) ? 0 : test_rand_below(CONTEXT),
        .pin_s = test_rand_below(3),
        .tenant = w->floods   ? test_rand_below(12) < 11
                  : w->shares ? test_rand_below(3)
                              : 7,
    };
    if (m->seq.max_new > CONTEXT - m->seq.prompt_count)
        m->seq.max_new = CONTEXT - m->seq.prompt_count;
    if (m->seq.max_new == 0) m->seq.score_prompt = true;
    if (m->seq.max_new == 0 && m->seq.prompt_count < 2) m->seq.prompt_count = 2;
    EXPECT_OK_ERR(sched_fits(w->sched, &m->seq, &err), &err);
    sched_add(w->sched, &m->seq, (int64_t)w->steps * tick_ns);
}

static void end(struct world *w, struct model *m)
{
    if (!m->used) return;
    m->ended = true;
    sched_end(w->sched, &m->seq);
}

static bool decodes(const struct model *m)
{
    return m->used && !m->ended && m->seq.state == SEQ_RUNNING && m->seq.max_new &&
           m->planned < m->seq.max_new && m->computed + 1 == m->seq.prompt_count + m->planned;
}

/* Arrival, and 50 steps more for each class. */
static int64_t due(const struct model *m)
{
    uint32_t left = m->seq.max_new - m->planned;

    return m->seq.arrived_ns + (left <= 8 ? 0 : left <= 64 ? 50 : 100) * tick_ns;
}

/* The waiting sequence that must be next. */
static struct model *first_waiting(struct world *w)
{
    struct model *first = NULL;

    for (int i = 0; i < SEQS; i++) {
        struct model *m = &w->models[i];
        if (!m->used || m->seq.state != SEQ_WAITING) continue;
        if (!first || m->seq.priority > first->seq.priority ||
            (m->seq.priority == first->seq.priority &&
             (due(m) < due(first) ||
              (due(m) == due(first) && m->seq.arrival < first->seq.arrival))))
            first = m;
    }
    return first;
}

static void check_changes(struct world *w)
{
    const struct step *step = w->step;
    struct error err;

    EXPECT_OK_ERR(step_check(step, &w->plan, &w->limits, &err), &err);
    for (uint32_t i = 0; i < step->table_count; i++) {
        const struct step_table_change *t = &step_tables(step)[i];
        struct model *m = w->slots[t->slot];

        EXPECT_TRUE(m && t->index >= m->table_count[t->group]);
        /* only one that has adopted the end of a prefix leaves places free, those in front of its window */
        EXPECT_TRUE(t->index == m->table_count[t->group] ||
                    (w->plan.groups[t->group].window && m->fresh && m->table_count[t->group] == 0));
        while (m->table_count[t->group] < t->index)
            m->tables[t->group][m->table_count[t->group]++] = UINT32_MAX;
        m->tables[t->group][m->table_count[t->group]++] = t->block;
    }
}

static int32_t token_of(const struct model *m, uint32_t position)
{
    return position < m->seq.prompt_count ? m->prompt[position]
                                          : m->future[position - m->seq.prompt_count];
}

/* The first position that the row at `position` sees. */
static uint32_t seen_from(const struct world *w, uint32_t group, uint32_t position)
{
    uint32_t window = w->plan.groups[group].window;

    return window && position + 1 > window ? position + 1 - window : 0;
}

/* Whether a block is one of those that the sequence reads or writes in this step or a later one. */
static bool holds(const struct world *w, const struct model *m, uint32_t group, uint32_t block)
{
    bool in_step = m->last_seq_no == w->step->seq_no;
    uint32_t next = in_step ? m->segment_from : m->computed;
    uint32_t first = seen_from(w, group, next) / w->plan.groups[group].block_tokens;

    for (uint32_t i = first; m->used && i < m->table_count[group]; i++)
        if (m->tables[group][i] == block) return true;
    return false;
}

/* What is before it is there; what it writes is in no other's tables, of those that run or whose steps are under way. */
static void check_blocks(struct world *w, const struct model *m, uint32_t from, uint32_t to)
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t size = w->plan.groups[g].block_tokens;

        EXPECT_TRUE(m->table_count[g] * size >= to);
        for (uint32_t p = seen_from(w, g, from); p < to; p++) {
            EXPECT_TRUE(m->tables[g][p / size] < BLOCKS);
            struct cell *cell = &w->cells[g][m->tables[g][p / size]][p % size];

            if (p < from) {
                EXPECT_EQ(cell->position, p + 1);
                EXPECT_EQ(cell->token, token_of(m, p));
                continue;
            }
            *cell = (struct cell){token_of(m, p), p + 1};
            for (int k = 0; (p == from || p % size == 0) && k < SEQS; k++)
                EXPECT_TRUE(&w->models[k] == m ||
                            !holds(w, &w->models[k], g, m->tables[g][p / size]));
        }
    }
}

/* Who left the waiting list was the first of it (but for those who wait for a prefix, or were preempted and have no credit); opens are of sequences that left it, now or (without credit then) before. */
static void check_opens(struct world *w, struct model *order[], uint32_t order_count)
{
    for (uint32_t i = 1; i < order_count && !w->shares; i++)
        EXPECT_TRUE(order[i]->seq.state == SEQ_WAITING || order[i - 1]->seq.state != SEQ_WAITING ||
                    order[i - 1]->seq.preemptions);
    for (uint32_t i = 0; i < w->step->open_count; i++) {
        const struct step_open *open = &step_opens(w->step)[i];
        struct model *m = NULL;

        for (int k = 0; k < SEQS; k++) {
            struct model *other = &w->models[k];
            if (other->used && !other->ended && other->seq.slot == open->slot &&
                (other->seq.state == SEQ_RUNNING || other->seq.state == SEQ_LEAVING))
                m = other;
        }
        EXPECT_TRUE(m && !m->opened && w->slots[open->slot] == NULL);
        w->slots[open->slot] = m;
        EXPECT_EQ(open->prompt_count, open->repetition_penalty != 1 ? m->seq.prompt_count : 0);
        EXPECT_TRUE(memcmp(step_ids(w->step) + open->prompt_first, m->prompt,
                           open->prompt_count * sizeof(int32_t)) == 0);
        m->opened = m->fresh = true;
        EXPECT_EQ(open->sampled_count, open->repetition_penalty != 1 ? m->seq.sampled_known : 0);
    }
}

static void check_row(const struct model *m, uint32_t position, int32_t token)
{
    if (position < m->seq.prompt_count) {
        EXPECT_EQ(token, m->prompt[position]);
    } else if (position - m->seq.prompt_count < m->seq.sampled_known) {
        EXPECT_EQ(token, m->sampled[position - m->seq.prompt_count]);
    } else {
        EXPECT_EQ(position + 1, m->seq.prompt_count + m->planned);
        EXPECT_EQ(token, TOKEN_OF(m->seq.slot, 0));
    }
}

static void check_segment(struct world *w, const struct step_segment *seg,
                          const struct sched_entry *entry, bool had_credit)
{
    struct model *m = model_of(entry->seq);
    uint32_t end_at = seg->context_len + seg->rows, target = m->seq.prompt_count + m->planned;

    EXPECT_TRUE(w->slots[seg->slot] == m && m->opened && !m->ended);
    if (m->fresh) { /* it begins where shared blocks end */
        m->computed = seg->context_len;
        EXPECT_TRUE(m->computed % 16 == 0 && m->computed < target && (w->shares || !m->computed));
        if (!m->seq.preemptions) EXPECT_EQ(m->computed, m->seq.cached);
        w->cached += m->computed;
        m->fresh = false;
    }
    EXPECT_EQ(seg->context_len, m->computed);
    EXPECT_TRUE(end_at <= target);
    check_blocks(w, m, seg->context_len, end_at);
    for (uint32_t r = 0; r < seg->rows; r++)
        check_row(m, seg->context_len + r, step_tokens(w->step)[seg->first_row + r]);
    EXPECT_EQ(entry->samples, m->seq.max_new > 0 && end_at == target);
    EXPECT_EQ(entry->output_count, seg->logits_count);
    EXPECT_EQ(seg->logits_first + seg->logits_count, seg->logits_count ? seg->rows : 0);
    for (uint32_t i = 0; i < entry->output_count; i++) {
        int32_t want = i + 1 == entry->output_count && entry->samples
                           ? TARGET_SAMPLE
                           : m->prompt[seg->context_len + i + 1];
        EXPECT_EQ(step_targets(w->step)[entry->output_first + i], want);
    }
    if (entry->samples) EXPECT_TRUE(had_credit);
    m->segment_from = seg->context_len;
    m->computed = end_at;
    m->planned += entry->samples;
    m->last_seq_no = w->step->seq_no;
    m->skipped = 0;
}

/* Those that could decode and were left out: only when the step was full, and not for long. */
static void check_fairness(struct world *w, struct model *ready[], uint32_t ready_count)
{
    uint32_t rows = w->options.max_num_batched_tokens;
    uint32_t most = rows < w->limits.logits_max ? rows : w->limits.logits_max;

    for (uint32_t i = 0; i < ready_count; i++) {
        if (ready[i]->last_seq_no == w->step->seq_no || ready[i]->seq.state != SEQ_RUNNING)
            continue;
        if (sched_counts(w->sched).leaving + sched_counts(w->sched).ending)
            continue; /* no blocks */
        EXPECT_TRUE(w->step->row_count == rows || w->step->output_count == w->limits.logits_max);
        EXPECT_TRUE(++ready[i]->skipped <= SLOTS / most + 1);
    }
}

/* Nothing was planned: then nothing could be, or a flood is not planned ahead (sched/flood.c). */
static void check_idle(struct world *w)
{
    struct model *first = first_waiting(w);
    struct sched_counts counts = sched_counts(w->sched);

    if (counts.flooding && w->planned_no > w->done_no) return;

    for (int i = 0; i < SEQS; i++) {
        struct model *m = &w->models[i];
        if (m->used && !m->ended && m->seq.state == SEQ_RUNNING && !counts.leaving &&
            !counts.ending)
            EXPECT_EQ(sequence_rows_left(&m->seq), 0);
    }
    if (first && !first->seq.preemptions &&
        counts.running + counts.blocked + counts.leaving + counts.ending == 0)
        fail_msg("a sequence waits and nothing runs");
}

static uint32_t waiting_in_order(struct world *w, struct model *order[])
{
    uint32_t count = 0;
    struct model *m;

    while ((m = first_waiting(w))) { /* hide each for a moment */
        order[count++] = m;
        m->used = false;
    }
    for (uint32_t i = 0; i < count; i++)
        order[i]->used = true;
    return count;
}

/* Those that were preempted are as new, but for what they have sampled. */
static void note_preempted(struct world *w)
{
    for (int i = 0; i < SEQS; i++) {
        struct model *m = &w->models[i];

        if (!m->used || !m->opened || m->seq.state != SEQ_WAITING) continue;
        EXPECT_TRUE(m->seq.preemptions > 0 && m->last_seq_no <= w->done_no);
        EXPECT_TRUE(!m->seq.score_prompt && m->seq.sampled_known == m->planned);
        w->slots[m->seq.slot] = NULL;
        memset(m->table_count, 0, sizeof m->table_count);
        m->opened = false;
        m->computed = 0;
        w->preempted++;
    }
}

static void plan(struct world *w)
{
    struct model *order[SEQS], *ready[SEQS];
    uint32_t order_count = waiting_in_order(w, order), ready_count = 0, credit[SEQS];
    struct sched_step *flight = &w->flights[(w->planned_no + 1) % FLIGHTS];

    if (w->planned_no - w->done_no == FLIGHTS) return;
    for (int i = 0; i < SEQS; i++) {
        credit[i] = w->models[i].credit.left;
        if (decodes(&w->models[i]) && credit[i]) ready[ready_count++] = &w->models[i];
    }
    if (!sched_plan(w->sched, w->planned_no + 1, (int64_t)w->steps * tick_ns, w->step, flight)) {
        check_idle(w);
        return;
    }
    w->planned_no++;
    w->steps++;
    w->rows += w->step->row_count;
    EXPECT_TRUE(w->step->row_count <= w->options.max_num_batched_tokens);
    /* one that was preempted while this step was planned held nothing under way, and is waiting again */
    note_preempted(w);
    check_opens(w, order, order_count);
    check_changes(w);
    EXPECT_EQ(flight->entry_count, w->step->segment_count);
    for (uint32_t i = 0; i < flight->entry_count; i++) {
        struct model *m = model_of(flight->entries[i].seq);
        check_segment(w, &step_segments(w->step)[i], &flight->entries[i],
                      credit[m - w->models] > 0);
    }
    check_fairness(w, ready, ready_count);
}

static void reap(struct world *w)
{
    struct sequence *seq;

    note_preempted(w);
    while ((seq = sched_reap(w->sched))) {
        struct model *m = model_of(seq);

        EXPECT_TRUE(m->used && m->ended && m->last_seq_no <= w->done_no);
        if (m->opened) w->slots[m->seq.slot] = NULL;
        m->used = false;
        w->finished++;
    }
}

static void finish_step(struct world *w)
{
    struct sched_step *flight = &w->flights[(w->done_no + 1) % FLIGHTS];

    if (w->planned_no == w->done_no) return;
    for (uint32_t i = 0; i < flight->entry_count; i++) {
        struct model *m = model_of(flight->entries[i].seq);

        if (flight->entries[i].samples) m->credit.in_flight--;
        if (m->ended) continue;
        if (flight->entries[i].samples) sequence_append(&m->seq, m->future[m->seq.sampled_known]);
        if (test_rand_below(100) == 0 || /* a stop id */
            (m->seq.max_new ? m->seq.sampled_known == m->seq.max_new
                            : flight->entries[i].first_position + flight->entries[i].rows + 1 ==
                                  m->seq.prompt_count))
            end(w, m);
    }
    w->done_no++;
    sched_observe(w->sched, flight, 10 * flight->row_count);
    sched_step_done(w->sched, w->done_no);
}

/* Readers read, or stand still. */
static void change_credit(struct world *w)
{
    struct model *slow = &w->models[test_rand_below(SEQS)];

    for (int i = 0; i < SEQS; i++)
        if (w->models[i].used && test_rand_below(3) == 0)
            w->models[i].credit.left = 5 + test_rand_below(60);
    if (slow->used && test_rand_below(3) == 0) slow->credit.left = 0;
}

static void random_operation(struct world *w)
{
    switch (test_rand_below(16)) {
    case 0:
    case 1:
    case 2: add(w); break;
    case 3: change_credit(w); break;
    case 4:
        if (test_rand_below(4) == 0) end(w, &w->models[test_rand_below(SEQS)]);
        break;
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
    case 10: plan(w); break;
    default: finish_step(w);
    }
    reap(w);
    sched_check(w->sched);
    w->blocked += sched_counts(w->sched).blocked > 0;
    w->pinned += sched_counts(w->sched).prefix_pinned > 0;
    w->flooded += sched_counts(w->sched).flooding > 0;
}

/* With credit for all, everything that is there ends within a bound. */
static void run_dry(struct world *w)
{
    struct sched_counts counts;
    int turns = 0;

    do {
        for (int i = 0; i < SEQS; i++)
            w->models[i].credit.left = 1000;
        plan(w);
        finish_step(w);
        reap(w);
        counts = sched_counts(w->sched);
        EXPECT_TRUE(++turns < SEQS * (CONTEXT + 40));
    } while (counts.waiting + counts.running + counts.blocked + counts.leaving + counts.ending);
    EXPECT_EQ(counts.kv_blocks_used, 0);
}

static void run(uint32_t rows, uint32_t logits, const struct shape *shape, bool floods,
                long operations)
{
    struct world *w = calloc(1, sizeof *w);
    bool shares;

    world_init(w, rows, logits, shape);
    shares = w->shares;
    w->floods = floods;
    for (long i = 0; i < operations; i++)
        random_operation(w);
    run_dry(w);
    EXPECT_TRUE(shares == (w->cached > 0) && shares == (w->pinned > 0));
    /* with windows alone a sequence gets at its start all that it will hold at once: rarely has anybody to give way */
    EXPECT_TRUE(w->preempted > 0 || shape == &windows_alone);
    if (floods) EXPECT_TRUE(w->flooded > (uint64_t)operations / 10);
    EXPECT_TRUE(w->finished > (uint64_t)operations / 1000 && w->blocked > 0);
    world_fini(w);
    free(w);
}

TEST(random_operations_agree_with_the_model)
{
    run(64, 64, &two_sizes, false, test_long() ? 3000000 : 60000);
}

TEST(random_operations_with_few_rows)
{
    run(4, 64, &two_sizes, false, test_long() ? 2000000 : 40000);
}

TEST(random_operations_with_few_logits)
{
    run(40, 2, &two_sizes, false, test_long() ? 2000000 : 40000);
}

TEST(random_operations_with_shared_prefixes_and_a_window)
{
    run(64, 64, &shared, false, test_long() ? 3000000 : 60000);
}

/* Two tenants, one with most of the sequences. */
TEST(random_operations_under_a_flood)
{
    run(64, 64, &shared, true, test_long() ? 2000000 : 40000);
}

TEST(random_operations_with_full_attention_and_a_window)
{
    run(64, 64, &full_and_window, false, test_long() ? 2000000 : 50000);
}

TEST(random_operations_with_a_window_first_and_small_chunks)
{
    run(20, 64, &window_and_full, false, test_long() ? 2000000 : 50000);
}

TEST(random_operations_where_a_window_is_short_of_blocks)
{
    run(20, 64, &narrow_window, false, test_long() ? 2000000 : 50000);
}

TEST(random_operations_with_windows_alone)
{
    run(64, 64, &windows_alone, false, test_long() ? 2000000 : 50000);
}

TEST(what_can_never_fit_is_refused)
{
    struct world *w = calloc(1, sizeof *w);
    struct model *m = &w->models[0];
    struct error err;

    world_init(w, 64, 64, &two_sizes);
    m->seq = (struct sequence){.prompt = m->prompt, .prompt_count = 100, .max_new = 61};
    EXPECT_EQ(sched_fits(w->sched, &m->seq, &err), STATUS_INVALID); /* context 160 */
    m->seq.max_new = 60;
    EXPECT_OK(sched_fits(w->sched, &m->seq, &err));
    m->seq.open.banned_count = 5;
    EXPECT_EQ(sched_fits(w->sched, &m->seq, &err), STATUS_INVALID);
    m->seq.open.banned_count = 4;
    m->seq.open.bias_count = 3;
    EXPECT_EQ(sched_fits(w->sched, &m->seq, &err), STATUS_INVALID);
    world_fini(w);
    free(w);
}

TEST(options_out_of_bounds_are_refused)
{
    struct world *w = calloc(1, sizeof *w);
    struct sched *other;
    struct error err;

    world_init(w, 64, 64, &two_sizes);
    struct sched_options bad = w->options;
    bad.max_num_seqs = SLOTS + 1;
    EXPECT_EQ(sched_create(&bad, &w->plan, &w->limits, &other, &err), STATUS_INVALID);
    bad.max_num_seqs = SLOTS;
    bad.max_num_batched_tokens = 0;
    EXPECT_EQ(sched_create(&bad, &w->plan, &w->limits, &other, &err), STATUS_INVALID);
    world_fini(w);
    free(w);
}
