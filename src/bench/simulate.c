#include "bench/simulate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/sim_queue.h"
#include "sched/sched.h"

enum {
    DEPTH = 2,               /* steps in flight, as in engine/ */
    SWEEP_NS = 20000000,     /* how often engine/ looks again while some wait */
    LOGITS_ROWS_MIN = 64,    /* as in planner/ */
    CALIBRATION_DECODES = 4, /* as in engine/calibrate.c */
    CALIBRATION_STEPS = 32,
    TOKEN_MASK = 0xffff, /* made-up ids */
};
#define NEVER INT64_MAX

struct sim_seq {
    struct sequence seq; /* first */
    struct sim_seq *next_pending;
    int64_t arrived_ns, submitted_ns, first_ns, last_ns;
    uint32_t index;  /* in the trace */
    uint32_t tokens; /* seen */
    struct sim_entry entry;
    bool started; /* has left the queue */
};

struct sim_flight {
    struct step *step;
    struct sched_step planned;
    int64_t end_ns, step_ns;
};

struct replica {
    struct sched *sched;
    void *step_memory;
    struct sched_entry *entries;
    struct sim_flight flights[DEPTH];
    uint64_t planned_seq_no, done_seq_no;
    int64_t device_free_ns, wake_ns;
    uint64_t load_tokens; /* still to compute, of all that it has */
    struct sim_queue queue;
    double busy_ns;
    struct sim_seq *first_pending, *last_pending; /* arrived, not yet submitted (request_ns) */
};

struct sim {
    const struct sim_options *o;
    struct plan plan;
    struct device_limits limits;
    struct replica *replicas;
    uint32_t next_replica;
    struct sim_result *out;
    int64_t last_ns;
    enum status status;
};

/* --- making ---------------------------------------------------------------------------------------------------- */

static void set_limits(struct sim *s, const struct trace *trace)
{
    const struct sim_options *o = s->o;
    uint32_t context = 1;

    for (uint32_t i = 0; i < trace->count; i++) {
        uint32_t tokens = trace->items[i].prompt_tokens + trace->items[i].max_tokens;
        if (tokens > context) context = tokens;
    }
    if (context > o->device.max_model_len) context = o->device.max_model_len;
    s->plan = (struct plan){.vocab_rows = TOKEN_MASK + 1,
                            .vocab_tokens = TOKEN_MASK + 1,
                            .group_count = 1,
                            .context_tokens = context};
    s->plan.groups[0].block_tokens = o->device.block_tokens;
    s->limits = (struct device_limits){
        .slots_max = o->max_num_seqs,
        .rows_max = o->max_num_batched_tokens > o->max_num_seqs ? o->max_num_batched_tokens
                                                                : o->max_num_seqs,
        .logits_max = o->max_num_seqs > LOGITS_ROWS_MIN ? o->max_num_seqs : LOGITS_ROWS_MIN,
        .steps_inflight = DEPTH,
        .context_tokens = context,
        .kv_blocks = {o->device.kv_tokens / o->device.block_tokens},
    };
    if (s->limits.logits_max > s->limits.rows_max) s->limits.logits_max = s->limits.rows_max;
}

/* What engine/calibrate.c does before the first request: the cost model sees prompts of three lengths, each with decoding rows after it. */
static void calibrate(const struct sim *s, struct sched *sched)
{
    uint32_t most = s->limits.rows_max;

    if (most + CALIBRATION_DECODES > s->limits.context_tokens)
        most = s->limits.context_tokens > CALIBRATION_DECODES
                   ? s->limits.context_tokens - CALIBRATION_DECODES
                   : 1;
    for (uint32_t kind = 0; sched_cost_model(sched)->observed < CALIBRATION_STEPS;
         kind = (kind + 1) % 3) {
        uint32_t prompt = kind == 0 ? most / 16 + 1 : kind == 1 ? most / 4 + 1 : most;

        for (uint32_t i = 0; i <= CALIBRATION_DECODES; i++) {
            uint32_t context = i ? prompt + i - 1 : 0, rows = i ? 1 : prompt;
            struct device_work work = {.rows = rows,
                                       .outputs = 1,
                                       .kv_tokens = context + rows,
                                       .pairs = cost_pairs(context, rows)};
            struct sched_step step = {.row_count = rows, .pairs = work.pairs};

            sched_observe(sched, &step, device_model_step_ns(&s->o->device, &work));
        }
    }
}

static enum status make_replica(struct sim *s, struct replica *r, struct error *err)
{
    const struct sim_options *o = s->o;
    size_t bytes = (step_bytes(&s->plan, &s->limits) + 63) / 64 * 64;
    struct sched_options options = {
        .max_num_seqs = o->max_num_seqs,
        .max_num_batched_tokens = s->limits.rows_max,
        .share_prefixes = !o->no_prefix_sharing,
        .max_wait_ns = (int64_t)(o->max_batch_wait_ms * 1e6),
        .fixed_window = o->fixed_window,
        .target_throughput = o->target_throughput,
        .max_step_ns = (int64_t)(o->max_itl_ms * 1e6),
        .class_age_ns = (int64_t)(o->class_age_ms * 1e6),
    };

    r->wake_ns = NEVER;
    r->queue = (struct sim_queue){.seqs_max = o->queue_seqs_max,
                                  .tokens_max = o->queue_tokens_max,
                                  .ttft_limit_ns = (int64_t)(o->max_ttft_ms * 1e6)};
    forecast_margin_init(&r->queue.margin);
    r->step_memory = aligned_alloc(64, bytes * DEPTH);
    r->entries = calloc((size_t)o->max_num_seqs * DEPTH, sizeof *r->entries);
    if (!r->step_memory || !r->entries)
        return error_set(err, STATUS_NOMEM, "no memory for the steps of a replica");
    memset(r->step_memory, 0, bytes * DEPTH);
    for (uint32_t i = 0; i < DEPTH; i++) {
        r->flights[i].step = step_init((char *)r->step_memory + i * bytes, &s->plan, &s->limits);
        r->flights[i].planned.entries = r->entries + (size_t)i * o->max_num_seqs;
    }
    enum status st = sched_create(&options, &s->plan, &s->limits, &r->sched, err);
    if (!st && o->calibrates) calibrate(s, r->sched);
    return st;
}

/* Prompt and room for the answer behind the struct. The shared beginning depends on the id only, the rest is nobody else's. */
static struct sim_seq *make_seq(const struct trace_item *item, uint32_t index, int64_t now_ns)
{
    size_t ids = (size_t)item->prompt_tokens + item->max_tokens;
    struct sim_seq *q = malloc(sizeof *q + ids * sizeof(int32_t));
    int32_t *prompt = (int32_t *)(q + 1);
    uint64_t prefix = hash_mix64(item->prefix_id), own = hash_mix64(((uint64_t)index + 1) << 20);

    if (!q) return NULL;
    for (uint32_t i = 0; i < item->prefix_tokens; i++)
        prompt[i] = (int32_t)((prefix >> (i % 32)) + i * 7) & TOKEN_MASK;
    for (uint32_t i = item->prefix_tokens; i < item->prompt_tokens; i++)
        prompt[i] = (int32_t)((own >> (i % 32)) + i * 11) & TOKEN_MASK;
    *q = (struct sim_seq){.arrived_ns = now_ns,
                          .index = index,
                          .entry = {.key = item->key,
                                    .prompt.tokens = item->prompt_tokens,
                                    .class = sequence_class_of(item->max_tokens)}};
    q->seq = (struct sequence){.prompt = prompt,
                               .prompt_count = item->prompt_tokens,
                               .max_new = item->max_tokens,
                               .sampled = prompt + item->prompt_tokens,
                               .priority = item->priority,
                               .tenant = item->key,
                               .open = {.repetition_penalty = 1}};
    return q;
}

/* --- arrivals --------------------------------------------------------------------------------------------------- */

static void submit(struct sim *s, struct replica *r, struct sim_seq *q, int64_t now_ns)
{
    struct forecast forecast = sched_forecast(r->sched);
    struct error err;

    if (sched_fits(r->sched, &q->seq, &err)) {
        s->out->too_large++;
        s->out->requests[q->index].fate = SIM_TOO_LARGE;
    } else {
        q->entry.prompt.cached = sched_guess_cached(r->sched, &q->seq, false);
        switch (sim_queue_take(&r->queue, &forecast, &q->entry)) {
        case SIM_TAKEN: sched_add(r->sched, &q->seq, now_ns); return;
        case SIM_FULL: s->out->refused++; break;
        case SIM_LATE: s->out->refused_late++; break;
        }
    }
    r->load_tokens -= q->seq.prompt_count + q->seq.max_new;
    free(q);
}

static void take_pending(struct sim *s, struct replica *r, int64_t now_ns)
{
    while (r->first_pending && r->first_pending->submitted_ns <= now_ns) {
        struct sim_seq *q = r->first_pending;
        r->first_pending = q->next_pending;
        if (!r->first_pending) r->last_pending = NULL;
        submit(s, r, q, now_ns);
    }
}

static struct replica *route(struct sim *s)
{
    struct replica *best = &s->replicas[0];

    if (s->o->router == ROUTE_ROUND_ROBIN) return &s->replicas[s->next_replica++ % s->o->replicas];
    for (uint32_t i = 1; i < s->o->replicas; i++)
        if (s->replicas[i].load_tokens < best->load_tokens) best = &s->replicas[i];
    return best;
}

static void arrive(struct sim *s, const struct trace_item *item, uint32_t index, int64_t now_ns)
{
    struct replica *r = route(s);
    struct sim_seq *q = make_seq(item, index, now_ns);

    if (!q) {
        s->status = STATUS_NOMEM;
        return;
    }
    r->load_tokens += item->prompt_tokens + item->max_tokens;
    q->submitted_ns = now_ns + (int64_t)s->o->device.request_ns;
    if (r->last_pending)
        r->last_pending->next_pending = q;
    else
        r->first_pending = q;
    r->last_pending = q;
}

/* --- steps ------------------------------------------------------------------------------------------------------- */

static bool meets(const struct report_slo *slo, double ttft, double tpot, double e2el)
{
    return (!slo->ms[REPORT_TTFT] || ttft <= slo->ms[REPORT_TTFT]) &&
           (!slo->ms[REPORT_TPOT] || tpot <= slo->ms[REPORT_TPOT]) &&
           (!slo->ms[REPORT_E2EL] || e2el <= slo->ms[REPORT_E2EL]);
}

static void count_finished(struct sim *s, const struct sim_seq *q)
{
    struct sim_result *out = s->out;
    double ttft = (double)(q->first_ns - q->arrived_ns) * 1e-6,
           e2el = (double)(q->last_ns - q->arrived_ns) * 1e-6;
    double tpot = q->tokens > 1 ? (e2el - ttft) / (q->tokens - 1) : 0;

    out->completed++;
    out->requests[q->index] = (struct sim_request){SIM_DONE, ttft, e2el};
    out->input_tokens += q->seq.prompt_count;
    out->cached_tokens += q->seq.cached;
    out->output_tokens += q->tokens;
    out->good += meets(&s->o->slo, ttft, tpot, e2el);
    if (samples_add(&out->ms[REPORT_TTFT], ttft) || samples_add(&out->ms[REPORT_E2EL], e2el) ||
        (q->tokens > 1 && samples_add(&out->ms[REPORT_TPOT], tpot)))
        s->status = STATUS_NOMEM;
    if (q->entry.key < SIM_KEYS && samples_add(&out->key_ttft_ms[q->entry.key], ttft))
        s->status = STATUS_NOMEM;
    if (q->last_ns > s->last_ns) s->last_ns = q->last_ns;
}

static void token_seen(struct sim *s, struct replica *r, struct sim_seq *q, int64_t seen_ns)
{
    sequence_append(&q->seq, (int32_t)(q->tokens * 13 & TOKEN_MASK));
    if (q->tokens++ == 0) {
        q->first_ns = seen_ns;
        sim_queue_first_token(&r->queue, &q->entry, seen_ns - q->submitted_ns);
    } else {
        log_histogram_add(s->out->itl_ms, (double)(seen_ns - q->last_ns) * 1e-6);
    }
    q->last_ns = seen_ns;
    if (q->tokens == q->seq.max_new) {
        count_finished(s, q);
        sched_end(r->sched, &q->seq);
    }
}

/* The step in flight that ends first has ended. */
static void finish_step(struct sim *s, struct replica *r)
{
    struct sim_flight *f = &r->flights[(r->done_seq_no + 1) % DEPTH];
    int64_t seen_ns = f->end_ns + (int64_t)s->o->device.reply_ns;
    struct sequence *gone;

    for (uint32_t i = 0; i < f->planned.entry_count; i++) {
        const struct sched_entry *entry = &f->planned.entries[i];
        r->load_tokens -= entry->samples;
        if (entry->samples) token_seen(s, r, (struct sim_seq *)entry->seq, seen_ns);
    }
    sched_observe(r->sched, &f->planned, f->step_ns);
    sched_step_done(r->sched, ++r->done_seq_no);
    while ((gone = sched_reap(r->sched)))
        free(gone);
}

/* What the step asks of the device. */
static struct device_work note_entries(struct replica *r, const struct sched_step *planned)
{
    struct device_work work = {.rows = planned->row_count, .pairs = planned->pairs};

    for (uint32_t i = 0; i < planned->entry_count; i++) {
        const struct sched_entry *entry = &planned->entries[i];
        struct sim_seq *q = (struct sim_seq *)entry->seq;

        if (!q->started) {
            q->started = true;
            sim_queue_leave(&r->queue, &q->entry);
            r->load_tokens -= q->seq.prompt_count; /* what is in its steps now is soon done */
        }
        work.outputs += entry->samples;
        work.kv_tokens += q->seq.computed;
    }
    return work;
}

static bool plan_step(struct sim *s, struct replica *r, int64_t now_ns)
{
    const struct device_model *d = &s->o->device;
    struct sim_flight *f = &r->flights[(r->planned_seq_no + 1) % DEPTH];
    struct device_work work;
    int64_t start_ns, step_ns;

    if (!sched_plan(r->sched, r->planned_seq_no + 1, now_ns, f->step, &f->planned)) return false;
    r->planned_seq_no++;
    work = note_entries(r, &f->planned);
    start_ns = now_ns + (int64_t)(d->host_ns + d->host_seq_ns * f->planned.entry_count);
    if (start_ns < r->device_free_ns) start_ns = r->device_free_ns;
    work.idle_ns = (double)(start_ns - r->device_free_ns);
    step_ns = (int64_t)((double)device_model_step_ns(d, &work) *
                        device_model_luck(d, device_work_kind(&work), s->out->steps));
    f->end_ns = r->device_free_ns = start_ns + step_ns;
    f->step_ns = step_ns;
    r->busy_ns += (double)step_ns;
    s->out->steps++;
    s->out->sequence_steps += f->planned.entry_count;
    s->out->step_rows += f->planned.row_count;
    return true;
}

/* --- the clock --------------------------------------------------------------------------------------------------- */

static int64_t next_event(const struct replica *r)
{
    int64_t at = r->wake_ns;

    if (r->planned_seq_no > r->done_seq_no) {
        int64_t end = r->flights[(r->done_seq_no + 1) % DEPTH].end_ns;
        if (end < at) at = end;
    }
    if (r->first_pending && r->first_pending->submitted_ns < at)
        at = r->first_pending->submitted_ns;
    return at;
}

/* One turn of the engine's thread. */
static void turn(struct sim *s, struct replica *r, int64_t now_ns)
{
    take_pending(s, r, now_ns);
    while (r->planned_seq_no > r->done_seq_no &&
           r->flights[(r->done_seq_no + 1) % DEPTH].end_ns <= now_ns)
        finish_step(s, r);
    while (r->planned_seq_no - r->done_seq_no < DEPTH && plan_step(s, r, now_ns))
        ;
    sim_queue_pace(&r->queue, now_ns, r->queue.seqs > 0);
    r->wake_ns = r->queue.seqs ? now_ns + SWEEP_NS : NEVER;
    int64_t opens_ns = sched_opens_ns(r->sched);
    if (opens_ns < r->wake_ns) r->wake_ns = opens_ns > now_ns ? opens_ns : now_ns + SWEEP_NS;
}

static void advance(struct sim *s, int64_t until_ns)
{
    for (uint32_t i = 0; i < s->o->replicas; i++) {
        struct replica *r = &s->replicas[i];
        for (int64_t at = next_event(r); at <= until_ns && at != NEVER && !s->status;
             at = next_event(r))
            turn(s, r, at);
    }
}

static void run(struct sim *s, const struct trace *trace)
{
    for (uint32_t i = 0; i < trace->count && !s->status; i++) {
        int64_t now_ns = (int64_t)(trace->items[i].arrival_s / s->o->speed * 1e9) + 1;
        advance(s, now_ns - 1); /* those that come together are seen together */
        arrive(s, &trace->items[i], i, now_ns);
    }
    advance(s, NEVER - 1);
}

/* Of this thread, so that other programs do not change it. */
static uint64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* --- the end ----------------------------------------------------------------------------------------------------- */

static void sum_up(struct sim *s, int64_t first_ns)
{
    struct sim_result *out = s->out;
    double busy = 0, held = 0, wasted = 0, span_ns = (double)(s->last_ns - first_ns);

    for (uint32_t i = 0; i < s->o->replicas; i++) {
        struct sched_counts counts = sched_counts(s->replicas[i].sched);
        out->preemptions += counts.preemptions;
        out->recomputed_tokens += counts.recomputed_tokens;
        out->prefix_evictions += counts.prefix_evictions;
        busy += s->replicas[i].busy_ns;
        held += (double)counts.kv_held_ns;
        wasted += (double)counts.kv_wasted_ns;
    }
    out->seconds = span_ns > 0 ? span_ns * 1e-9 : 0;
    out->busy = span_ns > 0 ? busy / span_ns / s->o->replicas : 0;
    out->waste = held > 0 ? wasted / held : 0;
}

static void free_replica(struct replica *r)
{
    sched_destroy(r->sched);
    free(r->step_memory);
    free(r->entries);
}

enum status simulate(const struct sim_options *options, const struct trace *trace,
                     struct sim_result *out, struct error *err)
{
    struct sim s = {.o = options, .out = out};
    uint64_t began_ns = cpu_ns(), run_ns;
    enum status st = STATUS_OK;

    *out = (struct sim_result){0};
    set_limits(&s, trace);
    s.replicas = calloc(options->replicas, sizeof *s.replicas);
    out->itl_ms = calloc(1, sizeof *out->itl_ms);
    out->requests = calloc((size_t)trace->count + 1, sizeof *out->requests);
    if (!s.replicas || !out->itl_ms || !out->requests)
        st = error_set(err, STATUS_NOMEM, "no memory for %u replicas", options->replicas);
    for (uint32_t i = 0; !st && i < options->replicas; i++)
        st = make_replica(&s, &s.replicas[i], err);
    if (!st) {
        run_ns = cpu_ns();
        run(&s, trace);
        out->cpu_ns = cpu_ns() - run_ns;
        st = s.status ? error_set(err, s.status, "no memory for the simulation") : STATUS_OK;
    }
    if (!st && trace->count)
        sum_up(&s, (int64_t)(trace->items[0].arrival_s / options->speed * 1e9));
    for (uint32_t i = 0; s.replicas && i < options->replicas && !s.status; i++)
        free_replica(&s.replicas[i]);
    free(s.replicas);
    out->around_ns = cpu_ns() - began_ns - out->cpu_ns;
    return st;
}

void sim_result_fini(struct sim_result *result)
{
    for (int m = 0; m < REPORT_METRICS; m++)
        samples_fini(&result->ms[m]);
    for (int k = 0; k < SIM_KEYS; k++)
        samples_fini(&result->key_ttft_ms[k]);
    free(result->itl_ms);
    free(result->requests);
    result->itl_ms = NULL;
    result->requests = NULL;
}
