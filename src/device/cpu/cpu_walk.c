/* cpu_walk.c - one step on the CPU: changes of state, the stage list, then the sampling. Runs on the device thread. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/file_map.h"
#include "base/log.h"
#include "device/cpu/cpu_device.h"
#include "device/dummy_weights.h"

enum {
    ROWS_GRAIN = 4,
    DRAFT_ROWS_MAX =
        8 /* a segment of more rows is a prompt's; decoding has one, or a few of a draft */
};

/* --- before the body: copies, opens, tables --- */

static void apply_changes(struct cpu_device *d)
{
    const struct step *step = d->step;

    for (uint32_t i = 0; i < step->copy_count; i++) {
        const struct step_copy *c = &step_copies(step)[i];
        struct cpu_group *g = &d->b.groups[c->group];
        memcpy(g->pool + c->to * g->block_bytes, g->pool + c->from * g->block_bytes,
               g->block_bytes);
    }
    for (uint32_t i = 0; i < step->open_count; i++)
        sample_slot_open(&d->b.slots[step_opens(step)[i].slot], step, i, d->plan->vocab_rows);
    for (uint32_t i = 0; i < step->table_count; i++) {
        const struct step_table_change *t = &step_tables(step)[i];
        struct cpu_group *g = &d->b.groups[t->group];
        g->tables[(uint64_t)t->slot * g->blocks_per_slot + t->index] = t->block;
    }
    for (uint32_t i = 0; i < step->segment_count; i++) {
        const struct step_segment *s = &step_segments(step)[i];
        for (uint32_t r = 0; r < s->rows; r++)
            d->b.row_segment[s->first_row + r] = i;
    }
}

/* --- stages --- */

struct stage_job {
    struct cpu_device *d;
    const struct cpu_stage *s;
    const float *x; /* rows to prepare */
    uint64_t x_stride;
    uint32_t rows;
    uint32_t item_rows; /* ffn_in: outputs per item */
};

static uint32_t tile_grain(const struct cpu_device *d, uint32_t tiles)
{
    uint32_t grain = tiles / (cpu_pool_used(d->pool) * 6);

    return grain ? grain : 1;
}

static void embed_row(struct cpu_device *d, const struct stage_embed *e, uint32_t row)
{
    int32_t token = step_tokens(d->step)[row];
    float *x = d->b.x + (uint64_t)row * d->plan->hidden;
    const void *from;

    if (token_is_ref(token)) token = d->b.slots[token_ref_slot(token)].last[token_ref_index(token)];
    if (e->table.data) {
        from = (const char *)e->table.data + (uint64_t)token * e->table.row_stride;
    } else { /* made up on the spot, in the row's own attention buffer's place */
        dummy_weight_row(&e->table, (uint32_t)token, d->b.h + (uint64_t)row * d->plan->hidden);
        from = d->b.h + (uint64_t)row * d->plan->hidden;
    }
    quant_row_to_f32(e->table.dtype, from, e->table.cols, x);
    if (e->scale != 1)
        for (uint32_t i = 0; i < d->plan->hidden; i++)
            x[i] *= e->scale;
}

static void embed_rows(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;

    (void)thread;
    for (uint32_t r = begin; r < end; r++)
        embed_row(j->d, &j->s->plan->embed, r);
}

/* A token's row is read from the mapped file, and each read brings its neighbours in: without this the whole table would
 * come to stay beside the packed head. Giving all pages back takes about 0.1 ms; they stay in the page cache. */
static void run_embed(struct stage_job *j)
{
    enum { ROWS_UNTIL_DROP = 256 };
    const struct plan_weight *table = &j->s->plan->embed.table;

    cpu_pool_run(j->d->pool, embed_rows, j, j->rows, ROWS_GRAIN);
    j->d->embedded_rows += j->rows;
    if (!table->mapped || j->d->embedded_rows < ROWS_UNTIL_DROP) return;
    file_map_drop(table->data, table->row_stride * table->rows);
    j->d->embedded_rows = 0;
}

/* Prepares rows of x for every kind of input that the stage's linears read. */
static void prepare_rows(struct stage_job *j, const float *x, uint64_t stride, uint32_t begin,
                         uint32_t end)
{
    bool prepared[LINEAR_INPUT_COUNT] = {false};

    for (uint32_t i = 0; i < j->s->linear_count; i++) {
        enum linear_input kind = linear_input_kind(&j->s->linears[i]);
        if (prepared[kind]) continue;
        prepared[kind] = true;
        linear_prepare(kind, j->d->isa, x, stride, j->s->linears[i].weight.cols,
                       j->d->b.inputs[kind], begin, end);
    }
}

static const void *input_of(const struct stage_job *j, uint32_t i)
{
    return j->d->b.inputs[linear_input_kind(&j->s->linears[i])];
}

static void norm_rows(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;
    struct cpu_device *d = j->d;
    const struct plan_norm *norm =
        j->s->plan->kind == STAGE_ATTN_IN ? &j->s->plan->attn_in.norm : &j->s->plan->ffn_in.norm;
    const float *from = d->b.x;

    (void)thread;
    if (j->s->norm) {
        for (uint32_t r = begin; r < end; r++)
            d->kernels->norm(d->b.x + (uint64_t)r * d->plan->hidden, d->plan->hidden, norm->eps,
                             j->s->norm, norm->gain_offset, d->b.h + (uint64_t)r * d->plan->hidden);
        from = d->b.h;
    }
    prepare_rows(j, from, d->plan->hidden, begin, end);
}

/* attn_in: the tiles of q, k and v are one list. */
static void qkv_tiles(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;
    uint32_t first = 0;

    (void)thread;
    for (uint32_t i = 0; i < j->s->linear_count; i++) {
        const struct linear *l = &j->s->linears[i];
        uint32_t from = begin > first ? begin - first : 0;
        uint32_t to = end > first ? (end - first < l->tiles ? end - first : l->tiles) : 0;
        if (from < to)
            linear_run(l, input_of(j, i), j->rows, j->d->b.qkv + j->s->y_at[i], j->d->plan->qkv_max,
                       from, to);
        first += l->tiles;
    }
}

static void add_vector(float *y, const float *bias, uint32_t n)
{
    for (uint32_t i = 0; bias && i < n; i++)
        y[i] += bias[i];
}

/* One row of q, k, v: biases, head norms, rotation, and the new key and value into their block. */
static void finish_qkv_row(struct cpu_device *d, const struct cpu_stage *s, uint32_t row)
{
    const struct stage_attn_in *a = &s->plan->attn_in;
    const struct step_segment *seg = &step_segments(d->step)[d->b.row_segment[row]];
    const struct cpu_group *group = &d->b.groups[a->group];
    uint32_t pos = seg->context_len + row - seg->first_row, dim = a->head_dim;
    float *q = d->b.qkv + (uint64_t)row * d->plan->qkv_max;
    float *k = q + s->y_at[1], *v = q + s->y_at[2];
    struct cpu_kv_place place =
        cpu_kv_place(group, &d->plan->groups[a->group], seg->slot, a->group_layer, pos);

    add_vector(q, s->biases[0], a->heads * dim);
    add_vector(k, s->biases[1], a->kv_heads * dim);
    add_vector(v, s->biases[2], a->kv_heads * dim);
    for (uint32_t h = 0; h < a->heads; h++) {
        if (s->q_norm)
            d->kernels->norm(q + h * dim, dim, a->q_norm.eps, s->q_norm, a->q_norm.gain_offset,
                             q + h * dim);
        cpu_rope_turn(&d->plan->ropes[a->rope], &d->b.ropes[a->rope], a->pairing, pos, q + h * dim);
    }
    for (uint32_t h = 0; h < a->kv_heads; h++) {
        uint64_t element = group->half ? 2 : 4;
        char *tile = place.tile + h * group->head_bytes;
        if (s->k_norm)
            d->kernels->norm(k + h * dim, dim, a->k_norm.eps, s->k_norm, a->k_norm.gain_offset,
                             k + h * dim);
        cpu_rope_turn(&d->plan->ropes[a->rope], &d->b.ropes[a->rope], a->pairing, pos, k + h * dim);
        d->kernels->kv_store(k + h * dim, v + h * dim, dim, group->dim_padded, group->half,
                             place.column, tile, tile + KV_TILE * dim * element);
    }
}

static void finish_qkv(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;

    (void)thread;
    for (uint32_t r = begin; r < end; r++)
        finish_qkv_row(j->d, j->s, r);
}

static void run_attn_in(struct stage_job *j)
{
    uint32_t tiles = 0;

    for (uint32_t i = 0; i < j->s->linear_count; i++)
        tiles += j->s->linears[i].tiles;
    cpu_pool_run(j->d->pool, norm_rows, j, j->rows, ROWS_GRAIN);
    cpu_pool_run(j->d->pool, qkv_tiles, j, tiles, tile_grain(j->d, tiles));
    cpu_pool_run(j->d->pool, finish_qkv, j, j->rows, ROWS_GRAIN);
}

/* --- attn_out, ffn_out: x = x + post_norm(y + bias) --- */

static void prepare_project(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;

    (void)thread;
    prepare_rows(j, j->x, j->x_stride, begin, end);
}

static void add_columns(struct stage_job *j, uint32_t first, uint32_t last)
{
    uint32_t hidden = j->d->plan->hidden;
    const float *bias = j->s->biases[0];

    for (uint32_t r = 0; r < j->rows; r++) {
        float *x = j->d->b.x + (uint64_t)r * hidden;
        float *y = j->d->b.h + (uint64_t)r * hidden;
        for (uint32_t i = first; bias && i < last; i++)
            y[i] += bias[i];
        for (uint32_t i = first; !j->s->post_norm && i < last; i++)
            x[i] += y[i];
    }
}

static void project_tiles(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;
    const struct linear *l = &j->s->linears[0];
    uint32_t last = end * l->tile_rows < l->weight.rows ? end * l->tile_rows : l->weight.rows;

    (void)thread;
    linear_run(l, input_of(j, 0), j->rows, j->d->b.h, j->d->plan->hidden, begin, end);
    add_columns(j, begin * l->tile_rows, last);
}

static void add_normed_rows(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;
    const struct stage *plan = j->s->plan;
    const struct plan_norm *norm =
        plan->kind == STAGE_ATTN_OUT ? &plan->attn_out.post_norm : &plan->ffn_out.post_norm;
    uint32_t hidden = j->d->plan->hidden;

    (void)thread;
    for (uint32_t r = begin; r < end; r++) {
        float *x = j->d->b.x + (uint64_t)r * hidden, *y = j->d->b.h + (uint64_t)r * hidden;
        j->d->kernels->norm(y, hidden, norm->eps, j->s->post_norm, norm->gain_offset, y);
        for (uint32_t i = 0; i < hidden; i++)
            x[i] += y[i];
    }
}

static void run_project(struct stage_job *j, const float *x, uint64_t stride)
{
    const struct linear *l = &j->s->linears[0];

    j->x = x, j->x_stride = stride;
    cpu_pool_run(j->d->pool, prepare_project, j, j->rows, ROWS_GRAIN);
    cpu_pool_run(j->d->pool, project_tiles, j, l->tiles, tile_grain(j->d, l->tiles));
    if (j->s->post_norm) cpu_pool_run(j->d->pool, add_normed_rows, j, j->rows, ROWS_GRAIN);
}

/* --- ffn_in --- */

static void ffn_items(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;
    struct cpu_device *d = j->d;
    uint32_t outputs = j->s->linears[0].weight.rows, stride = d->plan->ffn_max;
    uint32_t first = begin * j->item_rows;
    uint32_t last = end * j->item_rows < outputs ? end * j->item_rows : outputs;
    float *y[2] = {d->b.gate, d->b.up};

    (void)thread;
    for (uint32_t i = 0; i < 2; i++) {
        const struct linear *l = &j->s->linears[i];
        linear_run(l, input_of(j, i), j->rows, y[i], stride, first / l->tile_rows,
                   (last + l->tile_rows - 1) / l->tile_rows);
    }
    for (uint32_t r = 0; r < j->rows; r++) {
        float *gate = y[0] + (uint64_t)r * stride + first,
              *up = y[1] + (uint64_t)r * stride + first;
        if (j->s->biases[0]) add_vector(gate, j->s->biases[0] + first, last - first);
        if (j->s->biases[1]) add_vector(up, j->s->biases[1] + first, last - first);
        d->kernels->act_mul(j->s->plan->ffn_in.act, gate, up, last - first);
    }
}

static void run_ffn_in(struct stage_job *j)
{
    uint32_t a = j->s->linears[0].tile_rows, b = j->s->linears[1].tile_rows, items;

    j->item_rows = a > b ? a : b; /* an item covers whole tiles of both */
    assert(j->item_rows % a == 0 && j->item_rows % b == 0);
    items = (j->s->linears[0].weight.rows + j->item_rows - 1) / j->item_rows;
    cpu_pool_run(j->d->pool, norm_rows, j, j->rows, ROWS_GRAIN);
    cpu_pool_run(j->d->pool, ffn_items, j, items, tile_grain(j->d, items));
}

/* --- rows that want logits: behind the last attention only they are of use --- */

static uint32_t output_row(const struct step *step, uint32_t output)
{
    const struct step_segment *segments = step_segments(step);
    uint32_t low = 0, high = step->segment_count;

    while (high - low > 1) { /* the last segment that starts at or before it */
        uint32_t mid = (low + high) / 2;
        if (segments[mid].output_first <= output)
            low = mid;
        else
            high = mid;
    }
    while (segments[low].output_first + segments[low].logits_count <= output)
        low++;
    return segments[low].first_row + segments[low].logits_first + output -
           segments[low].output_first;
}

/* What the stages behind the last attention read of them, packed together: an output's row is never in front of its place. */
static void pack_outputs(struct cpu_device *d)
{
    const struct stage_attn *last = &d->plan->stages[d->last_attention].attn;
    const uint64_t x_bytes = d->plan->hidden * sizeof(float),
                   a_bytes = (uint64_t)last->heads * last->head_dim * sizeof(float);

    d->rows = d->step->output_count;
    for (uint32_t i = 0; i < d->rows; i++) {
        uint64_t row = output_row(d->step, i);
        if (row == i) continue;
        memcpy(d->b.x + i * (uint64_t)d->plan->hidden, d->b.x + row * d->plan->hidden, x_bytes);
        memcpy(d->b.attn + (uint64_t)i * d->b.attn_max, d->b.attn + row * d->b.attn_max, a_bytes);
    }
}

static void run_attention(struct cpu_device *d, const struct cpu_stage *s)
{
    const bool only_outputs =
        s == &d->b.stages[d->last_attention] && d->step->output_count < d->step->row_count;

    if (only_outputs) cpu_attention_begin(d, true);
    cpu_attention_run(d, &s->plan->attn);
    if (only_outputs) pack_outputs(d);
}

/* --- head --- */

/* The head keeps two int8 parts of each activation: an error of one part would meet the logits unfiltered, and near ties
 * would fall the other way. The rests stand behind the rows in the input. */
static void prepare_head_rests(struct stage_job *j, uint32_t begin, uint32_t end)
{
    struct cpu_device *d = j->d;
    uint32_t cols = j->s->linears[0].weight.cols;
    char *input = d->b.inputs[LINEAR_INPUT_Q8];

    for (uint32_t i = begin; i < end; i++) {
        float *h = d->b.h + (uint64_t)i * d->plan->hidden;
        linear_residual(h, cols, input, i, h);
    }
    linear_prepare(LINEAR_INPUT_Q8, d->isa, d->b.h, d->plan->hidden, cols,
                   input + j->rows * linear_input_row_bytes(LINEAR_INPUT_Q8, cols), begin, end);
}

static void norm_outputs(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;
    struct cpu_device *d = j->d;
    const struct plan_norm *norm = &j->s->plan->head.norm;
    uint64_t hidden = d->plan->hidden;

    (void)thread;
    for (uint32_t i = begin; i < end; i++) {
        const float *x = d->b.x + i * hidden;
        if (j->s->norm)
            d->kernels->norm(x, d->plan->hidden, norm->eps, j->s->norm, norm->gain_offset,
                             d->b.h + i * hidden);
        else
            memcpy(d->b.h + i * hidden, x, hidden * sizeof(float));
    }
    prepare_rows(j, d->b.h, hidden, begin, end);
    if (linear_input_kind(&j->s->linears[0]) == LINEAR_INPUT_Q8) prepare_head_rests(j, begin, end);
}

/* Adds to the logits of outputs [begin, end) of tiles what the int8 rows left out. */
static void add_head_rests(const struct stage_job *j, uint32_t begin, uint32_t end)
{
    enum { ROWS = 32, COLS = 512 };
    const struct linear *l = &j->s->linears[0];
    uint64_t row_bytes = linear_input_row_bytes(LINEAR_INPUT_Q8, l->weight.cols),
             stride = j->d->plan->vocab_rows;
    uint32_t first = begin * l->tile_rows, last = end * l->tile_rows;
    _Alignas(64) float rests[ROWS * COLS];

    if (last > l->weight.rows) last = l->weight.rows;
    assert(last - first <= COLS);
    for (uint32_t r = 0; r < j->rows; r += ROWS) {
        uint32_t rows = j->rows - r < ROWS ? j->rows - r : ROWS;
        const void *input = (const char *)input_of(j, 0) + (j->rows + r) * row_bytes;
        /* linear_run counts outputs from the weight's first: output `first` is to land at rests[0] */
        float *y = (float *)((uintptr_t)rests - first * sizeof(float));
        linear_run(l, input, rows, y, COLS, begin, end);
        for (uint32_t i = 0; i < rows; i++) {
            float *logits = &j->d->flight->logits[(r + i) * stride];
            for (uint32_t n = first; n < last; n++)
                logits[n] += rests[i * COLS + n - first];
        }
    }
}

static void head_tiles(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct stage_job *j = ctx;
    const struct linear *l = &j->s->linears[0];
    const struct stage_head *head = &j->s->plan->head;
    uint32_t last = end * l->tile_rows < l->weight.rows ? end * l->tile_rows : l->weight.rows;
    uint64_t stride = j->d->plan->vocab_rows;

    (void)thread;
    uint32_t step = 512 / l->tile_rows ? 512 / l->tile_rows
                                       : 1; /* weights of a piece stay in the second cache */
    bool two_parts = linear_input_kind(l) == LINEAR_INPUT_Q8;
    for (uint32_t t = begin; t < end; t += step) {
        uint32_t to = t + step < end ? t + step : end;
        linear_run(l, input_of(j, 0), j->rows, j->d->flight->logits, stride, t, to);
        if (two_parts) add_head_rests(j, t, to);
    }
    if (head->logit_scale == 1 && head->softcap == 0) return;
    for (uint32_t r = 0; r < j->rows; r++)
        for (uint32_t n = begin * l->tile_rows; n < last; n++) {
            float *y = &j->d->flight->logits[r * stride + n];
            *y *= head->logit_scale;
            if (head->softcap > 0) *y = head->softcap * tanhf(*y / head->softcap);
        }
}

static void run_head(struct stage_job *j)
{
    const struct linear *l = &j->s->linears[0];

    cpu_pool_run(j->d->pool, norm_outputs, j, j->rows, ROWS_GRAIN);
    cpu_pool_run(j->d->pool, head_tiles, j, l->tiles, tile_grain(j->d, l->tiles));
}

static void run_stage(struct cpu_device *d, const struct cpu_stage *s)
{
    struct stage_job j = {.d = d, .s = s, .rows = d->rows};

    switch (s->plan->kind) {
    case STAGE_EMBED: run_embed(&j); break;
    case STAGE_ATTN_IN: run_attn_in(&j); break;
    case STAGE_ATTN: run_attention(d, s); break;
    case STAGE_ATTN_OUT: run_project(&j, d->b.attn, d->b.attn_max); break;
    case STAGE_FFN_IN: run_ffn_in(&j); break;
    case STAGE_FFN_OUT: run_project(&j, d->b.gate, d->plan->ffn_max); break;
    case STAGE_HEAD: run_head(&j); break;
    case STAGE_SAMPLE: break; /* the second half of a step */
    }
}

/* Decoding waits for memory, a prompt for arithmetic: each may have its own number of threads. */
static void choose_threads(struct cpu_device *d)
{
    bool prompt = false;
    struct error err;

    for (uint32_t i = 0; i < d->step->segment_count && !prompt; i++)
        prompt = step_segments(d->step)[i].rows > DRAFT_ROWS_MAX;
    cpu_pool_use(d->pool, prompt ? d->threads.batch : d->threads.decode);
    if (!d->list.count || d->bound) return;
    d->bound = true; /* the thread that runs steps is the pool's thread 0 */
    if (cpu_list_bind(&d->list, 0, &err))
        log_warn("thread not bound", "reason=\"%s\"", err.message);
}

void cpu_run_body(void *device, uint32_t index, const struct step *step)
{
    struct cpu_device *d = device;

    d->step = step;
    d->rows = step->row_count;
    d->flight = &d->b.flights[index];
    choose_threads(d);
    apply_changes(d);
    if (!d->rows) return;
    cpu_attention_begin(d, false);
    for (uint32_t i = 0; i < d->plan->stage_count; i++) {
        /* in the middle of a prompt keys and values are all that is wanted */
        if (i == d->last_attention && !step->output_count) return;
        run_stage(d, &d->b.stages[i]);
    }
}

/* --- sampling: an item is a segment's drawn rows in order, or one scored row --- */

static void sample_output(struct cpu_device *d, uint32_t output, uint32_t *drawn,
                          struct cpu_thread_scratch *scratch)
{
    struct cpu_flight *f = d->flight;
    uint32_t row = output_row(d->step, output);
    const struct step_segment *seg = &step_segments(d->step)[d->b.row_segment[row]];
    struct sample_slot *slot = &d->b.slots[seg->slot];
    struct sample_row in = {
        .kernels = d->kernels,
        .logits = f->logits + (uint64_t)output * d->plan->vocab_rows,
        .vocab_rows = d->plan->vocab_rows,
        .vocab_tokens = d->plan->vocab_tokens,
        .mask = d->masks ? d->masks->masks[output] : NULL,
        .position = seg->context_len + row - seg->first_row + 1,
        .target = step_targets(d->step)[output],
    };

    sample_row(&in, slot, &scratch->sample, &f->outputs[output],
               f->tops + (uint64_t)output * d->limits.top_logprobs_max);
    if (in.target < 0 && *drawn < SAMPLE_REFS) slot->last[(*drawn)++] = f->outputs[output].token;
}

static void sample_items(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct cpu_device *d = ctx;
    const struct step *step = d->step;

    for (uint32_t o = begin; o < end; o++) {
        const struct step_segment *seg =
            &step_segments(step)[d->b.row_segment[output_row(step, o)]];
        uint32_t last = seg->output_first + seg->logits_count, drawn = 0;
        if (step_targets(step)[o] >= 0) {
            sample_output(d, o, &drawn, &d->b.scratch[thread]);
            continue;
        }
        bool first = true; /* of the segment's drawn rows: it takes the others along */
        for (uint32_t i = seg->output_first; i < o && first; i++)
            first = step_targets(step)[i] >= 0;
        for (uint32_t i = o; first && i < last; i++)
            if (step_targets(step)[i] < 0) sample_output(d, i, &drawn, &d->b.scratch[thread]);
    }
}

void cpu_run_sample(void *device, uint32_t index, const struct step *step,
                    const struct step_masks *masks, struct step_result *result)
{
    struct cpu_device *d = device;
    struct cpu_flight *f = &d->b.flights[index];

    d->masks = masks;
    cpu_pool_run(d->pool, sample_items, d, step->output_count, 1);
    result->output_count = step->output_count;
    result->outputs = f->outputs;
    result->tops = f->tops;
    result->top_stride = d->limits.top_logprobs_max;
    result->logits = step->flags & STEP_KEEP_LOGITS ? f->logits : NULL;
}
