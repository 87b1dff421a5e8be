/* cpu_layout.c - every buffer's size and place. Compile and the memory plan run the same lines, the plan with no memory
 * behind them, so the two cannot differ. */
#include <assert.h>
#include <string.h>

#include "device/cpu/cpu_device.h"

struct carver {
    struct cpu_region_map *regions;
    uint64_t at[CPU_REGION_COUNT];
};

/* The next `bytes` of a region, 64-byte aligned; NULL while measuring. */
static void *carve(struct carver *c, enum cpu_region region, uint64_t bytes)
{
    uint64_t at = c->at[region];

    c->at[region] = (at + bytes + 63) / 64 * 64;
    return c->regions[region].base && bytes ? c->regions[region].base + at : NULL;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* --- weights --- */

struct stage_weights {
    uint32_t count;
    const struct plan_weight *weights[CPU_LINEARS_MAX], *biases[CPU_LINEARS_MAX];
    const struct plan_norm *norm, *q_norm, *k_norm, *post_norm;
};

static struct stage_weights weights_of(const struct stage *s)
{
    switch (s->kind) {
    case STAGE_ATTN_IN:
        return (struct stage_weights){3,
                                      {&s->attn_in.q, &s->attn_in.k, &s->attn_in.v},
                                      {&s->attn_in.q_bias, &s->attn_in.k_bias, &s->attn_in.v_bias},
                                      &s->attn_in.norm,
                                      &s->attn_in.q_norm,
                                      &s->attn_in.k_norm,
                                      NULL};
    case STAGE_FFN_IN:
        return (struct stage_weights){2,
                                      {&s->ffn_in.gate, &s->ffn_in.up},
                                      {&s->ffn_in.gate_bias, &s->ffn_in.up_bias},
                                      &s->ffn_in.norm,
                                      NULL,
                                      NULL,
                                      NULL};
    case STAGE_ATTN_OUT:
        return (struct stage_weights){1,    {&s->attn_out.weight}, {&s->attn_out.bias}, NULL, NULL,
                                      NULL, &s->attn_out.post_norm};
    case STAGE_FFN_OUT:
        return (struct stage_weights){1,    {&s->ffn_out.weight}, {&s->ffn_out.bias}, NULL, NULL,
                                      NULL, &s->ffn_out.post_norm};
    case STAGE_HEAD:
        return (struct stage_weights){1,   {&s->head.weight}, {NULL}, &s->head.norm, NULL, NULL,
                                      NULL};
    default: return (struct stage_weights){0};
    }
}

static const float *carve_vector(struct carver *c, const struct plan_weight *w)
{
    return w && w->rows ? carve(c, CPU_WEIGHTS, (uint64_t)w->cols * sizeof(float)) : NULL;
}

static const float *carve_gain(struct carver *c, const struct plan_norm *norm)
{
    return norm ? carve_vector(c, &norm->gain) : NULL;
}

static void carve_stage(struct carver *c, const struct stage *plan, enum cpu_numerics numerics,
                        enum cpu_isa isa, uint64_t input_cols[LINEAR_INPUT_COUNT],
                        struct cpu_stage *out)
{
    struct stage_weights w = weights_of(plan);
    struct cpu_stage stage = {.plan = plan, .linear_count = w.count};
    uint32_t y_at = 0;

    for (uint32_t i = 0; i < w.count; i++) {
        uint64_t bytes = linear_packed_bytes(w.weights[i], numerics, isa);
        stage.packed[i] = carve(c, CPU_WEIGHTS, bytes);
        stage.biases[i] = carve_vector(c, w.biases[i]);
        stage.y_at[i] = y_at;
        y_at += w.weights[i]->rows;
        /* while measuring only the kind of input is asked for: any address will do */
        linear_init(&stage.linears[i], w.weights[i], numerics, isa,
                    !out && bytes ? (void *)c : stage.packed[i]);
        enum linear_input kind = linear_input_kind(&stage.linears[i]);
        input_cols[kind] = max_u64(input_cols[kind], w.weights[i]->cols);
    }
    stage.norm = carve_gain(c, w.norm);
    stage.q_norm = carve_gain(c, w.q_norm);
    stage.k_norm = carve_gain(c, w.k_norm);
    stage.post_norm = carve_gain(c, w.post_norm);
    if (out) *out = stage;
}

/* --- KV --- */

static void carve_group(struct carver *c, const struct plan_kv_group *plan,
                        const struct device_limits *limits, uint32_t blocks,
                        enum cpu_numerics numerics, struct cpu_group *out)
{
    out->half = numerics == CPU_FAST;
    out->dim_padded = (plan->head_dim + KV_TILE - 1) / KV_TILE * KV_TILE;
    out->head_bytes =
        (uint64_t)plan->block_tokens * (plan->head_dim + out->dim_padded) * (out->half ? 2 : 4);
    out->block_bytes = out->head_bytes * plan->kv_heads * plan->layers;
    out->blocks_per_slot = (limits->context_tokens + plan->block_tokens - 1) / plan->block_tokens;
    out->pool = carve(c, CPU_KV, out->block_bytes * blocks);
    out->tables =
        carve(c, CPU_SLOTS, (uint64_t)limits->slots_max * out->blocks_per_slot * sizeof(uint32_t));
}

/* --- activations --- */

struct attention_sizes {
    uint32_t dim_padded, heads_per_kv, attn_max, heads;
};

static struct attention_sizes attention_sizes(const struct plan *plan, const struct cpu_buffers *b)
{
    struct attention_sizes s = {0};

    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct stage_attn *a = &plan->stages[i].attn;
        if (plan->stages[i].kind != STAGE_ATTN) continue;
        s.dim_padded = (uint32_t)max_u64(s.dim_padded, b->groups[a->group].dim_padded);
        s.heads_per_kv = (uint32_t)max_u64(s.heads_per_kv, a->heads / a->kv_heads);
        s.attn_max = (uint32_t)max_u64(s.attn_max, (uint64_t)a->heads * a->head_dim);
        s.heads = (uint32_t)max_u64(s.heads, a->heads);
    }
    return s;
}

static void carve_state(struct carver *c, uint32_t queries, uint32_t dim_padded,
                        struct attend_state *out)
{
    out->max = carve(c, CPU_ACTIVATIONS, queries * sizeof(float));
    out->sum = carve(c, CPU_ACTIVATIONS, (uint64_t)queries * KV_TILE * sizeof(float));
    out->acc = carve(c, CPU_ACTIVATIONS, (uint64_t)queries * dim_padded * sizeof(float));
}

static void carve_scratch(struct carver *c, const struct plan *plan, struct attention_sizes sizes,
                          uint32_t queries, struct cpu_thread_scratch *out)
{
    struct cpu_thread_scratch s;

    s.sample.work = carve(c, CPU_ACTIVATIONS, (uint64_t)plan->vocab_rows * sizeof(float));
    s.sample.z = carve(c, CPU_ACTIVATIONS, (uint64_t)plan->vocab_rows * sizeof(float));
    s.sample.p = carve(c, CPU_ACTIVATIONS, (uint64_t)plan->vocab_rows * sizeof(float));
    s.sample.ids = carve(c, CPU_ACTIVATIONS, (uint64_t)plan->vocab_rows * sizeof(uint32_t));
    s.sample.heap = carve(c, CPU_ACTIVATIONS, (uint64_t)plan->vocab_rows * sizeof(uint64_t));
    s.kv = carve(c, CPU_ACTIVATIONS, 2 * (uint64_t)KV_SPAN * sizes.dim_padded * sizeof(float));
    carve_state(c, queries, sizes.dim_padded, &s.total);
    carve_state(c, queries, sizes.dim_padded, &s.part);
    if (out) *out = s;
}

static void carve_activations(struct carver *c, const struct plan *plan,
                              const struct device_limits *limits, uint32_t threads,
                              const uint64_t input_cols[LINEAR_INPUT_COUNT], struct cpu_buffers *b)
{
    enum { STATE_FLOATS = 4096 }; /* a tile's state and its split's stay in the first cache */
    uint64_t rows = limits->rows_max, f = sizeof(float);
    struct attention_sizes sizes = attention_sizes(plan, b);

    b->attn_max = sizes.attn_max;
    b->queries_max =
        (uint32_t)max_u64(sizes.heads_per_kv, STATE_FLOATS / max_u64(sizes.dim_padded, 1));
    /* two rows' worth of split heads over the longest context: more rows keep the threads busy unsplit */
    b->parts_max = 2 * sizes.heads * ((limits->context_tokens + KV_SPLIT - 1) / KV_SPLIT);
    b->x = carve(c, CPU_ACTIVATIONS, rows * plan->hidden * f);
    b->h = carve(c, CPU_ACTIVATIONS, rows * plan->hidden * f);
    b->qkv = carve(c, CPU_ACTIVATIONS, rows * plan->qkv_max * f);
    b->attn = carve(c, CPU_ACTIVATIONS, rows * b->attn_max * f);
    b->gate = carve(c, CPU_ACTIVATIONS, rows * plan->ffn_max * f);
    b->up = carve(c, CPU_ACTIVATIONS, rows * plan->ffn_max * f);
    /* the head reads each of its rows twice: its int8 form and what that left out */
    uint64_t input_rows = max_u64(rows, 2ull * limits->logits_max);
    for (uint32_t k = 0; k < LINEAR_INPUT_COUNT; k++)
        b->inputs[k] = carve(
            c, CPU_ACTIVATIONS,
            input_cols[k] ? input_rows * linear_input_row_bytes(k, (uint32_t)input_cols[k]) : 0);
    b->row_segment = carve(c, CPU_ACTIVATIONS, rows * sizeof(uint32_t));
    b->tiles = carve(c, CPU_ACTIVATIONS, rows * sizeof *b->tiles);
    b->parts =
        carve(c, CPU_ACTIVATIONS, (uint64_t)b->parts_max * (sizes.dim_padded + 2 * KV_TILE) * f);
    b->scratch = carve(c, CPU_ACTIVATIONS, threads * sizeof *b->scratch);
    for (uint32_t t = 0; t < threads; t++)
        carve_scratch(c, plan, sizes, b->queries_max, b->scratch ? &b->scratch[t] : NULL);
}

/* --- slots, results --- */

static void carve_slots(struct carver *c, const struct plan *plan,
                        const struct device_limits *limits, struct cpu_buffers *b)
{
    b->slots = carve(c, CPU_SLOTS, limits->slots_max * sizeof *b->slots);
    for (uint32_t i = 0; i < limits->slots_max; i++) {
        int32_t *banned = carve(c, CPU_SLOTS, limits->banned_max * sizeof(int32_t));
        struct step_bias *biases = carve(c, CPU_SLOTS, limits->bias_max * sizeof *biases);
        uint16_t *seen = carve(c, CPU_SLOTS, plan->vocab_rows * sizeof(uint16_t));
        if (!b->slots) continue;
        b->slots[i] = (struct sample_slot){.banned = banned, .biases = biases, .seen = seen};
        b->slots[i].open.repetition_penalty = 1;
        b->slots[i].open.top_p = 1;
    }
}

static void carve_results(struct carver *c, const struct plan *plan,
                          const struct device_limits *limits, struct cpu_buffers *b)
{
    uint64_t rows = limits->logits_max;

    for (uint32_t i = 0; i < limits->steps_inflight; i++) {
        struct cpu_flight *f = &b->flights[i];
        f->outputs = carve(c, CPU_RESULTS, rows * sizeof *f->outputs);
        f->tops = carve(c, CPU_RESULTS, rows * limits->top_logprobs_max * sizeof *f->tops);
        f->logits = carve(c, CPU_LOGITS, rows * plan->vocab_rows * sizeof(float));
    }
}

void cpu_layout(const struct plan *plan, const struct device_limits *limits,
                enum cpu_numerics numerics, enum cpu_isa isa, uint32_t threads,
                struct cpu_region_map regions[CPU_REGION_COUNT], struct cpu_buffers *out)
{
    struct carver c = {.regions = regions};
    struct cpu_buffers b = {0};
    uint64_t input_cols[LINEAR_INPUT_COUNT] = {0};

    b.stages = carve(&c, CPU_WEIGHTS, plan->stage_count * sizeof *b.stages);
    for (uint32_t i = 0; i < plan->stage_count; i++)
        carve_stage(&c, &plan->stages[i], numerics, isa, input_cols,
                    b.stages ? &b.stages[i] : NULL);
    for (uint32_t i = 0; i < plan->rope_count; i++) {
        uint64_t bytes =
            (uint64_t)limits->context_tokens * (plan->ropes[i].dim / 2) * sizeof(float);
        b.ropes[i].cosines = carve(&c, CPU_ROPE, bytes);
        b.ropes[i].sines = carve(&c, CPU_ROPE, bytes);
    }
    for (uint32_t g = 0; g < plan->group_count; g++)
        carve_group(&c, &plan->groups[g], limits, limits->kv_blocks[g], numerics, &b.groups[g]);
    carve_activations(&c, plan, limits, threads, input_cols, &b);
    carve_slots(&c, plan, limits, &b);
    carve_results(&c, plan, limits, &b);
    for (uint32_t r = 0; r < CPU_REGION_COUNT; r++) {
        assert(!regions[r].base || regions[r].bytes == c.at[r]);
        regions[r].bytes = c.at[r];
    }
    *out = b;
}
