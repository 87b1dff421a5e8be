#include "bench/sim_queue.h"

#include "base/hash.h"

enum { RATE_NS = 250000000 }; /* as in engine/step_loop.c */

static uint32_t account_of(uint32_t key)
{
    return (uint32_t)(hash_mix64(key) % SIM_QUEUE_ACCOUNTS);
}

static int64_t predict(const struct sim_queue *q, const struct forecast *f, uint32_t key,
                       uint32_t tokens)
{
    uint32_t account = account_of(key);
    uint64_t sharers = q->sharers + 1, seqs_ahead = q->seqs, tokens_ahead = q->tokens;
    uint64_t own_seqs = q->accounts[account].seqs, own_tokens = q->accounts[account].tokens;

    if (!f->ready) return -1;
    if ((own_seqs + 1) * sharers < seqs_ahead) seqs_ahead = (own_seqs + 1) * sharers;
    if ((own_tokens + tokens) * sharers < tokens_ahead)
        tokens_ahead = (own_tokens + tokens) * sharers;
    return forecast_first_token(f, (uint32_t)seqs_ahead, tokens_ahead, tokens, q->starts_per_s);
}

static void enter(struct sim_queue *q, uint32_t key, uint32_t tokens)
{
    uint32_t account = account_of(key);

    q->seqs++;
    q->tokens += tokens;
    q->accounts[account].tokens += tokens;
    if (q->accounts[account].seqs++ == 0) q->sharers++;
}

static void leave(struct sim_queue *q, uint32_t key, uint32_t tokens)
{
    uint32_t account = account_of(key);

    q->seqs--;
    q->tokens -= tokens;
    q->accounts[account].tokens -= tokens;
    if (--q->accounts[account].seqs == 0) q->sharers--;
}

enum sim_verdict sim_queue_take(struct sim_queue *q, const struct forecast *forecast, uint32_t key,
                                uint32_t tokens)
{
    uint32_t account = account_of(key);

    if (q->ttft_limit_ns && predict(q, forecast, key, tokens) > q->ttft_limit_ns) return SIM_LATE;
    enter(q, key, tokens);
    if (q->seqs <= q->seqs_max && q->tokens <= q->tokens_max) return SIM_TAKEN;
    if (q->sharers > 1 && (uint64_t)q->accounts[account].seqs * q->sharers <= q->seqs_max &&
        q->accounts[account].tokens * q->sharers <= q->tokens_max &&
        q->seqs <= 2 * (uint64_t)q->seqs_max && q->tokens <= 2 * q->tokens_max)
        return SIM_TAKEN;
    leave(q, key, tokens);
    return SIM_FULL;
}

void sim_queue_leave(struct sim_queue *q, uint32_t key, uint32_t tokens)
{
    leave(q, key, tokens);
    q->starts++;
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
