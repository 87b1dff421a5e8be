#include "device/cuda/cuda_layout.h"

#include <assert.h>
#include <string.h>

enum {
    ROPE_PAIR_BYTES = 8,
    /* cuda_layout.h, struct cuda_driver_memory */
    /* measured: 548, of which 10 for products and code and up to 9 lost to rounding */
    CONTEXT_MIB = 576,
    LATER_MIB = 20,
    GRAPH_BYTES = 65536,
    GRAPH_LAUNCH_BYTES = 2048,
};

static const struct {
    const char *name;
    bool host;
} region_names[CUDA_REGION_COUNT] = {
    [CUDA_WEIGHTS] = {"weights, one copy", false},
    [CUDA_KV] = {"KV pool", false},
    [CUDA_ACTIVATIONS] = {"activations", false},
    [CUDA_LOGITS] = {"logits", false},
    [CUDA_ROPE] = {"rope tables", false},
    [CUDA_SLOTS] = {"sequence state", false},
    [CUDA_STEPS] = {"step images", false},
    [CUDA_WORKSPACE] = {"library workspace", false},
    [CUDA_HOST_STEPS] = {"pinned steps and results", true},
    [CUDA_HOST_STAGING] = {"pinned staging of weights", true},
    [CUDA_HOST_LOGITS] = {"kept logits, untouched unless asked for", true},
};

const char *cuda_region_name(enum cuda_region region)
{
    return region_names[region].name;
}

bool cuda_region_on_host(enum cuda_region region)
{
    return region_names[region].host;
}

struct carver {
    struct cuda_region_map *regions;
    uint64_t at[CUDA_REGION_COUNT];
};

/* The next `bytes` of a region, 256-byte aligned; NULL while measuring. */
static void *carve(struct carver *c, enum cuda_region region, uint64_t bytes)
{
    uint64_t at = c->at[region];

    c->at[region] = (at + bytes + 255) / 256 * 256;
    return c->regions[region].base && bytes ? c->regions[region].base + at : NULL;
}

static uint64_t pad64(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- the type of computing --- */

static void count_stored(const struct plan_weight *w, uint64_t bytes[DTYPE_COUNT])
{
    if (w->rows > 1) bytes[w->dtype] += dtype_row_bytes(w->dtype, w->cols) * w->rows;
}

enum dtype cuda_compute_dtype(const struct device_options *options, const struct plan *plan)
{
    uint64_t bytes[DTYPE_COUNT] = {0};
    enum dtype most = DTYPE_F32;

    if (options->compute_dtype != DTYPE_F32) return options->compute_dtype;
    if (plan->arch && strncmp(plan->arch, "gemma", 5) == 0) return DTYPE_BF16;
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct stage *s = &plan->stages[i];
        if (s->kind == STAGE_ATTN_IN) count_stored(&s->attn_in.q, bytes);
        if (s->kind == STAGE_ATTN_OUT) count_stored(&s->attn_out.weight, bytes);
        if (s->kind == STAGE_FFN_IN) count_stored(&s->ffn_in.gate, bytes);
        if (s->kind == STAGE_FFN_OUT) count_stored(&s->ffn_out.weight, bytes);
    }
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (bytes[d] > bytes[most]) most = (enum dtype)d;
    return most == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F16;
}

uint32_t cuda_decode_splits(const struct device_options *options, uint32_t tokens, uint32_t window,
                            uint32_t rows, uint32_t kv_heads)
{
    uint32_t useful, splits;

    if (window && tokens > window + 31) tokens = window + 31; /* in as many groups of 32 */
    /* Few rows: so many parts that one sequence has all SMs, each with one; at least what a kernel for one row counts on
     * (decode_chain.h). Many: the rows fill the device, parts only even it out. Useful: what kernels/paged_decode.cuh cuts the longest
     * sequence into: every part more than a row has is a block that comes and goes. */
    if (rows <= CUDA_SKINNY_ROWS || options->batch_invariant) {
        useful = max_u32(1, (tokens + 127) / 128);
        splits = max_u32(CUDA_SPLITS_FEW, CUDA_PARTS_ONE / kv_heads);
    } else {
        useful = max_u32(1, (tokens + 543) / 1024);
        splits = (2048 + rows * kv_heads - 1) / (rows * kv_heads);
    }
    if (splits > CUDA_SPLITS_MAX) splits = CUDA_SPLITS_MAX;
    return min_u32(splits, useful);
}

bool cuda_short_helps(const struct device_options *options, const struct plan *plan,
                      const struct device_limits *limits, uint32_t rows)
{
    if (rows <= CUDA_SKINNY_ROWS || options->batch_invariant) return false;
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct stage_attn *a = &plan->stages[i].attn;
        if (plan->stages[i].kind != STAGE_ATTN) continue;
        uint32_t window = plan->groups[a->group].window;
        if (cuda_decode_splits(options, limits->context_tokens, window, rows, a->kv_heads) > 1)
            return true;
    }
    return false;
}

static void set_buckets(const struct device_limits *limits, struct cuda_buffers *b)
{
    static const uint32_t usual[] = {1,  2,   4,   8,   16,  24,  32,  48,  64,
                                     96, 128, 160, 192, 256, 320, 384, 448, 512};

    b->decode_rows = min_u32(limits->rows_max, limits->slots_max);
    for (uint32_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (usual[i] < b->decode_rows) b->buckets[b->bucket_count++] = usual[i];
    if (b->decode_rows <= 512) b->buckets[b->bucket_count++] = b->decode_rows;
}

/* --- the driver's own --- */

struct cuda_driver_memory cuda_driver_memory(const struct device_options *options,
                                             const struct plan *plan,
                                             const struct device_limits *limits)
{
    struct cuda_driver_memory m = {.context = (uint64_t)CONTEXT_MIB << 20,
                                   .later = (uint64_t)LATER_MIB << 20};
    struct cuda_buffers b = {0};

    if (options->enforce_eager) return m;
    set_buckets(limits, &b);
    m.graphs = GRAPH_BYTES + 4 * GRAPH_LAUNCH_BYTES; /* of one row in one launch (cuda_chain.c) */
    for (uint32_t i = 0; i < b.bucket_count; i++) {
        uint64_t launches = b.buckets[i] <= CUDA_SKINNY_ROWS ? 5 : 9;
        uint64_t bytes = GRAPH_BYTES + (launches * plan->layers + 4) * GRAPH_LAUNCH_BYTES;
        m.graphs += cuda_short_helps(options, plan, limits, b.buckets[i]) ? 2 * bytes : bytes;
    }
    return m;
}

uint64_t cuda_driver_wants(const struct cuda_driver_memory *driver, uint64_t opened_bytes)
{
    uint64_t rest = opened_bytes < driver->context ? driver->context - opened_bytes : 0;

    return max_u64(rest, driver->later) + driver->graphs;
}

/* --- checks --- */

static enum status check_stage(const struct plan *plan, const struct stage *s, struct error *err)
{
    const struct plan_norm *norm = s->kind == STAGE_ATTN_IN  ? &s->attn_in.norm
                                   : s->kind == STAGE_FFN_IN ? &s->ffn_in.norm
                                   : s->kind == STAGE_HEAD   ? &s->head.norm
                                                             : NULL;
    bool reduce = (s->kind == STAGE_ATTN_OUT && s->attn_out.reduce) ||
                  (s->kind == STAGE_FFN_OUT && s->ffn_out.reduce);

    if (reduce)
        return error_set(err, STATUS_UNSUPPORTED,
                         "layer %u %s is split over ranks; this CUDA device runs one rank",
                         s->layer, stage_kind_name(s->kind));
    if (norm && !norm->gain.rows)
        return error_set(err, STATUS_UNSUPPORTED,
                         "layer %u %s has no norm in front; the CUDA device wants one", s->layer,
                         stage_kind_name(s->kind));
    if (s->kind == STAGE_ATTN_IN &&
        (s->attn_in.head_dim > CUDA_HEAD_DIM_MAX || s->attn_in.head_dim % 2 ||
         s->attn_in.heads % s->attn_in.kv_heads ||
         plan->ropes[s->attn_in.rope].dim > s->attn_in.head_dim))
        return error_set(err, STATUS_UNSUPPORTED,
                         "layer %u: head_dim %u, %u heads, %u KV heads, %u rotated; an even "
                         "head_dim to %d, heads a "
                         "multiple of KV heads and no more rotated than head_dim are right",
                         s->layer, s->attn_in.head_dim, s->attn_in.heads, s->attn_in.kv_heads,
                         plan->ropes[s->attn_in.rope].dim, CUDA_HEAD_DIM_MAX);
    if (s->kind > STAGE_SAMPLE)
        return error_set(err, STATUS_UNSUPPORTED, "stage kind %d is not known", (int)s->kind);
    return STATUS_OK;
}

/* Tiles of a chunk are cut once for all layers (cuda_step.c). */
static enum status check_heads(const struct plan *plan, struct error *err)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct stage *s = &plan->stages[i];
        if (s->kind != STAGE_ATTN) continue;
        if (!first) first = s->attn.heads / s->attn.kv_heads;
        if (s->attn.heads / s->attn.kv_heads != first)
            return error_set(err, STATUS_UNSUPPORTED,
                             "layer %u has %u heads to a KV head, others %u; as many in all layers "
                             "are right",
                             s->layer, s->attn.heads / s->attn.kv_heads, first);
    }
    return STATUS_OK;
}

enum status cuda_plan_check(const struct device_options *options, const struct plan *plan,
                            const struct device_limits *limits, struct error *err)
{
    enum status st = STATUS_OK;

    if (cuda_compute_dtype(options, plan) != DTYPE_BF16 &&
        cuda_compute_dtype(options, plan) != DTYPE_F16)
        return error_set(err, STATUS_UNSUPPORTED, "the CUDA device computes in BF16 or F16");
    if (!limits->slots_max || !limits->rows_max || !limits->logits_max ||
        limits->logits_max > limits->rows_max || !limits->steps_inflight ||
        limits->steps_inflight > CUDA_STEPS_MAX || limits->top_logprobs_max > CUDA_TOPS_MAX ||
        !limits->context_tokens || limits->context_tokens > plan->context_tokens)
        return error_set(err, STATUS_INVALID,
                         "device limits: %u slots, %u rows, %u logits rows, %u steps in flight, %u "
                         "top logprobs, "
                         "context %u of %u",
                         limits->slots_max, limits->rows_max, limits->logits_max,
                         limits->steps_inflight, limits->top_logprobs_max, limits->context_tokens,
                         plan->context_tokens);
    if (plan->hidden > CUDA_HIDDEN_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "hidden size %u; at most %d", plan->hidden,
                         CUDA_HIDDEN_MAX);
    for (uint32_t g = 0; g < plan->group_count; g++) {
        const struct plan_kv_group *group = &plan->groups[g];
        if (group->kind != KV_ATTENTION || group->block_tokens != CUDA_KV_TOKENS ||
            group->format == KV_FP8)
            return error_set(
                err, STATUS_UNSUPPORTED,
                "KV group %u: the CUDA device keeps 16-bit attention state in blocks of 16 tokens",
                g);
        if (!limits->kv_blocks[g] || limits->kv_blocks[g] > INT32_MAX / CUDA_KV_TOKENS)
            return error_set(err, STATUS_INVALID, "KV group %u has %u blocks; 1 to %d are right", g,
                             limits->kv_blocks[g], INT32_MAX / CUDA_KV_TOKENS);
    }
    for (uint32_t i = 0; !st && i < plan->stage_count; i++)
        st = check_stage(plan, &plan->stages[i], err);
    return st ? st : check_heads(plan, err);
}

/* --- weights --- */

static struct cuda_matrix carve_matrix(struct carver *c, uint32_t rows, uint32_t cols)
{
    struct cuda_matrix m = {.rows = rows, .cols = cols, .cols_padded = (uint32_t)pad64(cols)};

    m.at = carve(c, CUDA_WEIGHTS, (uint64_t)rows * m.cols_padded * 2);
    return m;
}

static float *carve_floats(struct carver *c, uint64_t n)
{
    return carve(c, CUDA_WEIGHTS, pad64(n) * sizeof(float));
}

static bool same_weight(const struct plan_weight *a, const struct plan_weight *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->dtype == b->dtype &&
           (a->data ? a->data == b->data : !b->data && a->dummy_seed == b->dummy_seed);
}

struct widths {
    uint64_t qkv, q, attn, glu, ffn, rows;
};

static void carve_stage(struct carver *c, const struct plan *plan, const struct stage *p,
                        struct cuda_buffers *b, struct widths *w, struct cuda_stage *out)
{
    struct cuda_stage s = {.plan = p};
    const struct stage_project *project = p->kind == STAGE_ATTN_OUT ? &p->attn_out : &p->ffn_out;

    switch (p->kind) {
    case STAGE_EMBED:
        b->embed = carve_matrix(c, p->embed.table.rows, p->embed.table.cols);
        w->rows = max_u64(w->rows, b->embed.rows);
        break;
    case STAGE_ATTN_IN:
        s.weight = carve_matrix(c, p->attn_in.q.rows + p->attn_in.k.rows + p->attn_in.v.rows,
                                plan->hidden);
        s.gain = carve_floats(c, plan->hidden);
        if (p->attn_in.q_bias.rows || p->attn_in.k_bias.rows || p->attn_in.v_bias.rows)
            s.bias = carve_floats(c, s.weight.rows);
        if (p->attn_in.q_norm.gain.rows) s.q_gain = carve_floats(c, p->attn_in.head_dim);
        if (p->attn_in.k_norm.gain.rows) s.k_gain = carve_floats(c, p->attn_in.head_dim);
        w->qkv = max_u64(w->qkv, s.weight.rows);
        w->q = max_u64(w->q, p->attn_in.q.rows);
        break;
    case STAGE_FFN_IN:
        s.weight = carve_matrix(c, p->ffn_in.gate.rows * 2, plan->hidden);
        s.gain = carve_floats(c, plan->hidden);
        if (p->ffn_in.gate_bias.rows || p->ffn_in.up_bias.rows)
            s.bias = carve_floats(c, s.weight.rows);
        w->glu = max_u64(w->glu, s.weight.rows);
        w->ffn = max_u64(w->ffn, p->ffn_in.gate.rows);
        break;
    case STAGE_ATTN_OUT:
    case STAGE_FFN_OUT:
        s.weight = carve_matrix(c, plan->hidden, project->weight.cols);
        if (project->bias.rows) s.bias = carve_floats(c, plan->hidden);
        if (project->post_norm.gain.rows) s.post_gain = carve_floats(c, plan->hidden);
        if (p->kind == STAGE_ATTN_OUT)
            w->attn = max_u64(w->attn, project->weight.cols);
        else
            w->ffn = max_u64(w->ffn, project->weight.cols);
        break;
    case STAGE_HEAD:
        if (plan->stages[0].kind == STAGE_EMBED &&
            same_weight(&plan->stages[0].embed.table, &p->head.weight))
            s.weight = b->embed;
        else
            s.weight = carve_matrix(c, p->head.weight.rows, plan->hidden);
        s.gain = carve_floats(c, plan->hidden);
        break;
    case STAGE_ATTN:
    case STAGE_SAMPLE: break;
    }
    s.index = b->weight_count;
    b->weight_count += s.weight.rows > 0;
    w->rows = max_u64(w->rows, s.weight.rows);
    if (out) *out = s;
}

/* --- the rest --- */

/* Splits times rows is largest either at the last bucket of the many-parts rule or at the end. */
static uint64_t split_rows(const struct device_options *options, const struct device_limits *limits,
                           const struct cuda_buffers *b, uint32_t window, uint32_t kv_heads)
{
    uint64_t most = 0;

    for (uint32_t rows = 1; rows <= b->decode_rows; rows++)
        most = max_u64(most, (uint64_t)rows * cuda_decode_splits(options, limits->context_tokens,
                                                                 window, rows, kv_heads));
    return most;
}

static void carve_activations(struct carver *c, const struct device_options *options,
                              const struct plan *plan, const struct device_limits *limits,
                              const struct widths *w, struct cuda_buffers *b)
{
    uint64_t rows = b->rows, partial = 0, partial_ml = 0, heads_max = 1;

    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct stage_attn *a = &plan->stages[i].attn;
        if (plan->stages[i].kind != STAGE_ATTN) continue;
        uint64_t n =
            split_rows(options, limits, b, plan->groups[a->group].window, a->kv_heads) * a->heads;
        partial = max_u64(partial, n * a->head_dim * sizeof(float));
        partial_ml = max_u64(partial_ml, n * 2 * sizeof(float));
        heads_max = max_u64(heads_max, a->heads);
    }
    b->x = carve(c, CUDA_ACTIVATIONS, rows * b->hidden_stride * sizeof(float));
    b->packed_x = carve(c, CUDA_ACTIVATIONS, b->outputs * b->hidden_stride * sizeof(float));
    b->h = carve(c, CUDA_ACTIVATIONS, rows * b->hidden_stride * 2);
    b->delta = carve(c, CUDA_ACTIVATIONS, rows * b->hidden_stride * 2);
    b->qkv = carve(c, CUDA_ACTIVATIONS, rows * b->qkv_stride * 2);
    b->q = carve(c, CUDA_ACTIVATIONS, rows * b->attn_stride * 2);
    b->attn = carve(c, CUDA_ACTIVATIONS, rows * b->attn_stride * 2);
    b->glu = carve(c, CUDA_ACTIVATIONS, rows * b->glu_stride * 2);
    b->ffn = carve(c, CUDA_ACTIVATIONS, rows * b->ffn_stride * 2);
    b->row_sums = carve(c, CUDA_ACTIVATIONS, b->hidden_stride / 64 * CUDA_MEDIUM_ROWS * 4);
    b->partial = carve(c, CUDA_ACTIVATIONS, partial);
    b->partial_ml = carve(c, CUDA_ACTIVATIONS, partial_ml);
    b->counters = carve(c, CUDA_ACTIVATIONS, b->decode_rows * heads_max * 4);
    b->chain_link = carve(c, CUDA_ACTIVATIONS, CUDA_CHAIN_LINK_BYTES);
    b->tokens = carve(c, CUDA_ACTIVATIONS, rows * 4);
    b->positions = carve(c, CUDA_ACTIVATIONS, rows * 4);
    b->row_slots = carve(c, CUDA_ACTIVATIONS, rows * 4);
    b->out_rows = carve(c, CUDA_ACTIVATIONS, rows * 4);
    for (uint32_t g = 0; g < plan->group_count; g++)
        b->groups[g].kv_slots = carve(c, CUDA_ACTIVATIONS, rows * 4);
    b->row_map = carve(c, CUDA_ACTIVATIONS, w->rows * 4);
    b->logits = carve(c, CUDA_LOGITS, b->outputs * b->logits_stride * sizeof(float));
    b->work = carve(c, CUDA_LOGITS, b->outputs * b->logits_stride * sizeof(float));
    b->sample_partials =
        carve(c, CUDA_LOGITS, (uint64_t)b->outputs * b->chunks * CUDA_SAMPLE_PARTIAL_BYTES);
    b->sample_counters = carve(c, CUDA_LOGITS, (uint64_t)b->outputs * 4);
}

static void carve_slots(struct carver *c, const struct plan *plan,
                        const struct device_limits *limits, struct cuda_buffers *b)
{
    uint64_t slots = limits->slots_max;

    for (uint32_t g = 0; g < plan->group_count; g++) {
        const struct plan_kv_group *p = &plan->groups[g];
        struct cuda_group *group = &b->groups[g];
        group->blocks = limits->kv_blocks[g];
        group->block_bytes = (uint64_t)p->kv_heads * 2 * CUDA_KV_TOKENS * p->head_dim * 2;
        group->layer_bytes = group->blocks * group->block_bytes;
        group->pool = carve(c, CUDA_KV, group->layer_bytes * p->layers);
        group->tables = carve(c, CUDA_SLOTS, slots * b->table_stride * 4);
    }
    b->params = carve(c, CUDA_SLOTS, slots * CUDA_SLOT_PARAMS_BYTES);
    b->banned = carve(c, CUDA_SLOTS, slots * limits->banned_max * 4);
    b->biases = carve(c, CUDA_SLOTS, slots * limits->bias_max * CUDA_SLOT_BIAS_BYTES);
    b->seen = carve(c, CUDA_SLOTS, slots * b->seen_stride * 2);
    b->last = carve(c, CUDA_SLOTS, slots * CUDA_REFS * 4);
}

/* A packed step: never larger than the step itself plus what the device adds per row and output. */
static uint64_t image_bytes(const struct plan *plan, const struct device_limits *limits,
                            const struct cuda_buffers *b)
{
    uint64_t group_max = 1, pairs;

    for (uint32_t i = 0; i < plan->stage_count; i++)
        if (plan->stages[i].kind == STAGE_ATTN)
            group_max =
                max_u64(group_max, plan->stages[i].attn.heads / plan->stages[i].attn.kv_heads);
    pairs = (uint64_t)b->rows * group_max;
    return step_bytes(plan, limits) + (uint64_t)b->rows * CUDA_ROW_BYTES +
           (uint64_t)b->outputs * CUDA_OUTPUT_BYTES +
           (uint64_t)limits->slots_max * CUDA_SLOT_PARAMS_BYTES +
           (pairs / CUDA_TILE_PAIRS + b->rows) * CUDA_TILE_BYTES * 4 + 4096;
}

static void carve_flights(struct carver *c, const struct plan *plan,
                          const struct device_limits *limits, struct cuda_buffers *b)
{
    b->image_bytes = image_bytes(plan, limits, b);
    for (uint32_t i = 0; i < limits->steps_inflight; i++) {
        struct cuda_flight *f = &b->flights[i];
        f->image = carve(c, CUDA_STEPS, b->image_bytes);
        f->masks = carve(c, CUDA_STEPS, (uint64_t)b->outputs * b->mask_words * 4);
        f->host_image = carve(c, CUDA_HOST_STEPS, b->image_bytes);
        f->host_masks = carve(c, CUDA_HOST_STEPS, (uint64_t)b->outputs * b->mask_words * 4);
        f->host_outputs =
            carve(c, CUDA_HOST_STEPS, (uint64_t)b->outputs * sizeof(struct step_output));
        f->host_tops =
            carve(c, CUDA_HOST_STEPS,
                  (uint64_t)b->outputs * limits->top_logprobs_max * sizeof(struct top_logprob));
        f->host_logits =
            carve(c, CUDA_HOST_LOGITS, (uint64_t)b->outputs * plan->vocab_rows * sizeof(float));
    }
}

void cuda_layout(const struct device_options *options, const struct plan *plan,
                 const struct device_limits *limits,
                 struct cuda_region_map regions[CUDA_REGION_COUNT], struct cuda_buffers *out)
{
    struct carver c = {.regions = regions};
    struct cuda_stage *stages = out->stages;
    struct widths w = {0};
    uint64_t half_max = 1;

    *out = (struct cuda_buffers){.stages = stages};
    out->rows = (limits->rows_max + 7) / 8 * 8;
    out->outputs = limits->logits_max;
    set_buckets(limits, out);
    for (uint32_t i = 0; i < plan->stage_count; i++)
        carve_stage(&c, plan, &plan->stages[i], out, &w, stages ? &stages[i] : NULL);
    out->hidden_stride = pad64(plan->hidden);
    out->qkv_stride = pad64(w.qkv);
    out->attn_stride = pad64(max_u64(w.attn, w.q));
    out->glu_stride = pad64(w.glu);
    out->ffn_stride = pad64(w.ffn);
    out->logits_stride = pad64(plan->vocab_rows);
    out->table_stride = (limits->context_tokens + CUDA_KV_TOKENS - 1) / CUDA_KV_TOKENS;
    out->mask_words = (plan->vocab_rows + 31) / 32;
    out->seen_stride = (plan->vocab_rows + 1) / 2 * 2;
    out->chunks = (plan->vocab_rows + CUDA_SAMPLE_CHUNK - 1) / CUDA_SAMPLE_CHUNK;
    carve_activations(&c, options, plan, limits, &w, out);
    carve_slots(&c, plan, limits, out);
    for (uint32_t i = 0; i < plan->rope_count; i++) {
        out->ropes[i] =
            carve(&c, CUDA_ROPE,
                  (uint64_t)limits->context_tokens * (plan->ropes[i].dim / 2) * ROPE_PAIR_BYTES);
        half_max = max_u64(half_max, plan->ropes[i].dim / 2);
    }
    out->inv_freq = carve(&c, CUDA_ROPE, half_max * sizeof(float));
    out->workspace_bytes = 64u << 20;
    out->workspace = carve(&c, CUDA_WORKSPACE, out->workspace_bytes);
    out->staging[0] = carve(&c, CUDA_HOST_STAGING, CUDA_STAGING_BYTES);
    out->staging[1] = carve(&c, CUDA_HOST_STAGING, CUDA_STAGING_BYTES);
    carve_flights(&c, plan, limits, out);
    for (uint32_t r = 0; r < CUDA_REGION_COUNT; r++)
        regions[r].bytes = c.at[r];
}

static const char *weights_name(const struct device_options *options, const struct plan *plan)
{
    return cuda_compute_dtype(options, plan) == DTYPE_F16 ? "weights in f16, one copy"
                                                          : "weights in bf16, one copy";
}

enum status cuda_memory_plan(const struct device_options *options, const struct plan *plan,
                             const struct device_limits *limits, struct device_memory *out,
                             struct error *err)
{
    struct cuda_region_map regions[CUDA_REGION_COUNT] = {0};
    struct cuda_buffers buffers = {0};
    struct cuda_driver_memory driver;
    enum status st = cuda_plan_check(options, plan, limits, err);

    if (st) return st;
    *out = (struct device_memory){0};
    cuda_layout(options, plan, limits, regions, &buffers);
    for (uint32_t r = 0; r < CUDA_REGION_COUNT; r++)
        device_memory_add(out,
                          r == CUDA_WEIGHTS ? weights_name(options, plan) : region_names[r].name,
                          regions[r].bytes, region_names[r].host);
    driver = cuda_driver_memory(options, plan, limits);
    device_memory_add_estimate(out, "CUDA context, library and code", driver.context);
    device_memory_add_estimate(out, "CUDA graphs", driver.graphs);
    for (uint32_t g = 0; g < plan->group_count; g++)
        out->kv_block_bytes[g] = buffers.groups[g].block_bytes * plan->groups[g].layers;
    return STATUS_OK;
}
