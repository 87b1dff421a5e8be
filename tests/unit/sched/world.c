#include "world.h"

#include <math.h>
#include <stdlib.h>

#include "base/hash.h"

enum { FLIGHTS = 2, VOCAB = 50000 };

struct run {
    struct world *w;
    struct sched *sched;
    struct step *step;
    struct sched_step flights[FLIGHTS];
    double ends_s[FLIGHTS]; /* when the device has done the step */
    uint64_t planned, done;
    uint32_t left; /* visits that have not ended */
    uint32_t waiting, starts;
    uint64_t waiting_tokens;
    double pace, pace_since_s; /* of starts, as the engine measures it */
};

void world_init(struct world *world)
{
    *world = (struct world){.slots = 32,
                            .rows = 512,
                            .blocks = 4096,
                            .context = 4096,
                            .step_s = 0.008,
                            .row_s = 20e-6,
                            .pair_s = 1e-9};
}

static int64_t ns(double s)
{
    return (int64_t)(s * 1e9) + 1;
}

static void predict(struct run *run, struct visit *v)
{
    struct forecast f = sched_forecast(run->sched);

    if (f.ready)
        v->predicted_s =
            v->at_s + 1e-9 * (double)forecast_first_token(&f, run->waiting, run->waiting_tokens,
                                                          v->prompt_count, 0, run->pace);
}

static void arrive(struct run *run, struct visit *v, uint32_t number)
{
    int32_t *prompt = malloc(v->prompt_count * sizeof *prompt);
    int32_t *sampled = malloc(v->max_new * sizeof *sampled);
    struct error err;

    for (uint32_t i = 0; i < v->prompt_count; i++) {
        uint64_t key = v->text && i < v->alike ? v->text * 1000003ull : (number + 1ull) << 32;
        prompt[i] = (int32_t)(hash_mix64(key + i) % VOCAB);
    }
    v->seq = (struct sequence){.prompt = prompt,
                               .prompt_count = v->prompt_count,
                               .max_new = v->max_new,
                               .sampled = sampled,
                               .open = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
                               .priority = v->priority,
                               .tenant = run->w->one_tenant ? 0 : v->tenant,
                               .salt = v->tenant,
                               .owner = v};
    EXPECT_OK_ERR(sched_fits(run->sched, &v->seq, &err), &err);
    predict(run, v);
    sched_add(run->sched, &v->seq, ns(v->at_s));
    run->waiting++;
    run->waiting_tokens += v->prompt_count;
}

static void note_started(struct run *run, const struct sched_step *flight, double now_s)
{
    for (uint32_t i = 0; i < flight->entry_count; i++) {
        struct visit *v = flight->entries[i].seq->owner;

        if (v->started) continue;
        v->started = true;
        run->waiting--;
        run->starts++;
        run->waiting_tokens -= v->prompt_count;
    }
    if (now_s - run->pace_since_s < 0.25) return;
    double pace = run->starts / (now_s - run->pace_since_s);
    run->pace = run->pace > 0 ? 0.7 * run->pace + 0.3 * pace : pace;
    run->pace_since_s = now_s;
    run->starts = 0;
}

static void reap(struct run *run)
{
    struct sequence *seq;

    while ((seq = sched_reap(run->sched))) {
        free((void *)(uintptr_t)seq->prompt);
        free(seq->sampled);
        run->left--;
    }
}

static void finish_step(struct run *run, double now_s)
{
    struct sched_step *flight = &run->flights[(run->done + 1) % FLIGHTS];
    struct world *w = run->w;

    for (uint32_t i = 0; i < flight->entry_count; i++) {
        struct sequence *seq = flight->entries[i].seq;
        struct visit *v = seq->owner;

        if (!flight->entries[i].samples || seq->sampled_known == seq->max_new) continue;
        sequence_append(seq, 7);
        if (v->first_s == 0) v->first_s = now_s;
        v->end_s = now_s;
        if (seq->sampled_known == seq->max_new) sched_end(run->sched, seq);
    }
    run->done++;
    w->flood_ends += w->floods && !sched_counts(run->sched).flooding;
    w->floods = sched_counts(run->sched).flooding > 0;
    sched_observe(run->sched, flight,
                  ns(w->step_s + w->row_s * flight->row_count + w->pair_s * (double)flight->pairs));
    sched_step_done(run->sched, run->done);
    reap(run);
    if (w->check_every && run->done % w->check_every == 0) sched_check(run->sched);
}

/* `flight` was planned while another step ran. */
static void note_ahead(struct world *w, const struct sched_step *flight)
{
    uint64_t tenant = flight->entries[0].seq->tenant;

    if (!w->floods) return;

    for (uint32_t i = 1; i < flight->entry_count; i++)
        if (flight->entries[i].seq->tenant != tenant) return;
    w->ahead_alone[tenant % 8]++;
}

static bool plan_step(struct run *run, double now_s)
{
    struct world *w = run->w;
    struct sched_step *flight = &run->flights[(run->planned + 1) % FLIGHTS];
    double start_s = run->planned > run->done ? run->ends_s[run->planned % FLIGHTS] : now_s;

    if (run->planned - run->done == FLIGHTS ||
        !sched_plan(run->sched, run->planned + 1, ns(now_s), run->step, flight))
        return false;
    if (run->planned > run->done) note_ahead(w, flight);
    run->planned++;
    note_started(run, flight, now_s);
    run->ends_s[run->planned % FLIGHTS] =
        start_s + w->step_s + w->row_s * flight->row_count + w->pair_s * (double)flight->pairs;
    return true;
}

/* The next thing that happens: a step ends or a request arrives; the engine plans after each. */
static void drive(struct run *run, struct visit *visits, uint32_t count)
{
    uint32_t next = 0;
    double now_s = 0;

    while (run->left) {
        bool busy = run->planned > run->done;
        double step_end_s = busy ? run->ends_s[(run->done + 1) % FLIGHTS] : INFINITY;

        if (next < count && visits[next].at_s <= step_end_s) {
            now_s = visits[next].at_s;
            arrive(run, &visits[next], next);
            next++;
        } else {
            EXPECT_TRUE(busy); /* else something waits, nothing runs, and nothing comes */
            now_s = step_end_s;
            finish_step(run, now_s);
        }
        while (plan_step(run, now_s))
            ;
    }
    run->w->end_s = now_s;
}

void world_run(struct world *w, struct visit *visits, uint32_t count)
{
    struct plan plan = {.vocab_rows = VOCAB, .vocab_tokens = VOCAB, .group_count = 1};
    struct device_limits limits = {.slots_max = w->slots,
                                   .rows_max = w->rows,
                                   .logits_max = w->slots,
                                   .steps_inflight = FLIGHTS,
                                   .context_tokens = w->context,
                                   .kv_blocks = {w->blocks}};
    struct run run = {.w = w, .left = count};
    struct error err;

    plan.groups[0].block_tokens = 16;
    w->options.max_num_seqs = w->slots;
    w->options.max_num_batched_tokens = w->rows;
    EXPECT_OK_ERR(sched_create(&w->options, &plan, &limits, &run.sched, &err), &err);
    void *memory = aligned_alloc(64, (step_bytes(&plan, &limits) + 63) / 64 * 64);
    run.step = step_init(memory, &plan, &limits);
    for (int i = 0; i < FLIGHTS; i++)
        run.flights[i].entries = calloc(w->slots, sizeof *run.flights[i].entries);
    for (uint32_t i = 0; i < count; i++)
        visits[i].first_s = visits[i].end_s = visits[i].predicted_s = visits[i].started = 0;
    drive(&run, visits, count);
    w->steps = run.done;
    w->counts = sched_counts(run.sched);
    w->waste = (double)w->counts.kv_wasted_ns / (double)w->counts.kv_held_ns;
    memcpy(w->fired, sched_window(run.sched)->fired, sizeof w->fired);
    for (int i = 0; i < FLIGHTS; i++)
        free(run.flights[i].entries);
    free(memory);
    sched_destroy(run.sched);
}

static uint32_t between(uint32_t low, uint32_t high)
{
    return low + test_rand_below(high - low + 1);
}

uint32_t world_poisson(struct visit *visits, uint32_t room, double rate, double start_s,
                       double seconds, uint32_t prompt_min, uint32_t prompt_max, uint32_t new_min,
                       uint32_t new_max, uint64_t tenant)
{
    uint32_t count = 0;

    for (double at = start_s;;) {
        at -= log(1 - test_rand_unit()) / rate;
        if (at >= start_s + seconds) return count;
        EXPECT_TRUE(count < room);
        visits[count++] = (struct visit){.at_s = at,
                                         .prompt_count = between(prompt_min, prompt_max),
                                         .max_new = between(new_min, new_max),
                                         .tenant = tenant};
    }
}

static int by_time(const void *a, const void *b)
{
    const struct visit *x = a, *y = b;

    return x->at_s < y->at_s ? -1 : x->at_s > y->at_s;
}

void world_sort(struct visit *visits, uint32_t count)
{
    qsort(visits, count, sizeof *visits, by_time);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double world_ttft(const struct visit *visits, uint32_t count, uint64_t tenant, double q)
{
    double *times = malloc((count + 1) * sizeof *times), value;
    uint32_t n = 0;

    for (uint32_t i = 0; i < count; i++)
        if (tenant == UINT64_MAX || visits[i].tenant == tenant)
            times[n++] = visits[i].first_s - visits[i].at_s;
    EXPECT_TRUE(n > 0);
    qsort(times, n, sizeof *times, by_value);
    value = times[(uint32_t)(q * (n - 1))];
    free(times);
    return value;
}
