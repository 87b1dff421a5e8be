/* cpu_attention.c - the attention stage cut into items for the pool.
 *
 * A row's tokens are taken in splits of KV_SPLIT at absolute positions; each split's running softmax starts anew and the
 * splits are joined in order. That order of sums holds however the work is cut, so a row gives the same bytes alone, in a
 * batch, or inside a chunk. Items are (tile of rows, KV head); when these are too few to keep the threads busy (decode of
 * a sequence or two) the splits are items too, and a second, short pass joins them. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "device/cpu/cpu_device.h"

enum { PART_EXTRA = 2 * KV_TILE }; /* floats behind a part's values: its sums and its max */

struct job {
    struct cpu_device *d;
    const struct stage_attn *stage;
    const struct cpu_group *group;
    const struct plan_kv_group *plan;
    uint32_t part_floats; /* of one query of one split */
};

static const struct step_segment *segment_of(const struct job *j, const struct cpu_tile *tile)
{
    return &step_segments(j->d->step)[tile->segment];
}

static uint32_t first_position(const struct job *j, const struct cpu_tile *tile)
{
    const struct step_segment *s = segment_of(j, tile);

    return s->context_len + tile->first_row - s->first_row;
}

/* Splits [*begin, *end) hold all tokens that a row of the tile sees. */
static void split_range(const struct job *j, const struct cpu_tile *tile, uint32_t *begin,
                        uint32_t *end)
{
    uint32_t first = first_position(j, tile), window = j->plan->window;

    *begin = window && first + 1 > window ? (first + 1 - window) / KV_SPLIT : 0;
    *end = (first + tile->rows - 1) / KV_SPLIT + 1;
}

static struct attend_tile describe(const struct job *j, const struct cpu_tile *tile, uint32_t head,
                                   uint32_t thread)
{
    const struct stage_attn *s = j->stage;
    struct cpu_device *d = j->d;
    uint32_t slot = segment_of(j, tile)->slot, heads = s->heads / s->kv_heads;

    return (struct attend_tile){
        .q = d->b.qkv + (uint64_t)tile->first_row * d->plan->qkv_max +
             (uint64_t)head * heads * s->head_dim,
        .q_stride = d->plan->qkv_max,
        .rows = tile->rows,
        .heads = heads,
        .first_pos = first_position(j, tile),
        .window = j->plan->window,
        .head_dim = s->head_dim,
        .dim_padded = j->group->dim_padded,
        .scale = s->scale,
        .softcap = s->softcap,
        .half = j->group->half,
        .table = j->group->tables + (uint64_t)slot * j->group->blocks_per_slot,
        .pool = j->group->pool,
        .block_bytes = j->group->block_bytes,
        .kv_at = ((uint64_t)s->group_layer * s->kv_heads + head) * j->group->head_bytes,
        .block_tokens = j->plan->block_tokens,
        .scratch = d->b.scratch[thread].kv,
    };
}

static void clear_state(struct attend_state *state, uint32_t queries, uint32_t dim_padded)
{
    for (uint32_t i = 0; i < queries; i++)
        state->max[i] = -INFINITY;
    memset(state->sum, 0, (uint64_t)queries * KV_TILE * sizeof(float));
    memset(state->acc, 0, (uint64_t)queries * dim_padded * sizeof(float));
}

/* Acc / sum to the heads' places in the rows. */
static void write_out(const struct job *j, const struct cpu_tile *tile, uint32_t head,
                      const struct attend_state *total)
{
    const struct stage_attn *s = j->stage;
    uint32_t heads = s->heads / s->kv_heads;

    for (uint32_t i = 0; i < tile->rows * heads; i++)
        j->d->kernels->attend_finish(
            total, i, s->head_dim, j->group->dim_padded,
            j->d->b.attn + (uint64_t)(tile->first_row + i / heads) * j->d->b.attn_max +
                ((uint64_t)head * heads + i % heads) * s->head_dim);
}

static uint32_t split_end(uint32_t split, uint32_t last_end)
{
    uint32_t end = (split + 1) * KV_SPLIT;

    return end < last_end ? end : last_end;
}

/* --- whole: one item does all splits of a tile and head --- */

static void run_whole(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct job *j = ctx;
    const struct cpu_kernels *kernels = j->d->kernels;
    struct cpu_thread_scratch *scratch = &j->d->b.scratch[thread];

    for (uint32_t item = begin; item < end; item++) {
        /* long tiles first: they stand at the end of a prompt */
        const struct cpu_tile *tile =
            &j->d->b.tiles[j->d->tile_count - 1 - item / j->stage->kv_heads];
        uint32_t head = item % j->stage->kv_heads, first, last;
        struct attend_tile a = describe(j, tile, head, thread);
        uint32_t tokens = a.first_pos + a.rows;
        split_range(j, tile, &first, &last);
        if (last - first == 1) {
            kernels->attend(&a, first * KV_SPLIT, tokens, &scratch->total);
        } else {
            clear_state(&scratch->total, a.rows * a.heads, a.dim_padded);
            for (uint32_t s = first; s < last; s++) {
                kernels->attend(&a, s * KV_SPLIT, split_end(s, tokens), &scratch->part);
                kernels->attend_join(&scratch->total, &scratch->part, a.rows * a.heads,
                                     a.dim_padded);
            }
        }
        write_out(j, tile, head, &scratch->total);
    }
}

/* --- split: an item is one split of a tile and head --- */

static uint32_t tile_parts(const struct job *j, const struct cpu_tile *tile)
{
    uint32_t first, last;

    split_range(j, tile, &first, &last);
    return (last - first) * tile->rows * j->stage->heads;
}

/* Gives each tile its place for partial results; 0 when they do not fit or there is nothing to split. */
static uint32_t place_parts(const struct job *j)
{
    uint32_t parts = 0, items = 0;

    for (uint32_t t = 0; t < j->d->tile_count; t++) {
        struct cpu_tile *tile = &j->d->b.tiles[t];
        uint32_t first, last;
        split_range(j, tile, &first, &last);
        tile->first_part = parts;
        if (tile_parts(j, tile) > j->d->b.parts_max - parts) return 0;
        parts += tile_parts(j, tile);
        items += (last - first) * j->stage->kv_heads;
    }
    return items > j->d->tile_count * j->stage->kv_heads ? items : 0;
}

static struct attend_state part_state(const struct job *j, const struct cpu_tile *tile,
                                      uint32_t head, uint32_t split)
{
    uint32_t queries = tile->rows * (j->stage->heads / j->stage->kv_heads);
    uint32_t index = tile->first_part + (split * j->stage->kv_heads + head) * queries;
    float *at = j->d->b.parts + (uint64_t)index * j->part_floats;

    return (struct attend_state){
        .acc = at,
        .sum = at + (uint64_t)queries * j->group->dim_padded,
        .max = at + (uint64_t)queries * (j->group->dim_padded + KV_TILE),
    };
}

static void run_splits(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t item = 0, kv_heads = j->stage->kv_heads;

    for (uint32_t t = 0; t < j->d->tile_count && item < end; t++) {
        const struct cpu_tile *tile = &j->d->b.tiles[t];
        uint32_t first, last, count;
        split_range(j, tile, &first, &last);
        count = (last - first) * kv_heads;
        for (uint32_t i = begin > item ? begin - item : 0; i < count && item + i < end; i++) {
            struct attend_tile a = describe(j, tile, i % kv_heads, thread);
            struct attend_state part = part_state(j, tile, i % kv_heads, i / kv_heads);
            uint32_t split = first + i / kv_heads;
            j->d->kernels->attend(&a, split * KV_SPLIT, split_end(split, a.first_pos + a.rows),
                                  &part);
        }
        item += count;
    }
}

static void join_splits(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct job *j = ctx;
    struct attend_state *total = &j->d->b.scratch[thread].total;

    for (uint32_t item = begin; item < end; item++) {
        const struct cpu_tile *tile = &j->d->b.tiles[item / j->stage->kv_heads];
        uint32_t head = item % j->stage->kv_heads, first, last;
        uint32_t queries = tile->rows * (j->stage->heads / j->stage->kv_heads);
        split_range(j, tile, &first, &last);
        clear_state(total, queries, j->group->dim_padded);
        for (uint32_t s = 0; s < last - first; s++) {
            struct attend_state part = part_state(j, tile, head, s);
            j->d->kernels->attend_join(total, &part, queries, j->group->dim_padded);
        }
        write_out(j, tile, head, total);
    }
}

/* --- door --- */

void cpu_attention_begin(struct cpu_device *d, bool outputs_only)
{
    uint32_t heads = 1, rows_max;

    for (uint32_t i = 0; i < d->plan->stage_count; i++) {
        const struct stage_attn *s = &d->plan->stages[i].attn;
        if (d->plan->stages[i].kind == STAGE_ATTN && s->heads / s->kv_heads > heads)
            heads = s->heads / s->kv_heads;
    }
    rows_max = d->b.queries_max / heads;
    d->tile_count = 0;
    for (uint32_t i = 0; i < d->step->segment_count; i++) {
        const struct step_segment *s = &step_segments(d->step)[i];
        uint32_t r = outputs_only ? s->logits_first : 0;
        uint32_t end = outputs_only ? r + s->logits_count : s->rows;
        for (; r < end; r += rows_max)
            d->b.tiles[d->tile_count++] =
                (struct cpu_tile){i, s->first_row + r, end - r < rows_max ? end - r : rows_max, 0};
    }
}

void cpu_attention_run(struct cpu_device *d, const struct stage_attn *stage)
{
    struct job j = {d, stage, &d->b.groups[stage->group], &d->plan->groups[stage->group],
                    d->b.groups[stage->group].dim_padded + PART_EXTRA};
    uint32_t items = d->tile_count * stage->kv_heads, threads = cpu_pool_used(d->pool);
    uint32_t splits = threads > 1 && items < 3 * threads ? place_parts(&j) : 0;

    if (splits) {
        cpu_pool_run(d->pool, run_splits, &j, splits, 1);
        join_splits(&j, 0, items, 0);
    } else {
        cpu_pool_run(d->pool, run_whole, &j, items, 1);
    }
}

struct cpu_kv_place cpu_kv_place(const struct cpu_group *group, const struct plan_kv_group *plan,
                                 uint32_t slot, uint32_t layer, uint32_t position)
{
    uint32_t block =
        group->tables[(uint64_t)slot * group->blocks_per_slot + position / plan->block_tokens];
    uint32_t in_block = position % plan->block_tokens;
    uint64_t tile_bytes = group->head_bytes / (plan->block_tokens / KV_TILE);

    return (struct cpu_kv_place){group->pool + block * group->block_bytes +
                                     (uint64_t)layer * plan->kv_heads * group->head_bytes +
                                     in_block / KV_TILE * tile_bytes,
                                 in_block % KV_TILE};
}
