#include "fake_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"

enum { FLIGHTS_MAX = 8, BLOCK = 16, NONSENSE = 999999 };

#define MUST(cond)                                                                  \
    do {                                                                            \
        if (!(cond)) {                                                              \
            fprintf(stderr, "%s:%d: fake device: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                                \
        }                                                                           \
    } while (0)

struct slot {
    bool opened, broken;
    uint32_t len; /* positions in KV */
    uint32_t *tables[PLAN_GROUPS_MAX];
    uint32_t table_count[PLAN_GROUPS_MAX];
    struct step_open open;
    int32_t banned[64];
    int32_t last_token;
    uint32_t last_position; /* of last_token; 0: none */
    /* what submission has checked so far: ahead of what has run */
    bool s_opened;
    uint32_t s_len;
    uint32_t *s_tables[PLAN_GROUPS_MAX];
    uint32_t s_table_count[PLAN_GROUPS_MAX];
};

struct cell {
    int32_t token;
    uint32_t position;
    bool written;
};

struct use { /* a block in a step */
    uint32_t group, block, slot;
};

struct fake_flight {
    const struct step *step;
    bool sampled, done;
    struct use *uses;
    uint32_t use_count;
    struct step_result result;
    struct step_output *outputs;
    struct top_logprob *tops;
};

struct fake {
    struct device base;
    struct fake_options options;
    const struct plan *plan;
    struct device_limits limits;
    struct slot *slots;
    struct cell *kv[PLAN_GROUPS_MAX];
    struct fake_flight flights[FLIGHTS_MAX];
    uint64_t submitted, ran, released;
    bool lost, closing;
    uint64_t random;
    uint32_t blocks_per_seq;
    uint32_t use_cap;
    struct fake_counts counts;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
};

uint64_t fake_history(uint64_t history, int32_t token)
{
    return hash_mix64(history * 0x9e3779b97f4a7c15u + (uint32_t)token + 1);
}

int32_t fake_token(uint64_t history, uint64_t seed, uint32_t position, uint32_t vocab,
                   uint32_t ban_until, const int32_t *banned, uint32_t banned_count)
{
    uint64_t h = hash_mix64(history ^ hash_mix64(seed + position));
    int32_t token = (int32_t)(h % vocab);

    for (uint32_t i = 0; position < ban_until && i < banned_count; i++)
        if (banned[i] == token) {
            token = (int32_t)((uint32_t)(token + 1) % vocab);
            i = UINT32_MAX; /* from the start again */
        }
    return token;
}

float fake_logprob(uint64_t history, int32_t token)
{
    return -(float)(hash_mix64(history + (uint32_t)token) % 1000) / 100;
}

void fake_plan(struct plan *plan, uint32_t groups, uint32_t vocab, uint32_t context)
{
    *plan = (struct plan){.arch = "fake",
                          .vocab_rows = vocab,
                          .vocab_tokens = vocab,
                          .context_tokens = context,
                          .group_count = groups};
    for (uint32_t g = 0; g < groups; g++)
        plan->groups[g] = (struct plan_kv_group){.layers = 1, .block_tokens = BLOCK};
}

static uint64_t draw(struct fake *f)
{
    return f->random = hash_mix64(f->random + 0x9e3779b97f4a7c15u);
}

static bool one_in(struct fake *f, uint64_t n)
{
    return n && draw(f) % n == 0;
}

static void *must_calloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    MUST(p);
    return p;
}

/* --- submission: the invariants of a step --------------------------------------------------------------------- */

static void note_use(struct fake *f, struct fake_flight *flight, uint32_t group, uint32_t block,
                     uint32_t slot)
{
    MUST(flight->use_count < f->use_cap);
    flight->uses[flight->use_count++] = (struct use){group, block, slot};
}

static void check_changes(struct fake *f, const struct step *step)
{
    for (uint32_t i = 0; i < step->open_count; i++) {
        struct slot *slot = &f->slots[step_opens(step)[i].slot];
        slot->s_opened = true;
        slot->s_len = 0;
        memset(slot->s_table_count, 0, sizeof slot->s_table_count);
    }
    for (uint32_t i = 0; i < step->table_count; i++) {
        const struct step_table_change *t = &step_tables(step)[i];
        struct slot *slot = &f->slots[t->slot];
        MUST(slot->s_opened);
        MUST(t->index <= slot->s_table_count[t->group]);
        slot->s_tables[t->group][t->index] = t->block;
        if (t->index == slot->s_table_count[t->group]) slot->s_table_count[t->group]++;
    }
}

/* Nobody else uses what this segment writes, in this step or in one that is not done. */
static void check_write(struct fake *f, uint32_t group, uint32_t block, uint32_t writer)
{
    for (uint64_t n = f->released + 1; n <= f->submitted; n++) {
        const struct fake_flight *flight = &f->flights[n % FLIGHTS_MAX];
        for (uint32_t i = 0; i < flight->use_count; i++)
            MUST(flight->uses[i].group != group || flight->uses[i].block != block ||
                 flight->uses[i].slot == writer);
    }
}

static void check_segments(struct fake *f, struct fake_flight *flight)
{
    const struct step *step = flight->step;

    for (uint32_t i = 0; i < step->segment_count; i++) {
        const struct step_segment *seg = &step_segments(step)[i];
        struct slot *slot = &f->slots[seg->slot];
        uint32_t end = seg->context_len + seg->rows;
        MUST(slot->s_opened);
        /* a slot that was just opened may begin behind blocks that others have filled */
        MUST(seg->context_len == slot->s_len || slot->s_len == 0);
        slot->s_len = end;
        for (uint32_t g = 0; g < f->plan->group_count; g++) {
            MUST((uint64_t)slot->s_table_count[g] * BLOCK >= end);
            for (uint32_t b = 0; b < (end + BLOCK - 1) / BLOCK; b++)
                note_use(f, flight, g, slot->s_tables[g][b], seg->slot);
        }
    }
    for (uint32_t i = 0; i < step->copy_count; i++)
        note_use(f, flight, step_copies(step)[i].group, step_copies(step)[i].from, UINT32_MAX);
    for (uint32_t i = 0; i < step->segment_count; i++) {
        const struct step_segment *seg = &step_segments(step)[i];
        uint32_t end = seg->context_len + seg->rows;
        for (uint32_t g = 0; g < f->plan->group_count; g++)
            for (uint32_t b = seg->context_len / BLOCK; b < (end + BLOCK - 1) / BLOCK; b++)
                check_write(f, g, f->slots[seg->slot].s_tables[g][b], seg->slot);
    }
}

static enum status fake_submit_body(struct device *device, const struct step *step)
{
    struct fake *f = (struct fake *)device;
    struct error err;
    enum status st = STATUS_OK;

    pthread_mutex_lock(&f->mutex);
    if (f->lost) {
        st = STATUS_DEVICE_LOST;
    } else if (one_in(f, f->options.refuse_one_in)) {
        st = STATUS_DEVICE;
    } else {
        MUST(step->seq_no == f->submitted + 1);
        MUST(f->submitted - f->released < f->limits.steps_inflight);
        f->submitted++;
        struct fake_flight *flight = &f->flights[f->submitted % FLIGHTS_MAX];
        flight->step = step;
        flight->sampled = flight->done = false;
        flight->use_count = 0;
        if (!f->options.answer_only) {
            if (step_check(step, f->plan, &f->limits, &err)) {
                fprintf(stderr, "%s\n", err.message);
                abort();
            }
            check_changes(f, step);
            check_segments(f, flight);
        }
    }
    pthread_mutex_unlock(&f->mutex);
    return st;
}

static enum status fake_submit_sample(struct device *device, const struct step *step,
                                      const struct step_masks *masks)
{
    struct fake *f = (struct fake *)device;

    (void)masks;
    pthread_mutex_lock(&f->mutex);
    struct fake_flight *flight = &f->flights[f->submitted % FLIGHTS_MAX];
    MUST(flight->step == step && !flight->sampled);
    flight->sampled = true;
    pthread_cond_broadcast(&f->cond);
    pthread_mutex_unlock(&f->mutex);
    return STATUS_OK;
}

/* --- running --------------------------------------------------------------------------------------------------- */

static struct cell *cell_at(struct fake *f, const struct slot *slot, uint32_t group,
                            uint32_t position)
{
    MUST(position / BLOCK < slot->table_count[group]);
    return &f->kv[group][(size_t)slot->tables[group][position / BLOCK] * BLOCK + position % BLOCK];
}

static void apply_changes(struct fake *f, const struct step *step)
{
    for (uint32_t i = 0; i < step->copy_count; i++) {
        const struct step_copy *c = &step_copies(step)[i];
        memcpy(&f->kv[c->group][(size_t)c->to * BLOCK], &f->kv[c->group][(size_t)c->from * BLOCK],
               BLOCK * sizeof(struct cell));
        f->counts.copies++;
    }
    for (uint32_t i = 0; i < step->open_count; i++) {
        const struct step_open *open = &step_opens(step)[i];
        struct slot *slot = &f->slots[open->slot];
        slot->opened = true;
        slot->broken = false;
        slot->len = slot->last_position = 0;
        memset(slot->table_count, 0, sizeof slot->table_count);
        slot->open = *open;
        MUST(open->banned_count <= 64);
        memcpy(slot->banned, step_ids(step) + open->banned_first, open->banned_count * 4);
    }
    for (uint32_t i = 0; i < step->table_count; i++) {
        const struct step_table_change *t = &step_tables(step)[i];
        struct slot *slot = &f->slots[t->slot];
        slot->tables[t->group][t->index] = t->block;
        if (t->index >= slot->table_count[t->group]) slot->table_count[t->group] = t->index + 1;
    }
}

static int32_t row_token(struct fake *f, const struct step_segment *seg, uint32_t row,
                         int32_t token)
{
    if (!token_is_ref(token)) return token;
    const struct slot *from = &f->slots[token_ref_slot(token)];
    MUST(token_ref_slot(token) == seg->slot && token_ref_index(token) == 0);
    MUST(from->last_position == seg->context_len + row);
    return from->last_token;
}

/* All tokens before `end`, read as attention would read them; group by group the same. */
static uint64_t read_history(struct fake *f, const struct slot *slot, uint32_t end)
{
    uint64_t first = 0;

    for (uint32_t g = 0; g < f->plan->group_count; g++) {
        uint64_t history = 0;
        for (uint32_t p = 0; p < end; p++) {
            const struct cell *cell = cell_at(f, slot, g, p);
            MUST(cell->written && cell->position == p);
            history = fake_history(history, cell->token);
        }
        MUST(g == 0 || history == first);
        first = history;
    }
    return first;
}

static void answer(struct fake *f, struct fake_flight *flight, struct slot *slot, uint32_t position,
                   uint64_t history, uint32_t output)
{
    const struct step_open *open = &slot->open;
    int32_t target = step_targets(flight->step)[output];
    struct step_output *out = &flight->outputs[output];
    struct top_logprob *tops = flight->tops + (size_t)output * 20;
    int32_t token = target;

    if (target == TARGET_SAMPLE) {
        token = fake_token(history, open->seed, position, f->plan->vocab_tokens, open->ban_until,
                           slot->banned, open->banned_count);
        slot->last_token = token;
        slot->last_position = position;
    }
    *out = (struct step_output){.token = token, .top_count = (uint8_t)open->top_logprobs};
    if (open->want_logprobs) out->logprob = fake_logprob(history, token);
    for (uint32_t i = 0; i < open->top_logprobs; i++) {
        int32_t id = (int32_t)((uint32_t)(token + (int32_t)i) % f->plan->vocab_tokens);
        tops[i] = (struct top_logprob){id, fake_logprob(history, id)};
    }
    if (one_in(f, f->options.bad_logits_one_in)) out->flags = OUTPUT_BAD_LOGITS;
}

static void run_segment(struct fake *f, struct fake_flight *flight, const struct step_segment *seg)
{
    struct slot *slot = &f->slots[seg->slot];
    uint64_t history;

    MUST(slot->opened);
    MUST(seg->context_len == slot->len || slot->len == 0);
    history = read_history(f, slot, seg->context_len);
    for (uint32_t r = 0; r < seg->rows; r++) {
        uint32_t position = seg->context_len + r;
        int32_t token = row_token(f, seg, r, step_tokens(flight->step)[seg->first_row + r]);
        for (uint32_t g = 0; g < f->plan->group_count; g++)
            *cell_at(f, slot, g, position) = (struct cell){token, position, true};
        history = fake_history(history, token);
        if (r >= seg->logits_first && r < seg->logits_first + seg->logits_count)
            answer(f, flight, slot, position + 1, history,
                   seg->output_first + r - seg->logits_first);
    }
    slot->len = seg->context_len + seg->rows;
}

/* A slot that a failed step held: until it is opened again nothing of it means anything. A step that was under way already may
 * still hold it; its rows are not computed, its outputs are nonsense that nobody may see. */
static void run_broken(struct fake *f, struct fake_flight *flight, const struct step_segment *seg)
{
    f->slots[seg->slot].len = seg->context_len + seg->rows;
    for (uint32_t i = 0; i < seg->logits_count; i++)
        flight->outputs[seg->output_first + i] = (struct step_output){.token = NONSENSE};
}

static void run_segments(struct fake *f, struct fake_flight *flight, bool fails)
{
    for (uint32_t i = 0; i < flight->step->segment_count; i++) {
        const struct step_segment *seg = &step_segments(flight->step)[i];

        if (fails) f->slots[seg->slot].broken = true;
        if (f->slots[seg->slot].broken)
            run_broken(f, flight, seg);
        else
            run_segment(f, flight, seg);
    }
}

static void run_step(struct fake *f, struct fake_flight *flight)
{
    const struct step *step = flight->step;
    bool fails = one_in(f, f->options.fail_one_in);
    static const struct step_output made_up = {.token = 1};

    flight->result = (struct step_result){.seq_no = step->seq_no,
                                          .output_count = step->output_count,
                                          .outputs = flight->outputs,
                                          .tops = flight->tops,
                                          .top_stride = 20};
    f->counts.steps++;
    f->counts.rows += step->row_count;
    if (step->row_count > f->counts.rows_max) f->counts.rows_max = step->row_count;
    if (step->segment_count > f->counts.segments_max) f->counts.segments_max = step->segment_count;
    if (f->options.answer_only) {
        for (uint32_t i = 0; i < step->output_count; i++)
            flight->outputs[i] = made_up;
        return;
    }
    apply_changes(f, step);
    run_segments(f, flight, fails);
    if (fails)
        flight->result.status =
            error_set(&flight->result.error, STATUS_DEVICE, "made to fail in step %llu",
                      (unsigned long long)step->seq_no);
}

static void pause_for(struct fake *f, const struct step *step)
{
    uint64_t ns = (uint64_t)step->row_count * f->options.row_ns;

    if (f->options.step_us) ns += draw(f) % (2000 * (uint64_t)f->options.step_us);
    if (ns == 0 && !f->options.hold) return;
    pthread_mutex_unlock(&f->mutex);
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
    while (f->options.hold && atomic_load(f->options.hold))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    pthread_mutex_lock(&f->mutex);
}

static void *device_thread(void *arg)
{
    struct fake *f = arg;

    pthread_mutex_lock(&f->mutex);
    for (;;) {
        struct fake_flight *flight = &f->flights[(f->ran + 1) % FLIGHTS_MAX];
        if (f->closing) break;
        if (f->ran == f->submitted || !flight->sampled) {
            pthread_cond_wait(&f->cond, &f->mutex);
            continue;
        }
        int64_t started_ns = clock_mono_ns();
        if (!f->lost) {
            pause_for(f, flight->step);
            run_step(f, flight);
        }
        flight->result.started_ns = started_ns;
        flight->result.ended_ns = clock_mono_ns();
        f->ran++;
        flight->done = true;
        if (f->options.lose_at && f->ran >= f->options.lose_at) { /* this step and all behind it */
            f->lost = true;
            flight->result.status =
                error_set(&flight->result.error, STATUS_DEVICE_LOST, "made to be lost");
        }
        pthread_cond_broadcast(&f->cond);
        pthread_mutex_unlock(&f->mutex);
        if (f->base.notify) f->base.notify(f->base.notify_ctx);
        pthread_mutex_lock(&f->mutex);
    }
    uint64_t never = f->lost ? f->submitted - f->ran : 0; /* none comes after these */
    pthread_mutex_unlock(&f->mutex);
    while (never-- > 0 && f->base.notify)
        f->base.notify(f->base.notify_ctx);
    return NULL;
}

/* --- the rest of the door --------------------------------------------------------------------------------------- */

static enum status fake_wait(struct device *device, uint64_t seq_no, int64_t timeout_ns,
                             const struct step_result **out)
{
    struct fake *f = (struct fake *)device;
    enum status st = STATUS_OK;

    pthread_mutex_lock(&f->mutex);
    MUST(seq_no == f->released + 1 && seq_no <= f->submitted);
    while (f->ran < seq_no && timeout_ns != 0 && !f->lost)
        pthread_cond_wait(&f->cond, &f->mutex);
    if (f->ran >= seq_no)
        *out = &f->flights[seq_no % FLIGHTS_MAX].result;
    else
        st = f->lost ? STATUS_DEVICE_LOST : STATUS_TIMEOUT;
    pthread_mutex_unlock(&f->mutex);
    return st;
}

static void fake_release(struct device *device, uint64_t seq_no)
{
    struct fake *f = (struct fake *)device;

    pthread_mutex_lock(&f->mutex);
    MUST(seq_no == f->released + 1 && f->ran >= seq_no);
    f->released++;
    pthread_mutex_unlock(&f->mutex);
}

static enum status fake_compile(struct device *device, const struct plan *plan,
                                const struct device_limits *limits, struct error *err)
{
    struct fake *f = (struct fake *)device;

    (void)err;
    f->plan = plan;
    f->limits = *limits;
    f->blocks_per_seq = (limits->context_tokens + BLOCK - 1) / BLOCK;
    f->slots = must_calloc(limits->slots_max, sizeof *f->slots);
    f->use_cap = limits->slots_max * plan->group_count * (f->blocks_per_seq + 1);
    for (uint32_t i = 0; i < limits->slots_max && !f->options.answer_only; i++)
        for (uint32_t g = 0; g < plan->group_count; g++) {
            f->slots[i].tables[g] = must_calloc(f->blocks_per_seq, 4);
            f->slots[i].s_tables[g] = must_calloc(f->blocks_per_seq, 4);
        }
    for (uint32_t g = 0; g < plan->group_count && !f->options.answer_only; g++)
        f->kv[g] = must_calloc((size_t)limits->kv_blocks[g] * BLOCK, sizeof(struct cell));
    for (int i = 0; i < FLIGHTS_MAX; i++) {
        f->flights[i].outputs = must_calloc(limits->logits_max, sizeof(struct step_output));
        f->flights[i].tops =
            must_calloc((size_t)limits->logits_max * 20, sizeof(struct top_logprob));
        if (!f->options.answer_only)
            f->flights[i].uses = must_calloc(f->use_cap, sizeof(struct use));
    }
    MUST(!pthread_create(&f->thread, NULL, device_thread, f));
    return STATUS_OK;
}

static void fake_close(struct device *device)
{
    struct fake *f = (struct fake *)device;

    pthread_mutex_lock(&f->mutex);
    f->closing = true;
    pthread_cond_broadcast(&f->cond);
    pthread_mutex_unlock(&f->mutex);
    pthread_join(f->thread, NULL);
    for (uint32_t i = 0; i < f->limits.slots_max; i++)
        for (uint32_t g = 0; g < PLAN_GROUPS_MAX; g++) {
            free(f->slots[i].tables[g]);
            free(f->slots[i].s_tables[g]);
        }
    for (uint32_t g = 0; g < PLAN_GROUPS_MAX; g++)
        free(f->kv[g]);
    for (int i = 0; i < FLIGHTS_MAX; i++) {
        free(f->flights[i].outputs);
        free(f->flights[i].tops);
        free(f->flights[i].uses);
    }
    free(f->slots);
    pthread_mutex_destroy(&f->mutex);
    pthread_cond_destroy(&f->cond);
    free(f);
}

static struct device_health fake_health(const struct device *device)
{
    struct fake *f = (struct fake *)(uintptr_t)device;
    struct device_health health;

    pthread_mutex_lock(&f->mutex);
    health = (struct device_health){
        .ok = !f->lost, .reason = f->lost ? "made to be lost" : NULL, .steps_done = f->ran};
    pthread_mutex_unlock(&f->mutex);
    return health;
}

static const char *fake_description(const struct device *device)
{
    (void)device;
    return "fake";
}

static const struct device_ops ops = {
    .close = fake_close,
    .compile = fake_compile,
    .submit_body = fake_submit_body,
    .submit_sample = fake_submit_sample,
    .wait = fake_wait,
    .release = fake_release,
    .health = fake_health,
    .description = fake_description,
};

struct device *fake_device_open(const struct fake_options *options)
{
    struct fake *f = must_calloc(1, sizeof *f);

    f->base.ops = &ops;
    f->options = *options;
    f->random = options->seed;
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->cond, NULL);
    return &f->base;
}

struct fake_counts fake_device_counts(struct device *device)
{
    struct fake *f = (struct fake *)device;
    struct fake_counts counts;

    pthread_mutex_lock(&f->mutex);
    counts = f->counts;
    pthread_mutex_unlock(&f->mutex);
    return counts;
}
