/* flood.c - a tenant that takes much more than its share must not be felt by the others.
 *
 * The order of service alone (order.c) lets the others go first; what they feel of a flood nevertheless is the length of the steps that it
 * fills: one that runs, one that is planned, and their own. So while others are about (FORGET_NS), a tenant that has several sequences at once and
 * has had several times as many tokens of late as each of them floods. While nobody else has anything to compute, its steps are not planned ahead:
 * who comes waits for the one that runs, and for no other. And what it may add to a step is bounded by a part of the time that a first token
 * takes the others when they are alone:
 *     prompts   no chunk beside a prompt of another tenant; else a part of that time in a step (PART_BESIDE, PART_ALONE); where FLOOD_CHUNK
 *               tokens take longer, these in one of as many steps as they take parts
 *     answers   no more sequences than together add ANSWER_PART of it, but one at least
 * Where a step would be empty but for it, FLOOD_CHUNK tokens of its prompts go, and whoever waits may start.
 * None starves: the part is there in every step, and one that has had no more than its share is free again. */
#include <math.h>

#include "sched/sched_state.h"

/* What the others may feel: first tokens a fifth later (P99 at most 1.2 times that without the flood: docs/scheduling.md). A first token waits
 * for half of the step that runs, for one that is planned and for its own: prompts lengthen the first two, answers all three. Each of both gets
 * half of the fifth, spread over its steps; the time itself is what the cost model has measured (first_token_ns). Where the flood is alone none
 * is planned, and its prompts lengthen at worst the whole of the one that runs. */
#define STEPS_WITH_PROMPTS 1.5
#define STEPS_WITH_ANSWERS 2.5
static const double PART_BESIDE = 0.2 / 2 / STEPS_WITH_PROMPTS, PART_ALONE = 0.2 / 2,
                    ANSWER_PART = 0.2 / 2 / STEPS_WITH_ANSWERS;
/* Tokens of a flood's chunk at least, so that steps that grow with their rows (a CPU's) do not lurch; 16, a block, where the part allows it. */
enum { FLOOD_CHUNK = 8, FLOOD_BLOCK = 16 };
static const double FLOOD_TIMES = 4; /* what each of the others has had, in the mean */
/* Our own choice, no measurement: who floods is looked at again 50 times a second, by what it has had in about ten seconds, which is longer than
 * most answers take; who has come with nothing for three times that is not reckoned with. */
static const int64_t TICK_NS = INT64_C(20000000);
static const double MEMORY_NS = 10e9; /* of rates */
static const int64_t FORGET_NS = INT64_C(30000000000);
static const double NEWS = 1.0 / 32; /* weight of the latest in the means: some 30 prompts */

static void approach(double *mean, double value)
{
    *mean = *mean > 0 ? *mean + NEWS * (value - *mean) : value;
}

void flood_arrival(struct sched *sched, struct account *account, int64_t now_ns)
{
    struct flood *flood = &sched->flood;

    account->arrived_ns = now_ns;
    if (account->active) return;
    account->active = true;
    account->rate = 0;
    flood->active[flood->active_count++] = (uint16_t)(account - sched->accounts);
}

void flood_admitted(struct sched *sched, struct account *account, const struct sequence *seq,
                    uint32_t tokens)
{
    account->rate += tokens;
    approach(&account->context, seq->prompt_count + seq->max_new / 2.0);
    if (!account->floods && tokens) approach(&sched->flood.prompt_tokens, tokens);
}

/* Those of whom nothing was heard for long are no longer reckoned with. The sum of the others' rates. */
static double fade(struct sched *sched, double by)
{
    struct flood *flood = &sched->flood;
    double sum = 0;

    for (uint32_t i = 0; i < flood->active_count;) {
        struct account *account = &sched->accounts[flood->active[i]];

        account->rate *= by;
        if (!account->holds && sched->now_ns - account->arrived_ns > FORGET_NS) {
            account->active = account->floods = false;
            flood->active[i] = flood->active[--flood->active_count];
            continue;
        }
        sum += account->rate;
        i++;
    }
    return sum;
}

static uint32_t at_once(const struct account *account)
{
    const struct seq_link *head = &account->waiting;
    uint32_t waiting = head->next == head ? 0 : head->next->next == head ? 1 : 2;

    return account->holds + waiting;
}

/* Whether it has had so much more than the others, in the mean. */
static bool has_had_more(const struct account *account, double sum, double others, double times)
{
    return account->rate * others > times * (sum - account->rate);
}

/* One that has several sequences at once and has had several times what each of the others has. Held back, it would soon have had less, and fill
 * steps until it had more again: so while it still has some waiting, it floods until it has had no more than they. */
static void mark(struct sched *sched, double sum)
{
    struct flood *flood = &sched->flood;
    double others = flood->active_count - 1.0;

    flood->count = 0;
    for (uint32_t i = 0; i < flood->active_count; i++) {
        struct account *account = &sched->accounts[flood->active[i]];
        bool goes_on = account->floods && account->waiting.next != &account->waiting;

        account->floods = others > 0 && (account->floods || at_once(account) > 1) &&
                          has_had_more(account, sum, others, goes_on ? 1 : FLOOD_TIMES);
        flood->count += account->floods;
    }
}

/* What a first token takes those that do not flood, with the device to themselves: the step before is half over, then their own. */
static double first_token_ns(const struct sched *sched, double row_ns, double pair_ns,
                             double step_ns)
{
    double tokens = sched->flood.prompt_tokens;

    return STEPS_WITH_ANSWERS * step_ns + tokens * row_ns + tokens * tokens / 2 * pair_ns;
}

/* A step's part. Where a chunk takes longer than that, what was not used is kept until it is enough for one. */
static void save_up(struct sched *sched, double part_ns)
{
    struct flood *flood = &sched->flood;
    double left_ns = flood->prompts_left_ns + part_ns,
           chunk_ns =
               FLOOD_CHUNK * (flood->row_ns + flood->pair_ns * sched->limits->context_tokens),
           most_ns = part_ns > chunk_ns ? part_ns : chunk_ns;

    flood->part_ns = part_ns;
    flood->prompts_left_ns = left_ns < most_ns ? left_ns : most_ns;
}

bool flood_has_device(const struct sched *sched)
{
    const struct seq_link *head = &sched->lists[SEQ_RUNNING];

    if (sched->flood.count == 0) return false;
    for (const struct seq_link *link = head->next; link != head; link = link->next) {
        const struct sequence *seq = sched_link_seq(link);

        if (sequence_rows_left(seq) && !flood_floods(sched, seq)) return false;
    }
    for (uint32_t i = 0; i < sched->listed_count; i++) {
        const struct account *account = sched->listed[i];

        if (!account->floods && account->waiting.next != &account->waiting) return false;
    }
    return true;
}

void flood_tick(struct sched *sched)
{
    struct flood *flood = &sched->flood;
    double elapsed_ns = (double)(sched->now_ns - flood->ticked_ns);

    if (elapsed_ns < (double)TICK_NS) return;
    flood->ticked_ns = sched->now_ns;
    mark(sched, fade(sched, exp(-elapsed_ns / MEMORY_NS)));
}

void flood_begin_step(struct sched *sched)
{
    struct flood *flood = &sched->flood;
    double step_ns, first_ns;

    flood->others_prompts = false;
    flood->closed = flood->idle = false;
    if (flood->count == 0) return;
    cost_model_weights(&sched->cost, &step_ns, &flood->row_ns, &flood->pair_ns);
    first_ns = first_token_ns(sched, flood->row_ns, flood->pair_ns, step_ns);
    save_up(sched, (flood_has_device(sched) ? PART_ALONE : PART_BESIDE) * first_ns);
    flood->answers_ns = ANSWER_PART * first_ns;
    flood->whole = true;
    flood->known = cost_model_ready(&sched->cost);
}

bool flood_floods(const struct sched *sched, const struct sequence *seq)
{
    return sched->accounts[seq->account].floods;
}

bool flood_may_start(const struct sched *sched, const struct account *account)
{
    const struct flood *flood = &sched->flood;
    double each;

    if (!account->floods || flood->idle) return true;
    if (flood->closed || flood->others_prompts) return false;
    if (!flood->known) return account->holds < 4; /* rather few than many */
    if (flood->prompts_left_ns < FLOOD_CHUNK * flood->row_ns) return false;
    each = flood->row_ns + flood->pair_ns * account->context;
    return account->holds == 0 || (account->holds + 1) * each <= flood->answers_ns;
}

uint32_t flood_rows(const struct sched *sched, const struct sequence *seq, uint32_t rows)
{
    const struct flood *flood = &sched->flood;
    double each = flood->row_ns + flood->pair_ns * seq->computed, fit;

    if (rows <= 1 || !flood_floods(sched, seq)) return rows;
    if (flood->closed || flood->others_prompts) return 0;
    if (!flood->known) return flood->whole ? rows < FLOOD_CHUNK ? rows : FLOOD_CHUNK : 0;
    if (each <= 0) return rows;
    fit = fmin(flood->prompts_left_ns, flood->part_ns) / each;
    if (fit < FLOOD_CHUNK && flood->whole &&
        (flood->idle || flood->prompts_left_ns >= FLOOD_CHUNK * each))
        fit = FLOOD_CHUNK;
    if (fit >= rows) return rows;
    return fit >= FLOOD_BLOCK ? (uint32_t)fit / FLOOD_BLOCK * FLOOD_BLOCK
                              : (uint32_t)fit / FLOOD_CHUNK * FLOOD_CHUNK;
}

void flood_put(struct sched *sched, const struct sequence *seq, uint32_t rows)
{
    struct flood *flood = &sched->flood;

    if (rows <= 1 || flood->count == 0) return;
    if (!flood_floods(sched, seq)) {
        flood->others_prompts = true;
        return;
    }
    flood->prompts_left_ns -=
        rows * flood->row_ns + (double)cost_pairs(seq->computed, rows) * flood->pair_ns;
    if (flood->prompts_left_ns < 0) flood->prompts_left_ns = 0; /* the step was idle but for it */
    flood->whole = false;
}
