/* cpu_compile.c - makes a device ready for a plan: takes the memory, packs the weights, fills the tables. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file_map.h"
#include "device/cpu/cpu_device.h"
#include "device/dummy_weights.h"

static const uint64_t HUGE_PAGE = 2u << 20;

/* Zeroed memory, backed by huge pages where the region is swept: two threads read nearly twice as fast from them. */
static enum status map_region(struct cpu_region_map *region, bool huge, uint64_t total,
                              struct error *err)
{
    uint64_t slack = huge ? HUGE_PAGE : 0, lead;
    char *at;

    if (!region->bytes) return STATUS_OK;
    at = mmap(NULL, region->bytes + slack, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return error_set(err, STATUS_NOMEM, "no memory for %llu of the CPU device's %llu bytes",
                         (unsigned long long)region->bytes, (unsigned long long)total);
    region->base = at;
    if (!huge) return STATUS_OK;
    lead = (HUGE_PAGE - (uintptr_t)at % HUGE_PAGE) % HUGE_PAGE;
    if (lead) munmap(at, lead);
    region->base = at + lead;
    uint64_t end = (region->bytes + 4095) / 4096 * 4096; /* behind it: slack - lead and no more */
    if (slack > lead) munmap(region->base + end, slack - lead);
    madvise(region->base, region->bytes, MADV_HUGEPAGE); /* a wish: without it, only slower */
    return STATUS_OK;
}

/* What the system could give now, file pages that can be dropped included; 0: unknown. */
static uint64_t memory_available(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    fclose(f);
    return kib * 1024;
}

static enum status check_memory(const struct cpu_region_map regions[CPU_REGION_COUNT],
                                uint64_t total, struct error *err)
{
    uint64_t available = memory_available();

    if (!available || total <= available) return STATUS_OK;
    return error_set(err, STATUS_NOMEM,
                     "the CPU device needs %llu MiB (weights %llu, KV pool %llu, activations %llu, "
                     "logits %llu, other %llu) and the system has %llu MiB: make the KV pool, the "
                     "context or the batch smaller",
                     (unsigned long long)total >> 20,
                     (unsigned long long)regions[CPU_WEIGHTS].bytes >> 20,
                     (unsigned long long)regions[CPU_KV].bytes >> 20,
                     (unsigned long long)regions[CPU_ACTIVATIONS].bytes >> 20,
                     (unsigned long long)regions[CPU_LOGITS].bytes >> 20,
                     (unsigned long long)(regions[CPU_ROPE].bytes + regions[CPU_SLOTS].bytes +
                                          regions[CPU_RESULTS].bytes) >>
                         20,
                     (unsigned long long)available >> 20);
}

void cpu_unmap_regions(struct cpu_device *d)
{
    for (uint32_t r = 0; r < CPU_REGION_COUNT; r++) {
        if (d->regions[r].base) munmap(d->regions[r].base, d->regions[r].bytes);
        d->regions[r] = (struct cpu_region_map){0};
    }
}

static enum status map_regions(struct cpu_device *d, struct error *err)
{
    static const bool huge[CPU_REGION_COUNT] = {
        [CPU_WEIGHTS] = true, [CPU_KV] = true, [CPU_ACTIVATIONS] = true, [CPU_LOGITS] = true};
    uint64_t total = 0;
    enum status st;

    for (uint32_t r = 0; r < CPU_REGION_COUNT; r++)
        total += d->regions[r].bytes;
    st = check_memory(d->regions, total, err);
    for (uint32_t r = 0; !st && r < CPU_REGION_COUNT; r++)
        st = map_region(&d->regions[r], huge[r], total, err);
    return st;
}

/* --- weights --- */

struct pack_job {
    struct linear *linear;
    void *packed;
};

static void pack_tiles(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct pack_job *j = ctx;

    (void)thread;
    linear_pack_tiles(j->linear, j->packed, begin, end);
}

static uint64_t stored_bytes(const struct plan_weight *w)
{
    return dtype_row_bytes(w->dtype, w->cols) * w->rows;
}

static void pack_linear(struct cpu_device *d, struct cpu_stage *s, uint32_t i)
{
    struct linear *l = &s->linears[i];
    const struct plan_weight *w = &l->weight;
    struct pack_job job = {l, s->packed[i]};

    if (!s->packed[i]) return;
    cpu_pool_run(d->pool, pack_tiles, &job, l->tiles, 4);
    if (w->data && w->mapped && w->row_stride == dtype_row_bytes(w->dtype, w->cols))
        file_map_drop(w->data, stored_bytes(w)); /* never two resident copies */
}

/* A norm gain or bias as float32. `made`: room for one row as stored. */
static void fill_vector(const struct plan_weight *w, const float *to, void *made)
{
    const void *from = w->data;

    if (!to) return;
    if (!from) {
        dummy_weight_row(w, 0, made);
        from = made;
    }
    quant_row_to_f32(w->dtype, from, w->cols, (float *)(uintptr_t)to);
}

static void fill_vectors(struct cpu_device *d, struct cpu_stage *s)
{
    const struct stage *p = s->plan;
    void *made = d->b.qkv; /* activations are unused yet; a vector is no wider than a row of them */

    switch (p->kind) {
    case STAGE_ATTN_IN:
        fill_vector(&p->attn_in.norm.gain, s->norm, made);
        fill_vector(&p->attn_in.q_norm.gain, s->q_norm, made);
        fill_vector(&p->attn_in.k_norm.gain, s->k_norm, made);
        fill_vector(&p->attn_in.q_bias, s->biases[0], made);
        fill_vector(&p->attn_in.k_bias, s->biases[1], made);
        fill_vector(&p->attn_in.v_bias, s->biases[2], made);
        break;
    case STAGE_FFN_IN:
        fill_vector(&p->ffn_in.norm.gain, s->norm, made);
        fill_vector(&p->ffn_in.gate_bias, s->biases[0], d->b.gate);
        fill_vector(&p->ffn_in.up_bias, s->biases[1], d->b.gate);
        break;
    case STAGE_ATTN_OUT:
        fill_vector(&p->attn_out.bias, s->biases[0], d->b.h);
        fill_vector(&p->attn_out.post_norm.gain, s->post_norm, d->b.h);
        break;
    case STAGE_FFN_OUT:
        fill_vector(&p->ffn_out.bias, s->biases[0], d->b.h);
        fill_vector(&p->ffn_out.post_norm.gain, s->post_norm, d->b.h);
        break;
    case STAGE_HEAD: fill_vector(&p->head.norm.gain, s->norm, d->b.h); break;
    default: break;
    }
}

static void pack_weights(struct cpu_device *d)
{
    uint64_t total = 0, done = 0;

    for (uint32_t i = 0; i < d->plan->stage_count; i++)
        for (uint32_t k = 0; k < d->b.stages[i].linear_count; k++)
            total += stored_bytes(&d->b.stages[i].linears[k].weight);
    for (uint32_t i = 0; i < d->plan->stage_count; i++) {
        fill_vectors(d, &d->b.stages[i]);
        for (uint32_t k = 0; k < d->b.stages[i].linear_count; k++) {
            pack_linear(d, &d->b.stages[i], k);
            done += stored_bytes(&d->b.stages[i].linears[k].weight);
        }
        if (d->options.progress) d->options.progress(d->options.progress_ctx, done, total);
    }
}

/* --- rope --- */

struct rope_job {
    const struct cpu_device *d;
    uint32_t index;
};

static void fill_rope(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct rope_job *j = ctx;
    struct cpu_rope rope = j->d->b.ropes[j->index];

    (void)thread;
    cpu_rope_fill(&j->d->plan->ropes[j->index], j->d->limits.context_tokens, &rope, begin, end);
}

enum status cpu_compile(struct cpu_device *d, const struct plan *plan,
                        const struct device_limits *limits, struct error *err)
{
    uint32_t threads = cpu_pool_threads(d->pool);
    enum status st = cpu_plan_check(plan, limits, err);

    assert(!d->plan);
    if (st) return st;
    d->limits = *limits;
    cpu_layout(plan, limits, d->numerics, d->isa, threads, d->regions, &d->b);
    st = map_regions(d, err);
    if (st) {
        cpu_unmap_regions(d);
        return st;
    }
    cpu_layout(plan, limits, d->numerics, d->isa, threads, d->regions, &d->b);
    d->plan = plan;
    d->last_attention = plan_last_attention(plan);
    pack_weights(d);
    for (uint32_t i = 0; i < plan->rope_count; i++) {
        struct rope_job job = {d, i};
        cpu_pool_run(d->pool, fill_rope, &job, limits->context_tokens, 64);
    }
    return STATUS_OK;
}
