#include "device/cpu/cpu_sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"

enum { BINS = 1024, SUM_RUN = 256, TOP_K_HEAP = 256 };
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

/* The `count` likeliest of n as a heap, the least likely on top. */
static void select_top(const struct sample_row *row, const float *x, uint32_t n, uint32_t count,
                       uint64_t *heap)
{
    float least;

    for (uint32_t id = 0; id < count; id++)
        heap[id] = rank_key(x[id], id);
    heapify(heap, count, ~(uint64_t)0);
    for (uint32_t id = count; id < n; id++) {
        /* an equal one with a larger id ranks below, so only a larger one comes in */
        least = nextafterf(x[key_id(heap[0])], INFINITY);
        id = row->kernels->find(x, id, n, least);
        if (id == n) return;
        heap[0] = rank_key(x[id], id);
        sift_down(heap, count, 0, ~(uint64_t)0);
    }
}

/* The n likeliest tokens, likeliest first; log_total: log of the sum of exp(logit). */
static uint32_t top_tokens(const struct sample_row *row, uint32_t n, double log_total,
                           uint64_t *heap, struct top_logprob *tops)
{
    uint32_t count = n < row->vocab_tokens ? n : row->vocab_tokens;

    if (!count) return 0;
    select_top(row, row->logits, row->vocab_tokens, count, heap);
    for (uint32_t left = count; left > 0; left--) { /* the least likely goes last */
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

/* --- candidates: the tokens that the filters may keep --- */

struct candidates {
    uint32_t count;
    uint32_t *ids; /* ascending */
    float *z, *p;  /* (logit - largest) / temperature, exp(z) */
    double mass;   /* of all that min_p and top_k keep, candidate or not */
};

static void ids_of_heap(const uint64_t *heap, uint32_t count, uint64_t *sorted, uint32_t *ids)
{
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = key_id(heap[i]);
    heapify(sorted, count, 0);
    for (uint32_t left = count; left > 0; left--) { /* the largest id goes last */
        ids[left - 1] = (uint32_t)sorted[0];
        sorted[0] = sorted[left - 1];
        sift_down(sorted, left - 1, 0, 0);
    }
}

/* z and p of the tokens of c->ids. */
static void weigh(const struct sample_row *row, const float *work, float top, float inverse,
                  struct candidates *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        c->z[i] = (work[c->ids[i]] - top) * inverse;
    row->kernels->exp_store(c->z, c->count, 0, 1, c->p);
}

/* Candidates of z >= cut (-INFINITY: all that are not banned). */
static void gather(const struct sample_row *row, const struct sample_scratch *s, float top,
                   float temperature, float cut, struct candidates *c)
{
    float least = cut > -INFINITY ? top + cut * temperature : -FLT_MAX;

    c->count = row->kernels->gather(s->work, row->vocab_tokens, least, c->ids);
    weigh(row, s->work, top, 1 / temperature, c);
}

/* For top_p alone: the likeliest are tried first, and more until they have the mass. Tokens of less than
 * (1 - top_p) / vocabulary of the likeliest one's probability have together less than 1 - top_p of it: the last try has all. */
static void gather_mass(const struct sample_row *row, const struct sample_scratch *s, float top,
                        const struct step_open *o, struct candidates *c)
{
    float bound = logf((1 - o->top_p) / (float)row->vocab_tokens) - 1e-3f;

    c->mass = row->kernels->exp_store(s->work, row->vocab_tokens, top, 1 / o->temperature, NULL);
    for (float cut = -3;; cut -= 3) {
        gather(row, s, top, o->temperature, cut > bound ? cut : bound, c);
        if (cut <= bound || row->kernels->sum(c->p, c->count) >= (double)o->top_p * c->mass) return;
    }
}

static void gather_candidates(const struct sample_row *row, const struct step_open *o,
                              const struct sample_scratch *s, float top, struct candidates *c)
{
    if (o->top_k > 0 && o->top_k <= TOP_K_HEAP && (uint32_t)o->top_k < row->vocab_tokens) {
        c->count = (uint32_t)o->top_k;
        select_top(row, s->work, row->vocab_tokens, c->count, s->heap);
        ids_of_heap(s->heap, c->count, s->heap, c->ids);
        weigh(row, s->work, top, 1 / o->temperature, c);
    } else if (o->min_p > 0) { /* a little more than it keeps: the threshold decides */
        gather(row, s, top, o->temperature, logf(o->min_p) - 1e-3f, c);
    } else if (o->top_k <= 0) {
        gather_mass(row, s, top, o, c);
    } else {
        gather(row, s, top, o->temperature, -INFINITY, c);
    }
}

/* --- filters: a threshold on rank_key(z, id) --- */

static uint32_t bin_of(float z)
{
    float bin = z * (-1 / BIN_WIDTH);

    return bin < BINS - 1 ? (uint32_t)bin : BINS - 1;
}

static uint64_t key_of(const struct candidates *c, uint32_t i)
{
    return rank_key(c->z[i], c->ids[i]);
}

/* The kept candidates of one bin as a heap of (rank_key of z, place in the list), likeliest on top. The list is in order of
 * id, so the place ranks equals as the id does. */
static uint32_t gather_bin(const struct candidates *c, uint64_t threshold, uint32_t bin,
                           uint64_t *heap)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->count; i++)
        if (bin_of(c->z[i]) == bin && key_of(c, i) >= threshold)
            heap[count++] = rank_key(c->z[i], i);
    heapify(heap, count, 0);
    return count;
}

/* Walks the likeliest first until `amount` is reached, of tokens or of mass; returns the key of the one that reaches it,
 * or `threshold` where all together do not. */
static uint64_t raise_threshold(const struct candidates *c, bool by_mass, double amount,
                                uint64_t threshold, uint64_t *heap)
{
    double bins[BINS] = {0}, sum = 0;
    uint32_t bin = 0, count;

    for (uint32_t i = 0; i < c->count; i++)
        if (key_of(c, i) >= threshold) bins[bin_of(c->z[i])] += by_mass ? (double)c->p[i] : 1;
    while (bin < BINS - 1 && sum + bins[bin] < amount)
        sum += bins[bin++];
    count = gather_bin(c, threshold, bin, heap);
    while (count) {
        uint32_t i = key_id(heap[0]);
        sum += by_mass ? (double)c->p[i] : 1;
        if (sum >= amount) return key_of(c, i);
        heap[0] = heap[--count];
        sift_down(heap, count, 0, 0);
    }
    return threshold;
}

static double kept_mass(const struct candidates *c, uint64_t threshold)
{
    double sum = 0;

    for (uint32_t i = 0; i < c->count; i++)
        if (key_of(c, i) >= threshold) sum += (double)c->p[i];
    return sum;
}

static uint64_t find_threshold(const struct step_open *o, const struct candidates *c,
                               uint64_t *heap)
{
    uint64_t threshold = 0;

    if (o->min_p > 0) threshold = rank_key(logf(o->min_p), UINT32_MAX);
    if (o->top_k > 0 && (uint32_t)o->top_k < c->count)
        threshold = raise_threshold(c, false, o->top_k, threshold, heap);
    if (o->top_p < 1) {
        double mass = c->mass >= 0 ? c->mass : kept_mass(c, threshold);
        threshold = raise_threshold(c, true, (double)o->top_p * mass, threshold, heap);
    }
    return threshold;
}

/* --- the draw: the first kept token, by id, whose running sum exceeds u * total --- */

static double draw_unit(uint64_t seed, uint32_t position)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, counter[4] = {position}, out[4];

    hash_philox4x32(key, counter, out);
    return (out[0] + 0.5) * 0x1p-32;
}

static uint32_t draw_kept(const struct candidates *c, uint64_t threshold, double u)
{
    double total = kept_mass(c, threshold), sum = 0;
    uint32_t last = c->ids[0];

    for (uint32_t i = 0; i < c->count; i++) {
        if (c->p[i] == 0 || key_of(c, i) < threshold) continue;
        sum += (double)c->p[i];
        last = c->ids[i];
        if (sum > u * total) break;
    }
    return last;
}

/* Without filters: whole runs are stepped over by their sums. */
static uint32_t draw_all(const struct sample_row *row, const float *p, double total, double u)
{
    uint32_t n = row->vocab_tokens, run = 0, last = 0;
    double sum = 0, next;

    for (; run + SUM_RUN < n; run += SUM_RUN, sum = next) {
        next = sum + row->kernels->sum(p + run, SUM_RUN);
        if (next > u * total) break;
    }
    for (uint32_t id = run; id < n; id++) {
        if (p[id] == 0) continue;
        sum += (double)p[id];
        last = id;
        if (sum > u * total) break;
    }
    return last;
}

static uint32_t first_of(const struct sample_row *row, const float *x, float value)
{
    uint32_t at = row->kernels->find(x, 0, row->vocab_tokens, value);

    return at < row->vocab_tokens ? at : 0;
}

/* Draws from s->work, whose largest value is `top`. */
static uint32_t choose(const struct sample_row *row, const struct sample_slot *slot,
                       struct sample_scratch *s, float top)
{
    const struct step_open *o = &slot->open;
    float inverse = 1 / o->temperature;
    struct candidates c = {0, s->ids, s->z, s->p, -1};

    if (o->temperature < 1e-5f) return first_of(row, s->work, top);
    double u = draw_unit(o->seed, row->position);
    if (o->top_k <= 0 && o->top_p >= 1 && o->min_p <= 0) {
        double total = row->kernels->exp_store(s->work, row->vocab_tokens, top, inverse, s->p);
        return draw_all(row, s->p, total, u);
    }
    gather_candidates(row, o, s, top, &c);
    return draw_kept(&c, find_threshold(o, &c, s->heap), u);
}

static void log_probabilities(const struct sample_row *row, const struct sample_slot *slot,
                              struct sample_scratch *scratch, float top, struct step_output *out,
                              struct top_logprob *tops)
{
    bool wanted = slot->open.want_logprobs || row->target >= 0;
    double log_total;

    if (!wanted && !slot->open.top_logprobs) return;
    log_total =
        (double)top + log(row->kernels->exp_store(row->logits, row->vocab_rows, top, 1, NULL));
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
