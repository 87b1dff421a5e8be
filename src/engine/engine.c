/* engine.c - what other threads call: create, submit, cancel, end a choice, read the numbers. */
#include "engine/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine_state.h"

/* --- life --------------------------------------------------------------------------------------------------- */

static void device_notify(void *ctx)
{
    struct engine *e = ctx;

    notify_signal(e->wake);
    atomic_fetch_add_explicit(&e->notified, 1, memory_order_release);
}

static enum status alloc_flights(struct engine *e)
{
    size_t bytes = (step_bytes(e->plan, e->limits) + 63) / 64 * 64;
    uint32_t seqs = e->options.max_num_seqs;

    /* Fresh zero pages, which are taken when they are first touched: most of a step is room for 2^20 ids of penalty history
     * and for logit biases, which few servers ever use. */
    e->step_memory = calloc(bytes * e->depth + 63, 1);
    e->entry_memory = calloc((size_t)e->depth * seqs, sizeof *e->entry_memory);
    if (!e->step_memory || !e->entry_memory) return STATUS_NOMEM;
    char *first = (char *)(((uintptr_t)e->step_memory + 63) & ~(uintptr_t)63);
    for (uint32_t i = 0; i < e->depth; i++) {
        e->flights[i].step = step_init(first + i * bytes, e->plan, e->limits);
        e->flights[i].planned.entries = e->entry_memory + (size_t)i * seqs;
    }
    return STATUS_OK;
}

static enum status make_sched(struct engine *e, struct error *err)
{
    struct sched_options options = {
        .max_num_seqs = e->options.max_num_seqs,
        .max_num_batched_tokens = e->options.max_num_batched_tokens,
        .max_wait_ns = (int64_t)e->options.max_batch_wait_us * 1000,
        .target_throughput = e->options.target_throughput,
        .class_age_ns = (int64_t)e->options.class_age_us * 1000,
        .max_step_ns = (int64_t)e->options.max_itl_us * 1000,
        .share_prefixes = !e->options.no_prefix_sharing,
        .refill = delivery_refill,
        .refill_ctx = e,
    };

    return sched_create(&options, e->plan, e->limits, &e->sched, err);
}

static enum status check_options(const struct engine_options *options,
                                 const struct device_limits *limits, struct error *err)
{
    if (options->queue_seqs_max < 1)
        return error_set(err, STATUS_INVALID, "queue_seqs_max is 0; it must be at least 1");
    if (options->queue_tokens_max < 1)
        return error_set(err, STATUS_INVALID, "queue_tokens_max is 0; it must be at least 1");
    if (options->context_tokens < 1 || options->context_tokens > limits->context_tokens)
        return error_set(err, STATUS_INVALID, "context_tokens is %u; it must be 1 to %u",
                         options->context_tokens, limits->context_tokens);
    return STATUS_OK;
}

static void free_engine(struct engine *e)
{
    sched_destroy(e->sched);
    free(e->step_memory);
    free(e->entry_memory);
    notify_unref(e->wake);
    free(e);
}

/* The device's thread may still be inside the notification of a step whose result has been taken, or on its way to one: wait
 * for it to leave. A lost device may never come; it is not waited for long, and what it could touch is then left to it. */
static bool notifications_are_over(const struct engine *e)
{
    for (int i = 0; i < 1000; i++) {
        if (atomic_load_explicit(&e->notified, memory_order_acquire) >= e->steps_submitted)
            return true;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return false;
}

enum status engine_create(const struct engine_options *options, struct device *device,
                          const struct plan *plan, const struct device_limits *limits,
                          struct engine **out, struct error *err)
{
    enum status st = check_options(options, limits, err);

    if (st) return st;
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return error_set(err, STATUS_NOMEM, "no memory for the engine");
    e->options = *options;
    e->device = device;
    e->plan = plan;
    e->limits = limits;
    /* Two are enough to keep the device busy: one runs, the next is ready. More would only let ended sequences run on. */
    e->depth = limits->steps_inflight < 2 ? 1 : 2;
    e->live.live_next = e->live.live_prev = &e->live;
    e->wake = notify_create();
    if (!e->wake || alloc_flights(e))
        st = error_set(err, STATUS_NOMEM, "no memory for step buffers");
    if (!st) st = make_sched(e, err);
    forecast_margin_init(&e->margin);
    for (int k = 0; k < FORECAST_KINDS; k++)
        atomic_store(&e->published.margin[k], e->margin.factor[k]);
    if (st) {
        free_engine(e);
        return st;
    }
    atomic_store(&e->published.kv_blocks_total, sched_counts(e->sched).kv_blocks_total);
    device_set_notify(device, device_notify, e);
    st = calibrate(e, err);
    if (st) {
        if (notifications_are_over(e)) free_engine(e);
        return st;
    }
    e->totals.last_progress_ns = clock_mono_ns();
    step_loop_publish(e);
    if (pthread_create(&e->thread, NULL, step_loop, e)) {
        free_engine(e);
        return error_set(err, STATUS_IO, "the engine thread could not be started");
    }
    *out = e;
    return STATUS_OK;
}

void engine_destroy(struct engine *e)
{
    if (!e) return;
    atomic_store(&e->stopping, 1);
    notify_signal(e->wake);
    pthread_join(e->thread, NULL);
    if (notifications_are_over(e)) free_engine(e);
}

void engine_probe(struct engine *e)
{
    notify_signal(e->wake);
}

void engine_settle(struct engine *e)
{
    uint64_t wanted =
        atomic_load(&e->turns) +
        3; /* the one under way, the one that takes cancellations, and one for what it has left */
    int64_t until = clock_mono_ns() + 2000000000;

    while (atomic_load(&e->turns) < wanted && clock_mono_ns() < until) {
        notify_signal(e->wake);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

/* --- submission --------------------------------------------------------------------------------------------- */

static enum status check_ids(const struct engine *e, const int32_t *ids, uint32_t count,
                             const char *what, struct error *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->plan->vocab_tokens)
            return error_set(err, STATUS_INVALID, "%s has token id %d; ids are 0 to %u", what,
                             ids[i], e->plan->vocab_tokens - 1);
    return STATUS_OK;
}

static enum status check_request(const struct engine *e, const struct request *r, struct error *err)
{
    uint64_t tokens = 0, choices = (uint64_t)r->prompt_count * r->best_of;
    uint32_t context = e->options.context_tokens;
    enum status st = STATUS_OK;

    if (r->prompt_count < 1 || r->best_of < 1)
        return error_set(err, STATUS_INVALID, "a request needs a prompt and a choice");
    if (choices > e->options.queue_seqs_max)
        return error_set(err, STATUS_INVALID,
                         "the request has %llu sequences; at most %u can wait at once",
                         (unsigned long long)choices, e->options.queue_seqs_max);
    for (uint32_t p = 0; p < r->prompt_count && !st; p++) {
        const struct request_prompt *prompt = &r->prompts[p];

        if (prompt->count < 1) return error_set(err, STATUS_INVALID, "prompt %u is empty", p);
        if (prompt->count > context || (prompt->count == context && r->max_tokens))
            return error_set(err, STATUS_INVALID, "prompt %u has %u tokens; the context is %u", p,
                             prompt->count, context);
        tokens += prompt->count;
        st = check_ids(e, prompt->ids, prompt->count, "the prompt", err);
    }
    if (!st) st = check_ids(e, r->stop_ids, r->stop_id_count, "stop_token_ids", err);
    for (uint32_t i = 0; i < r->sampling.bias_count && !st; i++)
        st = check_ids(e, &r->sampling.biases[i].id, 1, "logit_bias", err);
    if (st) return st;
    if (tokens * r->best_of > e->options.queue_tokens_max)
        return error_set(err, STATUS_INVALID,
                         "the request has %llu prompt tokens; at most %llu can wait at once",
                         (unsigned long long)(tokens * r->best_of),
                         (unsigned long long)e->options.queue_tokens_max);
    if (r->prompt_scores && output_ring_capacity(r->ring) <= r->prompt_count)
        return error_set(err, STATUS_INVALID, "the output ring is too small for %u scored prompts",
                         r->prompt_count);
    if (r->top_logprobs > e->limits->top_logprobs_max)
        return error_set(err, STATUS_INVALID, "top_logprobs is %u; at most %u", r->top_logprobs,
                         e->limits->top_logprobs_max);
    return STATUS_OK;
}

static struct step_open sampling_state(const struct request *r, uint32_t prompt_count,
                                       uint32_t candidate)
{
    const struct request_sampling *s = &r->sampling;
    bool bans = r->min_tokens > 0 && r->max_tokens > 0;

    return (struct step_open){
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .top_k = s->top_k,
        .repetition_penalty = s->repetition_penalty,
        .frequency_penalty = s->frequency_penalty,
        .presence_penalty = s->presence_penalty,
        .seed = s->seed + candidate,
        .ban_until = bans ? prompt_count + r->min_tokens : 0,
        .top_logprobs = r->top_logprobs,
        .want_logprobs = r->want_logprobs || r->prompt_scores,
        .banned_count = bans ? r->stop_id_count : 0,
        .bias_count = s->bias_count,
    };
}

/* What of the prompt is to stay: as the request says, or the longest pin of the options that it begins with. */
static void set_pin(const struct engine *e, const struct request *r, struct sequence *seq)
{
    seq->pin_tokens = r->pin_s ? r->pin_tokens : 0;
    seq->pin_s = r->pin_s;
    if (r->pin_s) return;
    for (uint32_t i = 0; i < e->options.pin_count; i++) {
        const struct engine_pin *pin = &e->options.pins[i];

        if (pin->count <= seq->pin_tokens || pin->count > seq->prompt_count ||
            memcmp(pin->ids, seq->prompt, pin->count * sizeof *pin->ids) != 0)
            continue;
        seq->pin_tokens = pin->count;
        seq->pin_s = e->options.pin_s;
    }
}

static void init_choice(const struct engine *e, struct engine_request *er, uint32_t number,
                        int32_t **sampled)
{
    struct request *r = er->request;
    const struct request_prompt *prompt = &r->prompts[number / r->best_of];
    uint32_t room = e->options.context_tokens - prompt->count, candidate = number % r->best_of;
    struct choice *c = &er->choices[number];

    c->number = number;
    c->open = true;
    atomic_init(&c->kept, KEPT_NONE);
    c->seq = (struct sequence){
        .prompt = prompt->ids,
        .prompt_count = prompt->count,
        .max_new = r->max_tokens < room ? r->max_tokens : room,
        .sampled = *sampled,
        .score_prompt = r->prompt_scores && candidate == 0,
        .open = sampling_state(r, prompt->count, candidate),
        .banned = r->stop_ids,
        .biases = r->sampling.biases,
        .priority = r->priority,
        .tenant = r->tenant,
        .salt = r->cache_salt ? hash_mix64(r->tenant ^ r->cache_salt) : r->tenant,
        .credit = &er->credit,
        .owner = er,
    };
    set_pin(e, r, &c->seq);
    *sampled += c->seq.max_new;
}

/* The submitting thread brings all the memory that the request will need, so the engine thread takes none. */
static struct engine_request *make_state(const struct engine *e, struct request *r)
{
    uint32_t choices = request_choices(r), context = e->options.context_tokens;
    uint64_t history = 0;
    size_t bytes = sizeof(struct engine_request) + choices * sizeof(struct choice);

    for (uint32_t p = 0; p < r->prompt_count; p++) {
        uint32_t room = context - r->prompts[p].count;
        history += (uint64_t)(r->max_tokens < room ? r->max_tokens : room) * r->best_of;
    }
    struct engine_request *er = calloc(1, bytes + history * sizeof(int32_t));
    if (!er) return NULL;
    int32_t *sampled = (int32_t *)((char *)er + bytes);
    er->request = r;
    er->choice_count = er->open_count = choices;
    er->reserved = r->prompt_scores ? r->prompt_count : 0;
    er->class = sequence_class_of(r->max_tokens);
    for (uint32_t i = 0; i < choices; i++)
        init_choice(e, er, i, &sampled);
    for (uint32_t p = 0; p < r->prompt_count; p++)
        er->prompt.tokens += r->prompts[p].count;
    return er;
}

static enum status check_fit(const struct engine *e, const struct engine_request *er,
                             struct error *err)
{
    for (uint32_t i = 0; i < er->choice_count; i += er->request->best_of) {
        enum status st = sched_fits(e->sched, &er->choices[i].seq, err);
        if (st) return st;
    }
    return STATUS_OK;
}

/* How long until so many more sequences have left the waiting list, at the pace of the last seconds. */
static uint32_t retry_after(const struct engine *e, uint32_t seqs)
{
    double rate = atomic_load(&e->published.starts_per_ks) / 1000.0;
    double wait = rate > 0 ? seqs / rate : 1;

    return wait < 1 ? 1 : wait > 60 ? 60 : (uint32_t)(wait + 0.999);
}

static struct forecast read_forecast(struct engine *e)
{
    struct published *p = &e->published;
    struct forecast f = {
        .ready = atomic_load(&p->forecast_ready),
        .step_ns = atomic_load(&p->step_ns),
        .row_ns = atomic_load(&p->row_ns),
        .pair_ns = atomic_load(&p->pair_ns),
        .decodes = atomic_load(&p->decodes),
        .decode_pairs = atomic_load(&p->decode_pairs),
        .rows_under_way = atomic_load(&p->rows_under_way),
        .rows_of_floods = atomic_load(&p->rows_of_floods),
        .free_slots = atomic_load(&p->free_slots),
        .kv_tokens = atomic_load(&p->kv_tokens_left),
        .rows_max = e->options.max_num_batched_tokens,
        .max_step_ns = (int64_t)e->options.max_itl_us * 1000,
        .by_class = e->options.class_age_us > 0,
    };

    for (int i = 0; i < FORECAST_STEPS; i++)
        f.ends[i] = atomic_load_explicit(&p->ends[i], memory_order_relaxed);
    return f;
}

static struct queue_account *queue_account(struct engine *e, uint64_t tenant)
{
    return &e->queue_accounts[hash_mix64(tenant) % QUEUE_ACCOUNTS];
}

/* What a request, or one of its choices, is in the queue. */
struct queue_part {
    uint32_t seqs;
    uint64_t tokens, work;
};

static void leave_queue(struct engine *e, uint64_t tenant, enum seq_class class,
                        struct queue_part part)
{
    struct queue_account *account = queue_account(e, tenant);

    atomic_fetch_sub(&e->queued_seqs, part.seqs);
    atomic_fetch_sub(&e->queued_tokens, part.tokens);
    atomic_fetch_sub(&e->queue_classes[class].seqs, part.seqs);
    atomic_fetch_sub(&e->queue_classes[class].work, part.work);
    atomic_fetch_sub(&account->tokens, part.tokens);
    atomic_fetch_sub(&account->work, part.work);
    if (atomic_fetch_sub(&account->seqs, part.seqs) == part.seqs)
        atomic_fetch_sub(&e->queue_account_count, 1);
}

/* A queue that one tenant has filled has room for the others still: each may have its share of the bounds, up to twice the bounds in
 * all. */
static bool take_queue_room(struct engine *e, uint64_t tenant, enum seq_class class,
                            struct queue_part part)
{
    struct queue_account *account = queue_account(e, tenant);
    uint64_t seqs_max = e->options.queue_seqs_max, tokens_max = e->options.queue_tokens_max;
    uint64_t all_tokens = atomic_fetch_add(&e->queued_tokens, part.tokens) + part.tokens;
    uint64_t all_seqs = atomic_fetch_add(&e->queued_seqs, part.seqs) + (uint64_t)part.seqs;
    uint64_t own_tokens = atomic_fetch_add(&account->tokens, part.tokens) + part.tokens;
    uint32_t before = atomic_fetch_add(&account->seqs, part.seqs);

    atomic_fetch_add(&account->work, part.work);
    atomic_fetch_add(&e->queue_classes[class].seqs, part.seqs);
    atomic_fetch_add(&e->queue_classes[class].work, part.work);
    if (before == 0) atomic_fetch_add(&e->queue_account_count, 1);
    if (all_seqs <= seqs_max && all_tokens <= tokens_max) return true;
    uint32_t sharers = atomic_load(&e->queue_account_count);
    if (sharers > 1 && (before + (uint64_t)part.seqs) * sharers <= seqs_max &&
        own_tokens * sharers <= tokens_max && all_seqs <= 2 * seqs_max &&
        all_tokens <= 2 * tokens_max)
        return true;
    leave_queue(e, tenant, class, part);
    return false;
}

void engine_leave_queue(struct engine *e, struct choice *choice)
{
    const struct engine_request *er = choice->seq.owner;

    if (choice->started) return;
    choice->started = true;
    leave_queue(e, choice->seq.tenant, er->class,
                (struct queue_part){1, choice->seq.prompt_count, choice->work});
}

/* Sets what of the prompts is cached, and what its choices will have to compute: the first of each prompt what is not, the others a last part that
 * cannot be shared. Returns what it is in the queue. */
static struct queue_part set_work(struct engine *e, struct engine_request *er)
{
    uint32_t best_of = er->request->best_of;
    struct forecast f = {.kv_tokens = atomic_load(&e->published.kv_tokens_left)};
    struct forecast_queue queue = {.prompt_tokens = atomic_load(&e->queued_tokens)};
    struct queue_part part = {er->choice_count, er->prompt.tokens * best_of, 0};

    for (uint32_t i = 0; i < er->choice_count; i++) {
        struct choice *c = &er->choices[i];
        uint32_t cached = sched_guess_cached(e->sched, &c->seq, i % best_of > 0);

        c->work = c->seq.prompt_count - cached;
        if (i % best_of == 0) er->prompt.cached += cached;
    }
    bool counts = forecast_work(&f, &queue, &er->prompt) < er->prompt.tokens;
    for (uint32_t i = 0; i < er->choice_count; i++) {
        struct choice *c = &er->choices[i];

        if (i % best_of == 0 && !counts) c->work = c->seq.prompt_count;
        part.work += c->work;
    }
    return part;
}

/* Sets when the request's first token would come if it were taken, in ns from now; -1: not known. */
static void predict_first_token(struct engine *e, struct engine_request *er)
{
    struct queue_account *account = queue_account(e, er->request->tenant);
    struct forecast f = read_forecast(e);
    struct forecast_queue queue = {
        .own_seqs = atomic_load(&account->seqs),
        .own_tokens = atomic_load(&account->work),
        .prompt_tokens = atomic_load(&e->queued_tokens),
        .sharers = atomic_load(&e->queue_account_count),
        .starts_per_s = atomic_load(&e->published.starts_per_ks) / 1000.0,
    };

    queue.sharers += queue.own_seqs == 0;
    for (int c = 0; c < SEQ_CLASSES; c++) {
        queue.seqs[c] = atomic_load(&e->queue_classes[c].seqs);
        queue.tokens[c] = atomic_load(&e->queue_classes[c].work);
    }
    er->kind = forecast_kind(&queue, er->class);
    er->predicted_ns = forecast_queued(&f, &queue, er->class, &er->prompt);
}

static bool is_idle(struct engine *e)
{
    return atomic_load(&e->queued_seqs) == 0 && atomic_load(&e->published.decodes) == 0 &&
           atomic_load(&e->published.rows_under_way) == 0;
}

/* Sets the request's limit and prediction. 0, or in how many seconds one that would be late now would be in time. The server's own limit
 * refuses nobody while nothing is computed: a wrong prediction would never be put right. */
static uint32_t late_by_s(struct engine *e, struct engine_request *er, struct error *err)
{
    const struct request *r = er->request;
    int64_t limit_ns = (int64_t)e->options.ttft_limit_us * 1000;
    int64_t now_ns = clock_mono_ns(), left_ns = r->deadline_ns ? r->deadline_ns - now_ns : 0;
    struct forecast_margin margin;
    bool own = r->deadline_ns && (!limit_ns || left_ns < limit_ns);

    if (own) limit_ns = left_ns > 1 ? left_ns : 1;
    if (!limit_ns) return 0;
    for (int k = 0; k < FORECAST_KINDS; k++)
        margin.factor[k] = atomic_load(&e->published.margin[k]);
    er->limit_ns = limit_ns;
    predict_first_token(e, er);
    if (er->predicted_ns < 0 || (!own && is_idle(e)) ||
        forecast_in_time(&margin, er->kind, er->predicted_ns, limit_ns))
        return 0;
    double wait_ns = (double)er->predicted_ns * margin.factor[er->kind];
    error_set(err, STATUS_FULL, "the first token would come in %.0f ms, and %.0f ms are allowed",
              wait_ns * 1e-6, (double)limit_ns * 1e-6);
    double over_s = (wait_ns - (double)limit_ns) * 1e-9;
    return over_s > 59 ? 60 : (uint32_t)over_s + 1;
}

void engine_first_token(struct engine *e, const struct engine_request *er)
{
    if (!er->limit_ns || er->predicted_ns < 0) return;
    forecast_margin_learn(&e->margin, er->kind, er->predicted_ns, er->limit_ns,
                          e->now_ns - er->request->times.submitted_ns);
    atomic_store(&e->published.margin[er->kind], e->margin.factor[er->kind]);
}

static enum status refuse(struct engine *e, struct engine_request *er, enum status st)
{
    free(er);
    atomic_fetch_add(&e->requests_rejected, 1);
    return st;
}

enum status engine_submit(struct engine *e, struct request *r, uint32_t *retry_after_s,
                          struct error *err)
{
    const char *dead = atomic_load(&e->dead_reason);
    struct engine_request *er = NULL;

    *retry_after_s = 1;
    if (dead || atomic_load(&e->stopping))
        return refuse(e, er, error_set(err, STATUS_CLOSED, "%s", dead ? dead : "stopping"));
    enum status st = check_request(e, r, err);
    if (st) return refuse(e, er, st);
    er = make_state(e, r);
    if (!er) return refuse(e, er, error_set(err, STATUS_NOMEM, "no memory for the request"));
    st = check_fit(e, er, err);
    if (st) return refuse(e, er, st);
    struct queue_part part = set_work(e, er);
    uint32_t late_s = late_by_s(e, er, err);
    if (late_s) {
        *retry_after_s = late_s;
        return refuse(e, er, STATUS_FULL);
    }
    if (!take_queue_room(e, r->tenant, er->class, part)) {
        *retry_after_s = retry_after(e, atomic_load(&e->queued_seqs));
        return refuse(e, er, error_set(err, STATUS_FULL, "the queue of waiting requests is full"));
    }
    r->times.submitted_ns = clock_mono_ns();
    r->times.prompt_tokens = (uint32_t)er->prompt.tokens;
    r->engine = er;
    output_ring_attach(r->ring, e->wake);
    request_ref(r);
    if (r->bell) atomic_fetch_add(&r->bell->users, 1);
    atomic_fetch_add(&e->requests_submitted, 1);
    er->inbox_next = atomic_load_explicit(&e->inbox, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&e->inbox, &er->inbox_next, er,
                                                  memory_order_release, memory_order_relaxed))
        ;
    notify_signal(e->wake);
    return STATUS_OK;
}

/* --- cancelling and ending ---------------------------------------------------------------------------------- */

/* Once until the engine has looked. */
static void ask_attention(struct engine *e, struct request *r)
{
    if (!atomic_exchange(&r->attention_queued, 1)) {
        request_ref(r);
        struct request *head = atomic_load_explicit(&e->attention, memory_order_relaxed);
        do
            atomic_store_explicit(&r->attention_next, head, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&e->attention, &head, r, memory_order_release,
                                                      memory_order_relaxed));
    }
    notify_signal(e->wake);
}

void engine_cancel(struct engine *e, struct request *r)
{
    if (atomic_exchange(&r->cancelled, 1)) return;
    ask_attention(e, r);
}

void engine_end_choice(struct engine *e, struct request *r, uint32_t number, uint32_t kept_tokens)
{
    struct engine_request *er = r->engine;
    uint32_t none = KEPT_NONE;

    assert(number < er->choice_count && kept_tokens < KEPT_FINAL);
    struct choice *c = &er->choices[number];
    if (c->output_ended) return;
    c->output_ended = true;
    if (atomic_compare_exchange_strong(&c->kept, &none, kept_tokens)) {
        ask_attention(e, r);
    } else if (none == KEPT_FINAL && kept_tokens < c->counted) {
        /* The engine had ended it before it knew. It writes nothing more of this choice, so its surplus is taken back here. */
        uint32_t surplus = c->counted - kept_tokens;

        __atomic_fetch_sub(&r->times.completion_tokens, surplus, __ATOMIC_RELAXED);
        atomic_fetch_add(&e->late_discarded, surplus);
    }
}

/* --- numbers ------------------------------------------------------------------------------------------------ */

/* Tokens may be taken back (stop text); the total that was told may not fall, so it stands still until it is right again. */
static uint64_t generation_tokens(struct engine *e)
{
    uint64_t late = atomic_load(&e->late_discarded);
    uint64_t all = atomic_load(&e->published.generation_tokens);
    uint64_t now = all > late ? all - late : 0, shown = atomic_load(&e->generation_shown);

    while (now > shown && !atomic_compare_exchange_weak(&e->generation_shown, &shown, now))
        ;
    return now > shown ? now : shown;
}

uint32_t engine_step_records(const struct engine *engine, struct step_record *out)
{
    return step_records_copy(&engine->records, out);
}

void engine_stats(const struct engine *engine, struct engine_stats *out)
{
    struct engine *e = (struct engine *)(uintptr_t)engine; /* atomic loads of C17 take no const */
    struct published *p = &e->published;

    *out = (struct engine_stats){
        .dead_reason = atomic_load(&e->dead_reason),
        .last_progress_ns = atomic_load(&p->last_progress_ns),
        .steps = atomic_load(&p->steps),
        .prompt_tokens = atomic_load(&p->prompt_tokens),
        .generation_tokens = generation_tokens(e),
        .cached_tokens = atomic_load(&p->cached_tokens),
        .computed_tokens = atomic_load(&p->computed_tokens),
        .requests_submitted = atomic_load(&e->requests_submitted),
        .requests_finished = atomic_load(&p->requests_finished),
        .requests_aborted = atomic_load(&p->requests_aborted),
        .requests_rejected = atomic_load(&e->requests_rejected),
        .requests_failed = atomic_load(&p->requests_failed),
        .seqs_running = atomic_load(&p->seqs_running),
        .seqs_waiting = atomic_load(&p->seqs_waiting),
        .seqs_blocked = atomic_load(&p->seqs_blocked),
        .kv_blocks_total = atomic_load(&p->kv_blocks_total),
        .kv_blocks_used = atomic_load(&p->kv_blocks_used),
        .kv_usage = 1e-6 * atomic_load(&p->kv_usage_ppm),
        .step_rows_sum = atomic_load(&p->step_rows_sum),
        .step_ns_sum = atomic_load(&p->step_ns_sum),
        .host_ns_sum = atomic_load(&p->host_ns_sum),
        .preemptions = atomic_load(&p->preemptions),
        .recomputed_tokens = atomic_load(&p->recomputed_tokens),
        .prefix_blocks = atomic_load(&p->prefix_blocks),
        .prefix_pinned = atomic_load(&p->prefix_pinned),
        .flooding = atomic_load(&p->flooding),
        .prefix_evictions = atomic_load(&p->prefix_evictions),
        .late_mallocs = atomic_load(&e->late_mallocs),
    };
    out->kv_held_ns = atomic_load(&p->kv_held_ns);
    out->kv_wasted_ns = atomic_load(&p->kv_wasted_ns);
    out->kv_places = atomic_load(&p->kv_places);
    out->kv_tokens = atomic_load(&p->kv_tokens);
    out->waiting_for = seq_hold_name((enum seq_hold)atomic_load(&p->held));
    for (int i = 0; i < ENGINE_STEP_CLASSES; i++)
        out->step_classes[i] = atomic_load(&p->step_classes[i]);
    out->window_ns = atomic_load(&p->window_ns);
    out->arrivals_per_ks = atomic_load(&p->arrivals_per_ks);
    for (int i = 0; i < WINDOW_TRIGGERS; i++)
        out->window_fired[i] = atomic_load(&p->window_fired[i]);
    static_assert(sizeof out->holds == HOLDS * sizeof *out->holds, "a number for each");
    for (int i = 0; i < HOLDS; i++)
        out->holds[i] = atomic_load(&p->holds[i]);
    struct device_health health = device_health(e->device);
    out->late_device_allocations = health.late_allocations;
    out->device_memory_drift = health.memory_drift;
    out->alive = !out->dead_reason;
}
