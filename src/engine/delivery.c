/* delivery.c - from results to rings, and how choices and requests end.
 *
 * Places of a ring: free >= credit.left + credit.in_flight + reserved. A planned sample has its place (in_flight), so a token
 * never waits; so has OUTPUT_PROMPT_SCORED (reserved). OUTPUT_FINISHED and OUTPUT_ERROR take from credit.left, and where that
 * is nothing they are owed and tried again each turn. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_state.h"

/* --- places of the ring --------------------------------------------------------------------------------------- */

static uint32_t ring_room(const struct engine_request *er)
{
    uint32_t room = output_ring_free(er->request->ring);
    uint32_t spoken_for = er->credit.in_flight + er->reserved;

    return room > spoken_for ? room - spoken_for : 0;
}

/* Called with no credit left: looks whether the reader has made room. If not, the reader will wake us. */
static void refill(struct engine_request *er, int64_t now_ns)
{
    er->credit.left = ring_room(er);
    if (er->credit.left == 0) {
        output_ring_want(er->request->ring);
        er->credit.left = ring_room(er); /* it may have read in between, and seen no wish */
    }
    if (er->credit.left > 0)
        er->no_room_ns = 0;
    else if (er->no_room_ns == 0)
        er->no_room_ns = now_ns;
}

void delivery_refill(void *engine, struct sequence *seq, int64_t now_ns)
{
    (void)engine;
    refill(seq->owner, now_ns);
}

static bool take_place(struct engine *e, struct engine_request *er)
{
    if (er->credit.left == 0) refill(er, e->now_ns);
    if (er->credit.left == 0) return false;
    er->credit.left--;
    return true;
}

static void mark_dirty(struct engine *e, struct engine_request *er)
{
    if (er->dirty) return;
    er->dirty = true;
    er->dirty_next = e->dirty;
    e->dirty = er;
}

static void push(struct engine *e, struct engine_request *er, const struct output *output)
{
    enum status st = output_ring_push(er->request->ring, output);

    assert(st == STATUS_OK); /* its place was taken before */
    (void)st;
    er->pushed = true;
    mark_dirty(e, er);
}

/* --- ends ----------------------------------------------------------------------------------------------------- */

static void push_finished(struct engine *e, struct engine_request *er, const struct choice *c)
{
    struct output output = {
        .kind = OUTPUT_FINISHED, .choice = c->number, .reason = c->reason, .index = c->counted};

    push(e, er, &output);
}

static void push_error(struct engine *e, struct engine_request *er)
{
    struct output output = {.kind = OUTPUT_ERROR, .status = er->error_status, .error = er->error};

    push(e, er, &output);
}

static void owe(struct engine *e, struct engine_request *er)
{
    er->owed++;
    e->owed++;
}

static void pay(struct engine *e, struct engine_request *er)
{
    er->owed--;
    e->owed--;
}

static void forgive(struct engine *e, struct engine_request *er)
{
    for (uint32_t i = 0; i < er->choice_count; i++)
        er->choices[i].owes_finished = false;
    er->owes_error = false;
    e->owed -= er->owed;
    er->owed = 0;
}

/* The choice asks for nothing more. */
static void close_choice(struct engine *e, struct engine_request *er, struct choice *c)
{
    assert(c->open);
    c->open = false;
    er->open_count--;
    engine_leave_queue(e, c);
    STAGE_ADD(er->request->times.preemptions, c->seq.preemptions);
    if (c->in_sched) sched_end(e->sched, &c->seq);
    if (er->open_count == 0) er->request->times.ended_ns = e->now_ns;
    mark_dirty(e, er);
}

static void uncount(struct engine *e, struct engine_request *er, struct choice *c, uint32_t kept)
{
    if (kept >= c->counted) return;
    e->totals.generation_tokens -= c->counted - kept;
    __atomic_fetch_sub(&er->request->times.completion_tokens, c->counted - kept, __ATOMIC_RELAXED);
    c->counted = kept;
    sequence_trim(&c->seq, kept);
}

static void finish(struct engine *e, struct engine_request *er, struct choice *c,
                   enum finish_reason reason)
{
    uint32_t kept = atomic_exchange(&c->kept, KEPT_FINAL);

    if (kept < KEPT_FINAL) {
        uncount(e, er, c, kept);
        reason = FINISH_ENDED;
    }
    c->reason = reason;
    close_choice(e, er, c);
    if (er->open_count == 0) e->totals.requests_finished++;
    if (take_place(e, er)) {
        push_finished(e, er, c);
    } else {
        c->owes_finished = true;
        owe(e, er);
    }
}

void delivery_ended_choices(struct engine *e, struct engine_request *er)
{
    for (uint32_t i = 0; i < er->choice_count; i++) {
        struct choice *c = &er->choices[i];

        if (c->open && atomic_load(&c->kept) < KEPT_FINAL) finish(e, er, c, FINISH_ENDED);
    }
}

/* owing: its reader may still come. */
static void abort_request(struct engine *e, struct engine_request *er, bool owing)
{
    if (!owing) forgive(e, er);
    mark_dirty(e, er);
    if (er->open_count == 0) return;
    e->totals.requests_aborted++;
    for (uint32_t i = 0; i < er->choice_count; i++) {
        struct choice *c = &er->choices[i];

        if (!c->open) continue;
        atomic_store(&c->kept, KEPT_FINAL);
        c->reason = FINISH_CANCELLED;
        close_choice(e, er, c);
        if (take_place(e, er)) {
            push_finished(e, er, c);
        } else if (owing) {
            c->owes_finished = true;
            owe(e, er);
        }
    }
}

void delivery_abort(struct engine *e, struct engine_request *er)
{
    abort_request(e, er, false);
}

void delivery_fail(struct engine *e, struct engine_request *er, enum status status,
                   const char *error)
{
    if (er->open_count == 0) return;
    forgive(e, er);
    e->totals.requests_failed++;
    for (uint32_t i = 0; i < er->choice_count; i++)
        if (er->choices[i].open) {
            atomic_store(&er->choices[i].kept, KEPT_FINAL);
            er->choices[i].seq.spoiled = true;
            close_choice(e, er, &er->choices[i]);
        }
    er->reserved = 0;
    er->error_status = status;
    er->error = error;
    if (take_place(e, er)) {
        push_error(e, er);
    } else {
        er->owes_error = true;
        owe(e, er);
    }
}

/* --- results -------------------------------------------------------------------------------------------------- */

static uint32_t copy_tops(const struct request *r, const struct step_result *result, uint32_t place,
                          struct top_logprob *tops)
{
    uint32_t count = result->outputs[place].top_count;

    if (count > r->top_logprobs) count = r->top_logprobs;
    if (count)
        memcpy(tops, result->tops + (size_t)place * result->top_stride, count * sizeof *tops);
    return count;
}

static bool is_stop(const struct request *r, int32_t token)
{
    for (uint32_t i = 0; i < r->stop_id_count; i++)
        if (r->stop_ids[i] == token) return true;
    return false;
}

static void deliver_token(struct engine *e, struct engine_request *er, struct choice *c,
                          const struct step_result *result, uint32_t place)
{
    struct request *r = er->request;
    const struct step_output *sampled = &result->outputs[place];
    struct output output;

    output.kind = OUTPUT_TOKEN;
    output.choice = c->number;
    output.reason = FINISH_NONE;
    output.token = sampled->token;
    output.index = c->seq.sampled_known;
    output.logprob = r->want_logprobs ? sampled->logprob : 0;
    output.top_count = copy_tops(r, result, place, output.tops);
    output.error = NULL;
    output.status = STATUS_OK;
    sequence_append(&c->seq, sampled->token);
    c->counted++;
    e->totals.generation_tokens++;
    __atomic_fetch_add(&r->times.completion_tokens, 1, __ATOMIC_RELAXED);
    if (!r->times.first_token_ns) {
        r->times.first_token_ns = e->now_ns;
        engine_first_token(e, er);
    }
    r->times.last_token_ns = e->now_ns;
    push(e, er, &output);
    if (is_stop(r, sampled->token) && c->counted > r->min_tokens)
        finish(e, er, c, FINISH_STOP_ID);
    else if (c->seq.sampled_known == c->seq.max_new)
        finish(e, er, c, FINISH_LENGTH);
}

static void push_scored(struct engine *e, struct engine_request *er, struct choice *c)
{
    struct output output = {.kind = OUTPUT_PROMPT_SCORED, .choice = c->number};

    c->scored = true;
    er->reserved--;
    push(e, er, &output);
}

/* Rows first_position.. score the tokens one further on. */
static void deliver_scores(struct engine *e, struct engine_request *er, struct choice *c,
                           const struct sched_entry *entry, const struct step_result *result)
{
    const struct request *r = er->request;
    struct prompt_scores *scores = &r->prompt_scores[c->number / r->best_of];

    for (uint32_t i = 0; i < entry->output_count - entry->samples; i++) {
        uint32_t token = entry->first_position + i + 1, place = entry->output_first + i;

        scores->outputs[token] = result->outputs[place];
        if (r->top_logprobs)
            scores->outputs[token].top_count = (uint8_t)copy_tops(
                r, result, place, scores->tops + (size_t)token * r->top_logprobs);
    }
    if (entry->first_position + entry->rows + 1 >= c->seq.prompt_count) push_scored(e, er, c);
}

static bool has_bad_logits(const struct sched_entry *entry, const struct step_result *result)
{
    for (uint32_t i = 0; i < entry->output_count; i++)
        if (result->outputs[entry->output_first + i].flags & OUTPUT_BAD_LOGITS) return true;
    return false;
}

static void deliver_entry(struct engine *e, const struct sched_entry *entry,
                          const struct step_result *result)
{
    struct choice *c = (struct choice *)entry->seq; /* its first field */
    struct engine_request *er = entry->seq->owner;

    if (entry->samples) er->credit.in_flight--;
    if (!c->open) return; /* one step too many: counted nowhere */
    if (result->status) {
        snprintf(er->error_text, sizeof er->error_text, "the device failed a step: %.200s",
                 result->error.message);
        delivery_fail(e, er, STATUS_DEVICE, er->error_text);
        return;
    }
    if (has_bad_logits(entry, result)) {
        delivery_fail(e, er, STATUS_DEVICE,
                      "the model gave numbers that are not finite, or no "
                      "token is allowed");
        return;
    }
    if (c->seq.score_prompt && !c->scored) deliver_scores(e, er, c, entry, result);
    if (entry->samples)
        deliver_token(e, er, c, result, entry->output_first + entry->output_count - 1);
    else if (c->seq.max_new == 0 && c->scored)
        finish(e, er, c, FINISH_LENGTH);
}

void delivery_step(struct engine *e, const struct flight *flight, const struct step_result *result)
{
    for (uint32_t i = 0; i < flight->planned.entry_count; i++)
        deliver_entry(e, &flight->planned.entries[i], result);
}

/* --- beginnings ----------------------------------------------------------------------------------------------- */

/* A choice with nothing to compute (max_tokens 0, and no prompt tokens to score) ends at once. */
static void start_choice(struct engine *e, struct engine_request *er, struct choice *c)
{
    bool scores = c->seq.score_prompt && c->seq.prompt_count > 1;

    if (c->seq.max_new > 0 || scores) {
        sched_add(e->sched, &c->seq, e->now_ns);
        c->in_sched = true;
        er->sched_count++;
        return;
    }
    if (c->seq.score_prompt) push_scored(e, er, c);
    finish(e, er, c, FINISH_LENGTH);
}

void delivery_start(struct engine *e, struct engine_request *er)
{
    const char *dead = atomic_load(&e->dead_reason);

    er->live_prev = e->live.live_prev;
    er->live_next = &e->live;
    er->live_prev->live_next = er;
    e->live.live_prev = er;
    er->request->in_engine = true;
    if (er->request->deadline_ns) e->deadline_count++;
    if (dead) {
        delivery_fail(e, er, STATUS_DEVICE_LOST, dead);
        return;
    }
    if (atomic_load(&er->request->cancelled)) {
        abort_request(e, er, false);
        return;
    }
    e->totals.prompt_tokens += er->prompt.tokens;
    for (uint32_t i = 0; i < er->choice_count; i++)
        start_choice(e, er, &er->choices[i]);
}

/* --- now and then --------------------------------------------------------------------------------------------- */

static void pay_request(struct engine *e, struct engine_request *er)
{
    if (er->owes_error && take_place(e, er)) {
        er->owes_error = false;
        pay(e, er);
        push_error(e, er);
    }
    for (uint32_t i = 0; i < er->choice_count && er->owed; i++) {
        struct choice *c = &er->choices[i];

        if (!c->owes_finished || !take_place(e, er)) continue;
        c->owes_finished = false;
        pay(e, er);
        push_finished(e, er, c);
    }
}

void delivery_retry(struct engine *e)
{
    if (e->owed == 0) return;
    for (struct engine_request *er = e->live.live_next; er != &e->live; er = er->live_next)
        if (er->owed) pay_request(e, er);
}

void delivery_cut_stalled(struct engine *e)
{
    int64_t limit_ns = (int64_t)e->options.client_stall_ms * 1000000;

    for (struct engine_request *er = e->live.live_next; er != &e->live; er = er->live_next) {
        if (!er->no_room_ns || !er->open_count) continue;
        if (ring_room(er) > 0) {
            er->no_room_ns = 0;
        } else if (e->now_ns - er->no_room_ns > limit_ns) {
            atomic_store(&er->request->stalled, 1);
            er->pushed = true; /* the bell tells */
            abort_request(e, er, true);
        }
    }
}

void delivery_reap(struct engine *e)
{
    struct sequence *seq;

    while ((seq = sched_reap(e->sched))) {
        struct engine_request *er = seq->owner;

        ((struct choice *)seq)->in_sched = false;
        er->sched_count--;
        mark_dirty(e, er);
    }
}

static void let_go(struct engine *e, struct engine_request *er)
{
    er->live_prev->live_next = er->live_next;
    er->live_next->live_prev = er->live_prev;
    if (er->request->deadline_ns) e->deadline_count--;
    er->request->in_engine = false;
    if (er->request->bell) atomic_fetch_sub(&er->request->bell->users, 1); /* it may go now */
    request_unref(er->request); /* frees er too, if it is the last */
}

static void ring_later(struct engine *e, struct output_bell *bell)
{
    for (uint32_t i = 0; i < e->bell_count; i++)
        if (e->bells[i] == bell) return;
    if (e->bell_count == BELLS_MAX)
        output_bell_ring(bell);
    else
        e->bells[e->bell_count++] = bell;
}

void delivery_ring(struct engine *e)
{
    struct engine_request *next, *dirty = e->dirty;

    e->dirty = NULL;
    for (struct engine_request *er = dirty; er; er = er->dirty_next) {
        if (er->pushed && er->request->bell) {
            output_bell_list(er->request->bell, er->request);
            ring_later(e, er->request->bell);
        }
        er->pushed = false;
    }
    for (uint32_t i = 0; i < e->bell_count; i++)
        output_bell_ring(e->bells[i]);
    e->bell_count = 0;
    /* Behind the rings: a bell may end when nobody is left who could ring it. */
    for (struct engine_request *er = dirty; er; er = next) {
        next = er->dirty_next;
        er->dirty = false;
        if (er->open_count == 0 && er->sched_count == 0 && er->owed == 0) let_go(e, er);
    }
}
