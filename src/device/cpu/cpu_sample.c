#include "device/cpu/cpu_sample.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"

enum { BINS = 1024 };
static const float BIN_WIDTH = 1.0f / 32; /* nats; the last bin holds all that is below -32 */

/* A token's rank as one number: larger logit first, then smaller id. */
static uint64_t rank_key(float value, uint32_t id)
{
    uint32_t bits;

    value += 0.0f; /* -0 equals 0 */
    memcpy(&bits, &value, 4);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static uint32_t key_id(uint64_t key)
{
    return ~(uint32_t)key;
}

/* --- slot state --- */

bool sample_wants_seen(const struct step_open *open)
{
    return open->repetition_penalty != 1 || open->frequency_penalty != 0 ||
           open->presence_penalty != 0;
}

static void count_sampled(struct sample_slot *slot, int32_t id)
{
    if ((slot->seen[id] & SEEN_COUNT_MAX) < SEEN_COUNT_MAX) slot->seen[id]++;
}

void sample_slot_open(struct sample_slot *slot, const struct step *step, uint32_t index,
                      uint32_t vocab_rows)
{
    const struct step_open *open = &step_opens(step)[index];
    const int32_t *ids = step_ids(step);

    slot->open = *open;
    slot->banned_count = open->banned_count;
    if (open->banned_count)
        memcpy(slot->banned, ids + open->banned_first, open->banned_count * sizeof *ids);
    slot->bias_count = open->bias_count;
    if (open->bias_count)
        memcpy(slot->biases, step_biases(step) + open->bias_first,
               open->bias_count * sizeof *slot->biases);
    if (slot->seen_used) memset(slot->seen, 0, vocab_rows * sizeof *slot->seen);
    slot->seen_used = sample_wants_seen(open);
    memset(slot->last, 0, sizeof slot->last);
    if (!slot->seen_used) return;
    for (uint32_t i = 0; i < open->prompt_count; i++)
        slot->seen[ids[open->prompt_first + i]] |= SEEN_PROMPT;
    for (uint32_t i = 0; i < open->sampled_count; i++)
        count_sampled(slot, ids[open->sampled_first + i]);
}

/* --- logprobs of the raw logits --- */

static void sift_down(uint64_t *heap, uint32_t count, uint32_t at, uint64_t flip)
{
    for (;;) { /* flip ~0 turns the order round: a heap with the smallest on top */
        uint32_t child = 2 * at + 1;
        if (child >= count) return;
        if (child + 1 < count && (heap[child + 1] ^ flip) > (heap[child] ^ flip)) child++;
        if ((heap[at] ^ flip) >= (heap[child] ^ flip)) return;
        uint64_t kept = heap[at];
        heap[at] = heap[child], heap[child] = kept;
        at = child;
    }
}

static void heapify(uint64_t *heap, uint32_t count, uint64_t flip)
{
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(heap, count, i, flip);
}

/* The n likeliest tokens, likeliest first; log_total: log of the sum of exp(logit). */
static uint32_t top_tokens(const struct sample_row *row, uint32_t n, double log_total,
                           uint64_t *heap, struct top_logprob *tops)
{
    uint32_t count = n < row->vocab_tokens ? n : row->vocab_tokens;
    float lowest;

    if (!count) return 0;
    for (uint32_t id = 0; id < count; id++)
        heap[id] = rank_key(row->logits[id], id);
    heapify(heap, count, ~(uint64_t)0);
    lowest = row->logits[key_id(heap[0])];
    for (uint32_t id = count; id < row->vocab_tokens; id++) {
        if (!(row->logits[id] > lowest)) continue; /* an equal one with a larger id ranks below */
        heap[0] = rank_key(row->logits[id], id);
        sift_down(heap, count, 0, ~(uint64_t)0);
        lowest = row->logits[key_id(heap[0])];
    }
    for (uint32_t left = count; left > 0; left--) { /* the smallest goes last */
        uint32_t id = key_id(heap[0]);
        tops[left - 1] =
            (struct top_logprob){(int32_t)id, (float)((double)row->logits[id] - log_total)};
        heap[0] = heap[left - 1];
        sift_down(heap, left - 1, 0, ~(uint64_t)0);
    }
    return count;
}

/* --- changes to the logits --- */

static void apply_mask(float *work, const uint32_t *mask, uint32_t tokens)
{
    for (uint32_t first = 0; first < tokens; first += 32) {
        uint32_t bits = mask[first / 32], end = tokens - first < 32 ? tokens - first : 32;
        if (bits == ~0u) continue;
        for (uint32_t i = 0; i < end; i++)
            if (!(bits >> i & 1)) work[first + i] = -INFINITY;
    }
}

static void apply_penalties(const struct sample_slot *slot, float *work, uint32_t tokens)
{
    float repetition = slot->open.repetition_penalty, frequency = slot->open.frequency_penalty;
    float presence = slot->open.presence_penalty;

    for (uint32_t id = 0; id < tokens; id++) {
        uint32_t count = slot->seen[id] & SEEN_COUNT_MAX;
        if (!slot->seen[id]) continue;
        work[id] = work[id] > 0 ? work[id] / repetition : work[id] * repetition;
        if (count) work[id] -= frequency * (float)count + presence;
    }
}

static void change_logits(const struct sample_row *row, const struct sample_slot *slot, float *work)
{
    memcpy(work, row->logits, row->vocab_tokens * sizeof *work);
    if (row->mask) apply_mask(work, row->mask, row->vocab_tokens);
    if (row->position < slot->open.ban_until)
        for (uint32_t i = 0; i < slot->banned_count; i++)
            work[slot->banned[i]] = -INFINITY; /* room: vocab_rows */
    for (uint32_t i = 0; i < slot->bias_count; i++)
        work[slot->biases[i].id] += slot->biases[i].bias;
    if (slot->seen_used) apply_penalties(slot, work, row->vocab_tokens);
}

/* --- filters: a threshold on rank_key of z = (logit - max) / temperature --- */

static uint32_t bin_of(float z)
{
    float bin = z * (-1 / BIN_WIDTH);

    return bin < BINS - 1 ? (uint32_t)bin : BINS - 1;
}

/* The kept tokens of one bin as a heap, likeliest on top. */
static uint32_t gather_bin(const float *z, uint32_t tokens, uint64_t threshold, uint32_t bin,
                           uint64_t *heap)
{
    uint32_t count = 0;

    for (uint32_t id = 0; id < tokens; id++)
        if (z[id] > -INFINITY && bin_of(z[id]) == bin && rank_key(z[id], id) >= threshold)
            heap[count++] = rank_key(z[id], id);
    heapify(heap, count, 0);
    return count;
}

/* Walks the likeliest first until `amount` is reached (tokens, or mass where p is given); returns the key of the one that
 * reaches it, or `threshold` where all together do not. */
static uint64_t raise_threshold(const float *z, const float *p, uint32_t tokens, double amount,
                                uint64_t threshold, uint64_t *heap)
{
    double bins[BINS] = {0}, sum = 0;
    uint32_t bin = 0, count;

    for (uint32_t id = 0; id < tokens; id++)
        if (z[id] > -INFINITY && rank_key(z[id], id) >= threshold)
            bins[bin_of(z[id])] += p ? (double)p[id] : 1;
    while (bin < BINS - 1 && sum + bins[bin] < amount)
        sum += bins[bin++];
    count = gather_bin(z, tokens, threshold, bin, heap);
    while (count) {
        uint64_t key = heap[0];
        sum += p ? (double)p[key_id(key)] : 1;
        if (sum >= amount) return key;
        heap[0] = heap[--count];
        sift_down(heap, count, 0, 0);
    }
    return threshold;
}

static double kept_mass(const float *z, const float *p, uint32_t tokens, uint64_t threshold)
{
    double sum = 0;

    for (uint32_t id = 0; id < tokens; id++)
        if (rank_key(z[id], id) >= threshold) sum += (double)p[id];
    return sum;
}

static uint64_t find_threshold(const struct step_open *o, const float *z, const float *p,
                               uint32_t tokens, uint64_t *heap)
{
    uint64_t threshold = 0;

    if (o->min_p > 0) threshold = rank_key(logf(o->min_p), UINT32_MAX);
    if (o->top_k > 0 && (uint32_t)o->top_k < tokens)
        threshold = raise_threshold(z, NULL, tokens, o->top_k, threshold, heap);
    if (o->top_p < 1)
        threshold = raise_threshold(
            z, p, tokens, (double)o->top_p * kept_mass(z, p, tokens, threshold), threshold, heap);
    return threshold;
}

/* --- the draw --- */

static double draw_unit(uint64_t seed, uint32_t position)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, counter[4] = {position}, out[4];

    hash_philox4x32(key, counter, out);
    return (out[0] + 0.5) * 0x1p-32;
}

/* The first kept token, by id, whose running sum exceeds u * total. */
static uint32_t draw(const float *z, const float *p, uint32_t tokens, uint64_t threshold, double u)
{
    double total = kept_mass(z, p, tokens, threshold), sum = 0;
    uint32_t last = 0;

    for (uint32_t id = 0; id < tokens; id++) {
        if (p[id] == 0 || rank_key(z[id], id) < threshold) continue;
        sum += (double)p[id];
        last = id;
        if (sum > u * total) return id;
    }
    return last;
}

static uint32_t first_of(const float *x, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++)
        if (x[i] == value) return i;
    return 0;
}

/* Draws from scratch->work, whose largest value is `top`. */
static uint32_t choose(const struct sample_row *row, const struct sample_slot *slot,
                       struct sample_scratch *s, float top)
{
    const struct step_open *o = &slot->open;
    uint32_t tokens = row->vocab_tokens;

    if (o->temperature < 1e-5f) return first_of(s->work, tokens, top);
    row->kernels->exp_store(s->work, tokens, top, 1 / o->temperature, s->weights);
    for (uint32_t id = 0; id < tokens; id++)
        s->work[id] = (s->work[id] - top) * (1 / o->temperature);
    return draw(s->work, s->weights, tokens,
                find_threshold(o, s->work, s->weights, tokens, s->heap),
                draw_unit(o->seed, row->position));
}

static void log_probabilities(const struct sample_row *row, const struct sample_slot *slot,
                              struct sample_scratch *scratch, float top, struct step_output *out,
                              struct top_logprob *tops)
{
    bool wanted = slot->open.want_logprobs || row->target >= 0;
    double log_total;

    if (!wanted && !slot->open.top_logprobs) return;
    log_total = (double)top + log(row->kernels->exp_sum(row->logits, row->vocab_rows, top));
    if (wanted) out->logprob = (float)((double)row->logits[out->token] - log_total);
    out->top_count =
        (uint8_t)top_tokens(row, slot->open.top_logprobs, log_total, scratch->heap, tops);
}

static bool finite_in(const float *work, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (isnan(work[i]) || work[i] == INFINITY) return false;
    return true;
}

void sample_row(const struct sample_row *row, struct sample_slot *slot,
                struct sample_scratch *scratch, struct step_output *out, struct top_logprob *tops)
{
    bool finite;
    float raw_top = row->kernels->max_finite(row->logits, row->vocab_rows, &finite);

    *out = (struct step_output){.token = row->target >= 0 ? row->target : 0};
    if (!finite) {
        out->flags = OUTPUT_BAD_LOGITS;
        return;
    }
    if (row->target < 0) {
        bool same; /* banned tokens are infinite now: the flag says nothing */
        change_logits(row, slot, scratch->work);
        float top = row->kernels->max_finite(scratch->work, row->vocab_tokens, &same);
        if (top == -INFINITY || (!same && !finite_in(scratch->work, row->vocab_tokens))) {
            out->flags = OUTPUT_BAD_LOGITS;
            return;
        }
        out->token = (int32_t)choose(row, slot, scratch, top);
        if (slot->seen_used) count_sampled(slot, out->token);
    }
    log_probabilities(row, slot, scratch, raw_top, out, tops);
}
