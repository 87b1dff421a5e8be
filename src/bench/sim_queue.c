#include "bench/sim_queue.h"

#include "base/hash.h"

enum { RATE_NS = 250000000 }; /* as in engine/step_loop.c */

static uint32_t account_of(uint32_t key)
{
    return (uint32_t)(hash_mix64(key) % SIM_QUEUE_ACCOUNTS);
}

static void predict(const struct sim_queue *q, const struct forecast *f, struct sim_entry *entry)
{
    uint32_t account = account_of(entry->key);
    struct forecast_queue queue = {
        .own_seqs = q->accounts[account].seqs,
        .own_tokens = q->accounts[account].work,
        .prompt_tokens = q->tokens,
        .sharers = q->sharers + (q->accounts[account].seqs == 0),
        .starts_per_s = q->starts_per_s,
    };

    for (int c = 0; c < SEQ_CLASSES; c++) {
        queue.seqs[c] = q->class_seqs[c];
        queue.tokens[c] = q->class_work[c];
    }
    entry->kind = forecast_kind(&queue, entry->class);
    entry->work = forecast_work(f, &queue, &entry->prompt);
    entry->predicted_ns = forecast_queued(f, &queue, entry->class, &entry->prompt);
}

static bool is_late(const struct sim_queue *q, const struct forecast *f,
                    const struct sim_entry *entry)
{
    bool idle = q->seqs == 0 && forecast_is_idle(f);

    return q->ttft_limit_ns && !idle &&
           !forecast_in_time(&q->margin, entry->kind, entry->predicted_ns, q->ttft_limit_ns);
}

static void enter(struct sim_queue *q, const struct sim_entry *entry)
{
    uint32_t account = account_of(entry->key);

    q->seqs++;
    q->tokens += entry->prompt.tokens;
    q->class_seqs[entry->class]++;
    q->class_work[entry->class] += entry->work;
    q->accounts[account].tokens += entry->prompt.tokens;
    q->accounts[account].work += entry->work;
    if (q->accounts[account].seqs++ == 0) q->sharers++;
}

static void leave(struct sim_queue *q, const struct sim_entry *entry)
{
    uint32_t account = account_of(entry->key);

    q->seqs--;
    q->tokens -= entry->prompt.tokens;
    q->class_seqs[entry->class]--;
    q->class_work[entry->class] -= entry->work;
    q->accounts[account].tokens -= entry->prompt.tokens;
    q->accounts[account].work -= entry->work;
    if (--q->accounts[account].seqs == 0) q->sharers--;
}

enum sim_verdict sim_queue_take(struct sim_queue *q, const struct forecast *forecast,
                                struct sim_entry *entry)
{
    uint32_t account = account_of(entry->key);

    predict(q, forecast, entry);
    if (is_late(q, forecast, entry)) return SIM_LATE;
    enter(q, entry);
    if (q->seqs <= q->seqs_max && q->tokens <= q->tokens_max) return SIM_TAKEN;
    if (q->sharers > 1 && (uint64_t)q->accounts[account].seqs * q->sharers <= q->seqs_max &&
        q->accounts[account].tokens * q->sharers <= q->tokens_max &&
        q->seqs <= 2 * (uint64_t)q->seqs_max && q->tokens <= 2 * q->tokens_max)
        return SIM_TAKEN;
    leave(q, entry);
    return SIM_FULL;
}

void sim_queue_leave(struct sim_queue *q, const struct sim_entry *entry)
{
    leave(q, entry);
    q->starts++;
}

void sim_queue_first_token(struct sim_queue *q, const struct sim_entry *entry, int64_t took_ns)
{
    if (q->ttft_limit_ns && entry->predicted_ns >= 0)
        forecast_margin_learn(&q->margin, entry->kind, entry->predicted_ns, q->ttft_limit_ns,
                              took_ns);
}

void sim_queue_pace(struct sim_queue *q, int64_t now_ns, bool waiting)
{
    int64_t elapsed = now_ns - q->rate_since_ns;

    if (elapsed < RATE_NS) return;
    if (q->starts || waiting) { /* an idle while says nothing about the pace under load */
        double rate = q->starts * 1e9 / (double)elapsed;
        q->starts_per_s = q->starts_per_s > 0 ? 0.7 * q->starts_per_s + 0.3 * rate : rate;
    }
    q->starts = 0;
    q->rate_since_ns = now_ns;
}
