/* step_loop.c - the engine thread: one turn after another, asleep when there is nothing to do.
 *
 *   turn:  attention, inbox -> results of finished steps -> what waited for room -> plan and submit -> bells, numbers
 *
 * Results come before planning, so that what they end is not planned again; bells after it, so that the device has its next
 * step first. The thread sleeps on e->wake: submissions, cancellations, the device, and readers of full rings signal it. */
#include <assert.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_state.h"
#include "base/malloc_count.h"
#include "base/wake_soon.h"

enum {
    WAKE_SLICE_US = 200,    /* a turn takes less */
    SWEEP_NS = 20000000,    /* how often deadlines and stalled readers are looked at */
    HEALTH_NS = 1000000000, /* how often a device that says nothing is asked */
    RATE_NS = 250000000,    /* the pace of the waiting list is measured over runs of this length */
};

static uint64_t in_flight(const struct engine *e)
{
    return e->planned_seq_no - e->done_seq_no;
}

static struct flight *flight_of(struct engine *e, uint64_t seq_no)
{
    return &e->flights[seq_no % e->depth];
}

/* --- inbox -------------------------------------------------------------------------------------------------- */

static void take_attention(struct engine *e)
{
    struct request *next, *r = atomic_exchange_explicit(&e->attention, NULL, memory_order_acquire);

    for (; r; r = next) {
        next = atomic_load_explicit(&r->attention_next, memory_order_relaxed);
        atomic_exchange(&r->attention_queued, 0); /* what is said from here on asks again */
        /* One that is not here yet is in the inbox, which looks at `cancelled` too; or it is over. */
        if (r->in_engine) {
            if (atomic_load(&r->cancelled))
                delivery_abort(e, r->engine);
            else
                delivery_ended_choices(e, r->engine);
        }
        request_unref(r);
    }
}

static void take_inbox(struct engine *e)
{
    struct engine_request *next, *oldest = NULL;
    struct engine_request *er = atomic_exchange_explicit(&e->inbox, NULL, memory_order_acquire);

    if (er) e->now_ns = clock_mono_ns(); /* not before any of them was submitted */
    for (; er; er = next) {
        next = er->inbox_next;
        er->inbox_next = oldest;
        oldest = er;
    }
    for (er = oldest; er; er = next) {
        next = er->inbox_next;
        delivery_start(e, er);
    }
}

/* --- the device --------------------------------------------------------------------------------------------- */

/* The C library takes memory for its first time stamp; the step path it is not. */
static void log_step(struct engine *e, uint64_t seq_no, const char *event, const char *reason)
{
    char quoted[400];

    malloc_count_watch(NULL);
    log_error(event, "step=%llu reason=%s", (unsigned long long)seq_no,
              log_quote(slice_str(reason), quoted, sizeof quoted));
    malloc_count_watch(&e->late_mallocs);
}

/* Nothing that was asked of the device will come. All requests end, and so do all that come later. */
static void lose_device(struct engine *e, const char *reason)
{
    atomic_store(&e->dead_reason, reason);
    log_step(e, e->done_seq_no + 1, "device lost", reason);
    for (struct engine_request *er = e->live.live_next; er != &e->live; er = er->live_next)
        delivery_fail(e, er, STATUS_DEVICE_LOST, "the device was lost; the server must restart");
    e->done_seq_no = e->planned_seq_no;
    sched_step_done(e->sched, e->done_seq_no);
}

static const char *lost_reason(const struct engine *e)
{
    struct device_health health = device_health(e->device);

    return health.reason ? health.reason : "the device was lost";
}

const uint32_t engine_step_rows[ENGINE_STEP_CLASSES - 1] = {1,   8,    16,   32,   64,   128,  256,
                                                            512, 1024, 2048, 4096, 8192, 16384};

/* One that failed says nothing about the next ones' time. */
static void note_ended(struct engine *e, struct flight *flight, const struct step_result *result)
{
    sched_observe(e->sched, &flight->planned, result->ended_ns - result->started_ns);
    flight->record.started_ns = result->started_ns;
    flight->record.ended_ns = result->ended_ns;
    step_records_put(&e->records, &flight->record);
}

static void count_step(struct engine *e, struct flight *flight, const struct step_result *result)
{
    e->totals.steps++;
    uint32_t class = 0;

    while (class < ENGINE_STEP_CLASSES - 1 && flight->planned.row_count > engine_step_rows[class])
        class ++;
    e->totals.step_classes[class]++;
    e->totals.step_rows_sum += flight->planned.row_count;
    if (result->ended_ns > result->started_ns) {
        e->totals.step_ns_sum += (uint64_t)(result->ended_ns - result->started_ns);
        if (!result->status) note_ended(e, flight, result);
    }
    e->totals.last_progress_ns = e->now_ns;
}

/* Takes the results that are there. */
static bool collect_results(struct engine *e)
{
    bool any = false;

    while (in_flight(e) > 0) {
        uint64_t seq_no = e->done_seq_no + 1;
        const struct step_result *result;
        enum status st = device_wait(e->device, seq_no, 0, &result);

        if (st == STATUS_TIMEOUT) break;
        any = true;
        if (st || result->status == STATUS_DEVICE_LOST) {
            lose_device(e, lost_reason(e));
            break;
        }
        if (result->status) log_step(e, seq_no, "step failed", result->error.message);
        e->now_ns = e->step_since_ns = clock_mono_ns();
        count_step(e, flight_of(e, seq_no), result);
        delivery_step(e, flight_of(e, seq_no), result);
        device_release(e->device, seq_no);
        e->done_seq_no = seq_no;
        sched_step_done(e->sched, seq_no);
    }
    return any;
}

/* The step was not taken: its requests end, its number is used again. */
static void undo_step(struct engine *e, struct flight *flight)
{
    const struct sched_step *planned = &flight->planned;

    /* Their slots wait for what was taken only: for all of them first, because one's failure ends its siblings. */
    for (uint32_t i = 0; i < planned->entry_count; i++)
        planned->entries[i].seq->last_seq_no = planned->seq_no - 1;
    for (uint32_t i = 0; i < planned->entry_count; i++) {
        struct sequence *seq = planned->entries[i].seq;

        if (planned->entries[i].samples) seq->credit->in_flight--;
        delivery_fail(e, seq->owner, STATUS_DEVICE, "the device refused a step");
    }
}

static bool submit_step(struct engine *e, struct flight *flight)
{
    enum status st = device_submit_body(e->device, flight->step);

    if (!st) {
        st = device_submit_sample(e->device, flight->step, NULL);
        if (st)
            st = STATUS_DEVICE_LOST; /* half a step is in the device's queue: its order is broken */
    }
    assert(st != STATUS_FULL); /* in_flight() < depth <= steps_inflight */
    if (!st) {
        e->steps_submitted++;
        if (in_flight(e) == 0) e->step_since_ns = e->now_ns;
        e->planned_seq_no++;
        return true;
    }
    if (st == STATUS_DEVICE_LOST) {
        e->planned_seq_no++;
        lose_device(e, lost_reason(e));
    } else {
        undo_step(e, flight);
    }
    return false;
}

static void note_started(struct engine *e, struct flight *flight)
{
    const struct sched_step *planned = &flight->planned;
    struct step_record *record = &flight->record;

    *record = (struct step_record){.seq_no = planned->seq_no,
                                   .planned_ns = clock_mono_ns(),
                                   .rows = planned->row_count,
                                   .sequences = planned->entry_count,
                                   .pairs = planned->pairs};
    for (uint32_t i = 0; i < planned->entry_count; i++) {
        const struct sched_entry *entry = &planned->entries[i];
        struct choice *choice = (struct choice *)entry->seq; /* its first field */
        struct request *request = ((struct engine_request *)entry->seq->owner)->request;
        struct stage_times *times = &request->times;

        if (!choice->started) {
            if (choice->number % request->best_of == 0) { /* each prompt counts once */
                STAGE_ADD(times->cached_tokens, choice->seq.cached);
                e->totals.cached_tokens += choice->seq.cached;
                e->totals.computed_tokens += choice->seq.prompt_count - choice->seq.cached;
            }
            engine_leave_queue(e, choice);
            e->starts++;
            if (!times->scheduled_ns) {
                __atomic_store_n(&times->scheduled_ns, e->now_ns, __ATOMIC_RELAXED);
                __atomic_store_n(&times->queued_for, seq_hold_name(choice->seq.held),
                                 __ATOMIC_RELAXED);
            }
        }
        bool prompt = entry->first_position < entry->seq->prompt_count;

        STAGE_ADD(times->prefill_chunks, prompt);
        STAGE_ADD(times->decode_steps, !prompt);
        STAGE_ADD(times->batch_rows_sum, planned->row_count);
        record->prompts += prompt;
        record->outputs += entry->output_count;
        record->kv_tokens += entry->first_position + entry->rows;
    }
}

static bool plan_steps(struct engine *e)
{
    bool any = false;

    while (in_flight(e) < e->depth &&
           !atomic_load_explicit(&e->dead_reason, memory_order_relaxed)) {
        struct flight *flight = flight_of(e, e->planned_seq_no + 1);

        if (!sched_plan(e->sched, e->planned_seq_no + 1, e->now_ns, flight->step, &flight->planned))
            break;
        any = true;
        note_started(e, flight);
        if (!submit_step(e, flight)) break;
    }
    return any;
}

/* --- now and then --------------------------------------------------------------------------------------------- */

static void end_overdue(struct engine *e)
{
    if (e->deadline_count == 0) return;
    for (struct engine_request *er = e->live.live_next; er != &e->live; er = er->live_next) {
        int64_t deadline = er->request->deadline_ns;

        if (deadline && e->now_ns > deadline && er->open_count)
            delivery_fail(e, er, STATUS_TIMEOUT, "the request's time ran out");
    }
}

/* The pace at which sequences leave the waiting list, for Retry-After. */
static void measure_rate(struct engine *e)
{
    int64_t elapsed = e->now_ns - e->rate_since_ns;

    if (elapsed < RATE_NS) return;
    /* An idle while says nothing about the pace under load. */
    if (e->starts || sched_counts(e->sched).waiting) {
        double rate = e->starts * 1e9 / (double)elapsed;

        e->starts_per_s = e->starts_per_s > 0 ? 0.7 * e->starts_per_s + 0.3 * rate : rate;
        atomic_store_explicit(&e->published.starts_per_ks, (uint32_t)(e->starts_per_s * 1000),
                              memory_order_relaxed);
    }
    e->starts = 0;
    e->rate_since_ns = e->now_ns;
}

/* A device that knows that it is lost, and one that does not answer. */
static void watch_device(struct engine *e)
{
    int64_t limit_ns = (int64_t)e->options.step_timeout_ms * 1000000;

    if (!in_flight(e) || atomic_load(&e->dead_reason)) return;
    if (!device_health(e->device).ok)
        lose_device(e, lost_reason(e));
    else if (limit_ns && e->now_ns - e->step_since_ns > limit_ns)
        lose_device(e, "the device has stopped answering: a step took longer than "
                       "--step-timeout-s allows");
}

static void sweep(struct engine *e)
{
    if (e->now_ns < e->next_sweep_ns) return;
    e->next_sweep_ns = e->now_ns + SWEEP_NS;
    end_overdue(e);
    delivery_cut_stalled(e);
    measure_rate(e);
    watch_device(e);
}

#define PUBLISH(field) \
    atomic_store_explicit(&e->published.field, e->totals.field, memory_order_relaxed)

static void publish_window(struct engine *e, const uint64_t holds[HOLDS])
{
    const struct window *window = sched_window(e->sched);

    e->totals.window_ns = window->length_ns;
    e->totals.arrivals_per_ks = (uint32_t)(window_rate(window, e->now_ns) * 1000);
    PUBLISH(window_ns);
    for (int i = 0; i < HOLDS; i++)
        atomic_store_explicit(&e->published.holds[i], holds[i], memory_order_relaxed);
    PUBLISH(arrivals_per_ks);
    for (int i = 0; i < WINDOW_TRIGGERS; i++)
        atomic_store_explicit(&e->published.window_fired[i], window->fired[i],
                              memory_order_relaxed);
}

#define PUBLISH_FORECAST(field) \
    atomic_store_explicit(&e->published.field, f.field, memory_order_relaxed)

static void publish_forecast(struct engine *e)
{
    struct forecast f = sched_forecast(e->sched);

    PUBLISH_FORECAST(step_ns);
    PUBLISH_FORECAST(row_ns);
    PUBLISH_FORECAST(pair_ns);
    PUBLISH_FORECAST(decode_pairs);
    PUBLISH_FORECAST(rows_under_way);
    PUBLISH_FORECAST(rows_of_floods);
    PUBLISH_FORECAST(decodes);
    PUBLISH_FORECAST(free_slots);
    for (int i = 0; i < FORECAST_STEPS; i++)
        PUBLISH_FORECAST(ends[i]);
    atomic_store_explicit(&e->published.kv_tokens_left, f.kv_tokens, memory_order_relaxed);
    atomic_store_explicit(&e->published.forecast_ready, f.ready, memory_order_relaxed);
}

void step_loop_publish(struct engine *e)
{
    struct sched_counts counts = sched_counts(e->sched);

    PUBLISH(last_progress_ns);
    PUBLISH(steps);
    PUBLISH(prompt_tokens);
    PUBLISH(generation_tokens);
    PUBLISH(cached_tokens);
    PUBLISH(computed_tokens);
    for (int i = 0; i < ENGINE_STEP_CLASSES; i++)
        PUBLISH(step_classes[i]);
    PUBLISH(requests_finished);
    PUBLISH(requests_aborted);
    PUBLISH(requests_failed);
    PUBLISH(step_rows_sum);
    PUBLISH(step_ns_sum);
    PUBLISH(host_ns_sum);
    e->totals.preemptions = counts.preemptions;
    e->totals.recomputed_tokens = counts.recomputed_tokens;
    e->totals.prefix_blocks = counts.prefix_entries;
    e->totals.prefix_evictions = counts.prefix_evictions;
    PUBLISH(preemptions);
    PUBLISH(recomputed_tokens);
    e->totals.prefix_pinned = counts.prefix_pinned;
    PUBLISH(prefix_blocks);
    PUBLISH(prefix_pinned);
    e->totals.flooding = counts.flooding;
    PUBLISH(flooding);
    PUBLISH(prefix_evictions);
    e->totals.kv_held_ns = counts.kv_held_ns;
    e->totals.kv_wasted_ns = counts.kv_wasted_ns;
    PUBLISH(kv_held_ns);
    PUBLISH(kv_wasted_ns);
    e->totals.kv_places = counts.kv_places;
    e->totals.kv_tokens = counts.kv_tokens;
    PUBLISH(kv_places);
    PUBLISH(kv_tokens);
    atomic_store_explicit(&e->published.held, (uint32_t)counts.held, memory_order_relaxed);
    publish_window(e, counts.holds);
    publish_forecast(e);
    atomic_store_explicit(&e->published.seqs_running, counts.running + counts.leaving,
                          memory_order_relaxed);
    atomic_store_explicit(&e->published.seqs_waiting, counts.waiting, memory_order_relaxed);
    atomic_store_explicit(&e->published.seqs_blocked, counts.blocked, memory_order_relaxed);
    atomic_store_explicit(&e->published.kv_blocks_used, counts.kv_blocks_used,
                          memory_order_relaxed);
    atomic_store_explicit(&e->published.kv_usage_ppm, counts.kv_usage_ppm, memory_order_relaxed);
}

/* --- the loop ------------------------------------------------------------------------------------------------- */

/* Nothing is on the device, and nothing could be: all is done, or waits for readers. */
static bool has_nothing_to_run(const struct engine *e)
{
    return in_flight(e) == 0 && (e->live.live_next == &e->live || sched_counts(e->sched).blocked);
}

static bool turn(struct engine *e)
{
    bool any;

    e->now_ns = clock_mono_ns();
    if (has_nothing_to_run(e)) e->totals.last_progress_ns = e->now_ns;
    take_attention(e);
    take_inbox(e);
    any = collect_results(e);
    delivery_retry(e);
    sweep(e);
    if (!atomic_load_explicit(&e->stopping, memory_order_relaxed)) any |= plan_steps(e);
    delivery_reap(e);
    step_loop_publish(e); /* before the bell: who has read a request's end finds it counted */
    delivery_ring(e);
    return any;
}

static void abort_all(struct engine *e)
{
    for (struct engine_request *er = e->live.live_next; er != &e->live; er = er->live_next)
        delivery_abort(e, er);
}

static int64_t sleep_limit(const struct engine *e)
{
    struct sched_counts counts = sched_counts(e->sched);

    if (counts.blocked || e->owed || e->deadline_count || counts.waiting) return SWEEP_NS;
    if (!in_flight(e)) return -1;
    int64_t limit_ns = (int64_t)e->options.step_timeout_ms * 1000000;
    return limit_ns && limit_ns < HEALTH_NS ? limit_ns : HEALTH_NS;
}

void *step_loop(void *engine)
{
    struct engine *e = engine;

    device_begin_thread(e->device);
    pthread_setname_np(pthread_self(), "inferd-engine");
    wake_soon(WAKE_SLICE_US);
    malloc_count_watch(&e->late_mallocs);
    for (;;) {
        uint32_t seen = notify_count(e->wake);
        int64_t started_ns = clock_mono_ns();
        bool stopping = atomic_load(&e->stopping), any;

        if (stopping) {
            take_inbox(e);
            abort_all(e);
        }
        any = turn(e);
        e->totals.host_ns_sum += (uint64_t)(clock_mono_ns() - started_ns);
        PUBLISH(host_ns_sum);
        atomic_fetch_add(&e->turns, 1);
        if (stopping && e->live.live_next == &e->live && in_flight(e) == 0) break;
        if (!any) notify_wait(e->wake, seen, sleep_limit(e));
    }
    take_attention(e); /* their references */
    malloc_count_watch(NULL);
    return NULL;
}
