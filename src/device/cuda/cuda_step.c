/* cuda_step.c - a step to launches: its image is packed and sent up, state changes first, then the body as a graph or
 * launch by launch, then the sampling. Runs on the engine's thread; allocates nothing. */
#include <assert.h>
#include <math.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_device.h"

/* Writes arrays into the pinned image, 16-byte aligned, and tells where each lies on the device. */
struct packer {
    char *host, *device;
    uint64_t at, room;
};

static void *pack(struct packer *p, uint64_t count, size_t size, const void **on_device)
{
    void *host = p->host + p->at;

    *on_device = p->device + p->at;
    p->at = (p->at + count * size + 15) / 16 * 16;
    assert(p->at <= p->room);
    return host;
}

static const void *pack_copy(struct packer *p, const void *from, uint64_t count, size_t size)
{
    const void *on_device;
    void *to = pack(p, count, size, &on_device);

    if (count) memcpy(to, from, count * size);
    return on_device;
}

struct slot_state cuda_slot_state(const struct cuda_device *d)
{
    return (struct slot_state){(struct slot_params *)d->b.params,
                               (int32_t *)d->b.banned,
                               (struct slot_bias *)d->b.biases,
                               (uint16_t *)d->b.seen,
                               d->b.last,
                               d->limits.slots_max,
                               d->limits.banned_max,
                               d->limits.bias_max,
                               d->b.seen_stride};
}

/* --- state changes --- */

static struct slot_params params_of(const struct step_open *o)
{
    return (struct slot_params){
        .temperature = o->temperature,
        .top_p = o->top_p,
        .min_p_log = o->min_p > 0 ? logf(o->min_p) : -INFINITY,
        .top_k = o->top_k,
        .repetition_penalty = o->repetition_penalty,
        .frequency_penalty = o->frequency_penalty,
        .presence_penalty = o->presence_penalty,
        .ban_until = o->ban_until,
        .seed = o->seed,
        .top_logprobs = o->top_logprobs,
        .want_logprobs = o->want_logprobs,
        .banned_count = o->banned_count,
        .bias_count = o->bias_count,
        .counts_seen =
            o->repetition_penalty != 1 || o->frequency_penalty != 0 || o->presence_penalty != 0,
        .slot = o->slot,
        .banned_first = o->banned_first,
        .prompt_first = o->prompt_first,
        .prompt_count = o->prompt_count,
        .sampled_first = o->sampled_first,
        .sampled_count = o->sampled_count,
        .bias_first = o->bias_first,
    };
}

struct changes {
    const void *opens, *ids, *biases;
    const void *copies[PLAN_GROUPS_MAX];
    uint32_t copy_counts[PLAN_GROUPS_MAX];
};

static void pack_changes(struct cuda_device *d, const struct step *step, struct packer *p,
                         struct changes *c)
{
    struct slot_params *opens = pack(p, step->open_count, sizeof *opens, &c->opens);

    for (uint32_t i = 0; i < step->open_count; i++)
        opens[i] = params_of(&step_opens(step)[i]);
    c->ids = pack_copy(p, step_ids(step), step->id_count, sizeof(int32_t));
    c->biases = pack_copy(p, step_biases(step), step->bias_count, sizeof(struct step_bias));
    for (uint32_t g = 0; g < d->plan->group_count; g++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < step->copy_count; i++)
            n += step_copies(step)[i].group == g;
        struct state_copy *copies = pack(p, n, sizeof *copies, &c->copies[g]);
        c->copy_counts[g] = n;
        n = 0;
        for (uint32_t i = 0; i < step->copy_count; i++)
            if (step_copies(step)[i].group == g)
                copies[n++] =
                    (struct state_copy){step_copies(step)[i].from, step_copies(step)[i].to};
    }
}

/* --- rows, tiles, outputs --- */

static uint32_t group_size(const struct cuda_device *d)
{
    for (uint32_t i = 0; i < d->plan->stage_count; i++)
        if (d->plan->stages[i].kind == STAGE_ATTN)
            return d->plan->stages[i].attn.heads / d->plan->stages[i].attn.kv_heads;
    return 1;
}

/* By the position of a tile's first row: what it costs. Ties in the order of rows, so that the list is always the same. */
static int longest_first(const struct prefill_tile *x, const struct prefill_tile *y, int32_t group)
{
    int32_t ends[2] = {x->position + x->pair / group, y->position + y->pair / group};

    if (ends[0] != ends[1]) return ends[0] < ends[1] ? 1 : -1;
    return x->first_row != y->first_row
               ? (x->first_row > y->first_row) - (x->first_row < y->first_row)
               : (x->pair > y->pair) - (x->pair < y->pair);
}

/* To its place below `at` in a heap of `count` tiles whose root is the last in that order. */
static void sift_down(struct prefill_tile *tiles, uint32_t at, uint32_t count, int32_t group)
{
    struct prefill_tile moving = tiles[at];

    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && longest_first(&tiles[child], &tiles[child + 1], group) < 0)
            child++;
        if (longest_first(&moving, &tiles[child], group) >= 0) break;
        tiles[at] = tiles[child];
    }
    tiles[at] = moving;
}

/* In place: qsort takes memory for what is longer than a kilobyte, and 2,048 rows have more tiles than that. */
static void sort_tiles(struct prefill_tile *tiles, uint32_t count, int32_t group)
{
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(tiles, i, count, group);
    for (uint32_t last = count; last-- > 1;) {
        struct prefill_tile kept = tiles[last];
        tiles[last] = tiles[0], tiles[0] = kept;
        sift_down(tiles, 0, last, group);
    }
}

/* Whether a row of the segment's tile that begins with this pair wants logits. */
static bool wants_logits(const struct step_segment *s, uint32_t pair, uint32_t group)
{
    uint32_t first = pair / group, last = (pair + CUDA_TILE_PAIRS - 1) / group;

    return s->logits_count && first < s->logits_first + s->logits_count && last >= s->logits_first;
}

/* Sorted tiles of all segments of several rows, or, for the last attention, of those with a row that wants logits. */
static const struct prefill_tile *pack_tiles(const struct step *step, bool last, uint32_t group,
                                             struct packer *p, uint32_t *count)
{
    const void *on_device;
    struct prefill_tile *tiles = NULL;

    for (int pass = 0; pass < 2; pass++) { /* counted, then written */
        if (pass) tiles = pack(p, *count, sizeof *tiles, &on_device);
        *count = 0;
        for (uint32_t i = 0; i < step->segment_count; i++) {
            const struct step_segment *s = &step_segments(step)[i];
            for (uint32_t pair = 0; s->rows > 1 && pair < s->rows * group;
                 pair += CUDA_TILE_PAIRS) {
                if (last && !wants_logits(s, pair, group)) continue;
                if (pass)
                    tiles[*count] = (struct prefill_tile){(int32_t)s->first_row, (int32_t)s->rows,
                                                          (int32_t)s->context_len, (int32_t)s->slot,
                                                          (int32_t)pair};
                ++*count;
            }
        }
    }
    sort_tiles(tiles, *count, (int32_t)group);
    return on_device;
}

static void pack_segments(struct cuda_device *d, const struct step *step, struct packer *p,
                          struct cuda_forward *f)
{
    const struct step_segment *segments = step_segments(step);
    uint32_t group = group_size(d), decodes = 0, longest = 0;
    const void *on_device;
    int32_t *list;

    for (uint32_t i = 0; i < step->segment_count; i++) {
        if (segments[i].rows != 1) continue;
        decodes++;
        if (segments[i].context_len >= longest) longest = segments[i].context_len + 1;
    }
    f->decode_rows = decodes, f->decode_tokens = longest;
    f->has_chunks = decodes < step->segment_count;
    if (!f->has_chunks) return;
    list = pack(p, decodes, sizeof *list, &on_device);
    f->decode_list = on_device;
    for (uint32_t i = 0; i < step->segment_count; i++)
        if (segments[i].rows == 1) *list++ = (int32_t)segments[i].first_row;
    f->tiles = pack_tiles(step, false, group, p, &f->tile_count);
    f->last_tiles = pack_tiles(step, true, group, p, &f->last_tile_count);
}

static const void *pack_rows(const struct step *step, struct packer *p)
{
    const void *on_device;
    struct state_row *rows = pack(p, step->row_count, sizeof *rows, &on_device);

    for (uint32_t i = 0; i < step->segment_count; i++) {
        const struct step_segment *s = &step_segments(step)[i];
        for (uint32_t r = 0; r < s->rows; r++)
            rows[s->first_row + r] =
                (struct state_row){step_tokens(step)[s->first_row + r],
                                   (int32_t)(s->context_len + r), (int32_t)s->slot};
    }
    return on_device;
}

/* Rows of one slot are drawn in order, one round each: penalties see what was drawn before. */
static const void *pack_outputs(struct cuda_flight_state *f, const struct step *step,
                                struct packer *p)
{
    const void *rows_at, *samples_at;
    int32_t *rows = pack(p, step->output_count, sizeof *rows, &rows_at);
    struct sample_row *samples = pack(p, step->output_count, sizeof *samples, &samples_at);

    f->sample_rows = samples_at;
    f->rounds = step->output_count > 0;
    for (uint32_t i = 0; i < step->segment_count; i++) {
        const struct step_segment *s = &step_segments(step)[i];
        uint32_t drawn = 0;
        for (uint32_t k = 0; k < s->logits_count; k++) {
            uint32_t o = s->output_first + k, row = s->logits_first + k;
            int32_t target = step_targets(step)[o];
            rows[o] = (int32_t)(s->first_row + row);
            samples[o] = (struct sample_row){
                .slot = (int32_t)s->slot,
                .position = s->context_len + row + 1,
                .target = target,
                .round = target < 0 ? drawn : 0,
                .drawn = target < 0 && drawn < CUDA_REFS ? (int32_t)drawn : -1,
                .mask = -1, /* set when the masks are known */
            };
            drawn += target < 0;
            if (drawn > f->rounds) f->rounds = drawn;
        }
    }
    return rows_at;
}

/* The smallest bucket that holds the step, or -1: launch by launch. */
static int bucket_of(const struct cuda_device *d, const struct step *step,
                     const struct cuda_forward *f)
{
    if (d->options.enforce_eager || f->has_chunks || !step->row_count) return -1;
    for (uint32_t i = 0; i < d->b.bucket_count; i++)
        if (d->b.buckets[i] >= step->row_count && d->b.buckets[i] >= step->output_count &&
            d->graphs[i])
            return (int)i;
    return -1;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* A step in its image: where its parts lie on the device, and how its body runs. */
struct packed {
    uint64_t bytes;
    struct changes changes;
    const void *tables, *rows, *out_rows;
    struct cuda_forward forward;
    int bucket; /* -1: launch by launch */
};

static void pack_step(struct cuda_device *d, uint32_t index, const struct step *step,
                      struct packed *out)
{
    struct cuda_flight *memory = &d->b.flights[index];
    struct packer p = {memory->host_image, memory->image, 0, d->b.image_bytes};
    struct cuda_forward f = {.rows = step->row_count, .outputs = step->output_count};

    pack_changes(d, step, &p, &out->changes);
    out->tables =
        pack_copy(&p, step_tables(step), step->table_count, sizeof(struct step_table_change));
    out->rows = pack_rows(step, &p);
    out->out_rows = pack_outputs(&d->flights[index], step, &p);
    pack_segments(d, step, &p, &f);
    f.chain = !f.has_chunks && step->segment_count == 1 &&
              cuda_chain_takes(d, step->row_count, step_segments(step)[0].context_len);
    out->forward = f;
    out->bucket = bucket_of(d, step, &f);
    out->bytes = p.at;
}

/* On its own stream, while the step before runs. */
static cudaError_t send_image(struct cuda_device *d, uint32_t index, uint64_t bytes)
{
    struct cuda_flight *memory = &d->b.flights[index];
    cudaEvent_t uploaded = d->flights[index].uploaded;
    cudaError_t e = cudaMemcpyAsync(memory->image, memory->host_image, bytes,
                                    cudaMemcpyHostToDevice, d->upload);

    if (!e) e = cudaEventRecord(uploaded, d->upload);
    return e ? e : cudaStreamWaitEvent(d->ctx.stream, uploaded, 0);
}

/* Sequences that begin, and copies between blocks. */
static cudaError_t apply_changes(struct cuda_device *d, const struct step *step,
                                 const struct changes *c)
{
    struct slot_state state = cuda_slot_state(d);
    cudaError_t e = state_open(&d->ctx, &state, c->opens, step->open_count, c->ids, c->biases);

    for (uint32_t g = 0; !e && g < d->plan->group_count; g++)
        e = state_copy_blocks(&d->ctx, d->b.groups[g].pool, d->plan->groups[g].layers,
                              d->b.groups[g].blocks, d->b.groups[g].block_bytes, c->copies[g],
                              c->copy_counts[g]);
    return e;
}

/* Block tables, and what the body reads of each row; rows that fill a bucket up become padding. */
static cudaError_t set_rows(struct cuda_device *d, const struct step *step, const struct packed *p)
{
    uint32_t bucket_rows = p->bucket >= 0 ? d->b.buckets[p->bucket] : 0;
    struct state_rows_args a = {
        .rows = step->row_count,
        .padded_rows = bucket_rows ? bucket_rows : step->row_count,
        .in = p->rows,
        .outputs = step->output_count,
        .padded_outputs = bucket_rows ? min_u32(bucket_rows, d->b.outputs) : step->output_count,
        .out_rows_in = p->out_rows,
        .table_count = step->table_count,
        .tables_in = p->tables,
        .last = d->b.last,
        .group_count = d->plan->group_count,
        .table_stride = d->b.table_stride,
        .tokens = d->b.tokens,
        .positions = d->b.positions,
        .slots = d->b.row_slots,
        .out_rows = d->b.out_rows,
    };

    if (!step->row_count && !step->table_count) return cudaSuccess;
    for (uint32_t g = 0; g < d->plan->group_count; g++)
        a.tables[g] = d->b.groups[g].tables, a.kv_slots[g] = d->b.groups[g].kv_slots;
    return state_rows(&d->ctx, &a);
}

static cudaGraphExec_t graph_of(const struct cuda_device *d, const struct packed *p)
{
    if (p->forward.chain) return d->chain.graph;
    return d->short_graphs[p->bucket] && p->forward.decode_tokens <= CUDA_SHORT_TOKENS
               ? d->short_graphs[p->bucket]
               : d->graphs[p->bucket];
}

cudaError_t cuda_enqueue_body(struct cuda_device *d, uint32_t index, const struct step *step)
{
    struct packed p;
    cudaError_t e;

    nvtxRangePushA("step body");
    pack_step(d, index, step, &p);
    e = send_image(d, index, p.bytes);
    if (!e) e = apply_changes(d, step, &p.changes);
    if (!e) e = set_rows(d, step, &p);
    if (!e && p.bucket >= 0)
        e = cudaGraphLaunch(graph_of(d, &p), d->ctx.stream);
    else if (!e && step->row_count)
        e = cuda_forward_run(d, &p.forward);
    nvtxRangePop();
    return e;
}

static cudaError_t send_masks(struct cuda_device *d, uint32_t index, const struct step *step,
                              const struct step_masks *masks)
{
    struct cuda_flight *memory = &d->b.flights[index];
    struct sample_row *rows =
        (struct sample_row *)(memory->host_image +
                              ((const char *)d->flights[index].sample_rows - memory->image));
    uint64_t words = d->b.mask_words;
    uint32_t count = 0;
    cudaError_t e;

    for (uint32_t i = 0; i < step->output_count; i++) {
        if (!masks->masks[i]) continue;
        memcpy(memory->host_masks + count * words * 4, masks->masks[i], words * 4);
        rows[i].mask = (int32_t)count++;
    }
    if (!count) return cudaSuccess;
    e = cudaMemcpyAsync(memory->masks, memory->host_masks, count * words * 4,
                        cudaMemcpyHostToDevice, d->ctx.stream);
    if (!e)
        e = cudaMemcpyAsync((void *)(uintptr_t)d->flights[index].sample_rows, rows,
                            step->output_count * sizeof *rows, cudaMemcpyHostToDevice,
                            d->ctx.stream);
    return e;
}

cudaError_t cuda_enqueue_sample(struct cuda_device *d, uint32_t index, const struct step *step,
                                const struct step_masks *masks)
{
    struct cuda_flight *memory = &d->b.flights[index];
    struct cuda_flight_state *f = &d->flights[index];
    struct kernel_context ctx = d->ctx;
    cudaError_t e = cudaSuccess;
    struct sample_args a = {
        .rows = step->output_count,
        .in = f->sample_rows,
        .logits = d->b.logits,
        .stride = d->b.logits_stride,
        .vocab_rows = d->plan->vocab_rows,
        .vocab_tokens = d->plan->vocab_tokens,
        .masks = (const uint32_t *)memory->masks,
        .mask_words = d->b.mask_words,
        .state = cuda_slot_state(d),
        .work = d->b.work,
        .partials = (struct sample_partial *)d->b.sample_partials,
        .counters = (uint32_t *)d->b.sample_counters,
        .out = (struct sample_output *)memory->host_outputs,
        .tops = (struct sample_top *)memory->host_tops,
        .top_stride = d->limits.top_logprobs_max,
    };

    nvtxRangePushA("step sample");
    ctx.pdl = false; /* behind a graph: nothing to overlap with */
    if (masks) e = send_masks(d, index, step, masks);
    for (a.round = 0; !e && a.round < f->rounds; a.round++)
        e = sample_rows(&ctx, &a);
    if (!e && (step->flags & STEP_KEEP_LOGITS) && step->output_count)
        e = cudaMemcpy2DAsync(memory->host_logits, d->plan->vocab_rows * sizeof(float), d->b.logits,
                              d->b.logits_stride * sizeof(float),
                              d->plan->vocab_rows * sizeof(float), step->output_count,
                              cudaMemcpyDeviceToHost, d->ctx.stream);
    if (!e) e = cudaEventRecord(f->done, d->ctx.stream);
    nvtxRangePop();
    return e;
}
