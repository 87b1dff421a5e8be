/* cuda_weights.c - weights to their one place on the device: rows permuted, converted and padded on the way.
 *
 * Three stages overlap: threads bring pages of the files in ahead (read_ahead.h); threads of a pool write rows into one of two
 * pinned buffers; the other is being copied up. Matrices come first, vectors behind them: each of these waits for the stream.
 * Made-up weights of a float type are made on the device, those of block formats here (dummy_weights.h has the same values). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/log.h"
#include "device/cpu/cpu_pool.h"
#include "device/cuda/cuda_device.h"
#include "device/dummy_weights.h"
#include "device/read_ahead.h"
#include "row_ops.h"

enum {
    PARTS_MAX = 3,
    THREADS_MAX = 16,
    AHEAD_THREADS = 6,
    ALTERNATE_BYTES = 2 << 20,
    SCRATCH_SLACK = 256
};
/* Far enough to keep a disk busy, little enough to stay in memory until it is read. */
static const uint64_t AHEAD_BYTES = 1ull << 30;

/* Where the rows of a part of a matrix go. */
enum placing {
    PLACE_IN_ORDER,
    PLACE_ROPE_HALVES, /* within a head: partners i and i + dim/2 become 2i and 2i + 1 */
    PLACE_EVERY_SECOND,
};
struct part {
    const struct plan_weight *weight;
    enum placing placing;
    uint32_t first; /* row of the matrix where it starts */
    uint32_t head_dim, rope_dim;
};
struct source {
    uint32_t part, row;
};
struct loader {
    struct cuda_device *d;
    struct cpu_pool *pool;
    struct part parts[PARTS_MAX];
    uint32_t part_count;
    struct source *sources;      /* [rows of the matrix] */
    float *scratch[THREADS_MAX]; /* values of a row, behind them a made-up row as stored */
    uint32_t scratch_cols;
    struct read_ahead *ahead;
    uint64_t read_bytes; /* of its list */
    cudaEvent_t sent[2];
    uint32_t turn;
    uint64_t done_bytes, total_bytes;
    bool converted; /* something was stored in another type than the device computes in */
};

static uint32_t place(const struct part *p, uint32_t row)
{
    uint32_t e;

    switch (p->placing) {
    case PLACE_EVERY_SECOND: return p->first + 2 * row;
    case PLACE_ROPE_HALVES:
        e = row % p->head_dim;
        if (e < p->rope_dim) e = e < p->rope_dim / 2 ? 2 * e : 2 * (e - p->rope_dim / 2) + 1;
        return p->first + row / p->head_dim * p->head_dim + e;
    default: return p->first + row;
    }
}

/* --- matrices --- */

struct fill_job {
    struct loader *l;
    const struct cuda_matrix *m;
    uint32_t first; /* matrix row at the buffer's start */
    char *to;
};

static void write_row(struct loader *l, const struct plan_weight *w, uint32_t row, uint32_t thread,
                      uint16_t *to, uint32_t padded)
{
    const void *from = (const char *)w->data + row * w->row_stride;
    enum dtype want = l->d->compute_dtype;
    float *values = l->scratch[thread];

    if (!w->data) {
        void *made = values + l->scratch_cols + SCRATCH_SLACK;
        dummy_weight_row(w, row, made);
        from = made;
    }
    if (w->dtype == want) {
        memcpy(to, from, (size_t)w->cols * 2);
    } else {
        quant_row_to_f32(w->dtype, from, w->cols, values);
        f32_row_to_half(want, values, w->cols, to);
    }
    memset(to + w->cols, 0, (size_t)(padded - w->cols) * 2);
}

static void fill_rows(void *ctx, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct fill_job *j = ctx;

    for (uint32_t i = begin; i < end; i++) {
        struct source s = j->l->sources[j->first + i];
        write_row(j->l, j->l->parts[s.part].weight, s.row, thread,
                  (uint16_t *)(j->to + (uint64_t)i * j->m->cols_padded * 2), j->m->cols_padded);
    }
}

/* Whether the weight's bytes lie in a file, back to back. */
static bool is_read(const struct plan_weight *w)
{
    return w->data && w->mapped && w->row_stride == dtype_row_bytes(w->dtype, w->cols);
}

/* Bytes of the parts as listed for reading ahead. */
static uint64_t source_bytes(const struct loader *l)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < l->part_count; i++)
        if (is_read(l->parts[i].weight))
            bytes += l->parts[i].weight->row_stride * l->parts[i].weight->rows;
    return bytes;
}

static cudaError_t send_matrix(struct loader *l, const struct cuda_matrix *m)
{
    uint64_t row_bytes = (uint64_t)m->cols_padded * 2;
    uint32_t chunk = (uint32_t)(CUDA_STAGING_BYTES / row_bytes);
    cudaError_t e = cudaSuccess;

    assert(chunk > 0);
    for (uint32_t first = 0; !e && first < m->rows; first += chunk) {
        uint32_t rows = m->rows - first < chunk ? m->rows - first : chunk;
        struct fill_job job = {l, m, first, l->d->b.staging[l->turn]};
        e = cudaEventSynchronize(l->sent[l->turn]);
        cpu_pool_run(l->pool, fill_rows, &job, rows, 1 + (uint32_t)(65536 / row_bytes));
        if (!e)
            e = cudaMemcpyAsync(m->at + first * row_bytes, job.to, rows * row_bytes,
                                cudaMemcpyHostToDevice, l->d->ctx.stream);
        if (!e) e = cudaEventRecord(l->sent[l->turn], l->d->ctx.stream);
        l->turn ^= 1;
        read_ahead_reached(l->ahead, l->read_bytes + source_bytes(l) * (first + rows) / m->rows);
    }
    l->read_bytes += source_bytes(l);
    return e;
}

static cudaError_t make_dummy(struct loader *l, const struct cuda_matrix *m, uint32_t part)
{
    struct cuda_device *d = l->d;
    const struct plan_weight *w = l->parts[part].weight;
    uint32_t *map = (uint32_t *)d->b.staging[l->turn];
    cudaError_t e = cudaEventSynchronize(l->sent[l->turn]);

    for (uint32_t r = 0; r < w->rows; r++)
        map[r] = place(&l->parts[part], r);
    if (!e)
        e = cudaMemcpyAsync(d->b.row_map, map, w->rows * sizeof *map, cudaMemcpyHostToDevice,
                            d->ctx.stream);
    if (!e) e = cudaEventRecord(l->sent[l->turn], d->ctx.stream);
    l->turn ^= 1;
    return e ? e
             : fill_dummy(&d->ctx, m->at, m->cols_padded, w->rows, w->cols,
                          (const uint32_t *)d->b.row_map, w->dummy_seed);
}

/* A made-up weight in a block format is made on the host, as the CPU device has it. */
static bool made_on_device(const struct plan_weight *w)
{
    return !w->data && dtype_info(w->dtype)->is_float;
}

static enum status load_matrix(struct loader *l, const struct cuda_matrix *m, struct error *err)
{
    cudaError_t e = cudaSuccess;
    bool from_host = false;

    for (uint32_t i = 0; i < l->part_count; i++) {
        const struct plan_weight *w = l->parts[i].weight;
        if (!dtype_info(w->dtype)->has_values)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s is stored as %s, which this build cannot decode", w->name,
                             dtype_info(w->dtype)->name);
        l->converted |= w->dtype != l->d->compute_dtype;
        from_host |= !made_on_device(w);
        for (uint32_t r = 0; r < w->rows; r++)
            l->sources[place(&l->parts[i], r)] = (struct source){i, r};
    }
    if (from_host) {
        e = send_matrix(l, m);
    } else {
        for (uint32_t i = 0; !e && i < l->part_count; i++)
            e = make_dummy(l, m, i);
    }
    if (e)
        return error_set(err, STATUS_DEVICE, "loading %s: %s", l->parts[0].weight->name,
                         cudaGetErrorString(e));
    for (uint32_t i = 0; i < l->part_count; i++) {
        const struct plan_weight *w = l->parts[i].weight;
        if (is_read(w)) file_map_drop(w->data, w->row_stride * w->rows);
    }
    l->done_bytes += (uint64_t)m->rows * m->cols_padded * 2;
    if (l->d->options.progress)
        l->d->options.progress(l->d->options.progress_ctx, l->done_bytes, l->total_bytes);
    return STATUS_OK;
}

/* --- vectors --- */

/* Values of `w` to the places of `part` in a float vector on the device; offset is added (gains stored minus one). */
static enum status load_vector(struct loader *l, const struct plan_weight *w,
                               const struct part *part, float offset, float *to, uint32_t length,
                               struct error *err)
{
    float *values = calloc(length + w->cols + 1, sizeof *values),
          *placed = values ? values + w->cols : NULL;
    void *made = malloc((size_t)w->cols * 4 + 64);
    cudaError_t e = cudaSuccess;

    if (!values || !made) {
        free(values), free(made);
        return error_set(err, STATUS_NOMEM, "no memory to load %s", w->name);
    }
    if (!w->data) dummy_weight_row(w, 0, made);
    quant_row_to_f32(w->dtype, w->data ? w->data : made, w->cols, values);
    e = cudaStreamSynchronize(l->d->ctx.stream);
    if (!e)
        e = cudaMemcpy(placed, to, length * sizeof *to,
                       cudaMemcpyDeviceToHost); /* other parts are there */
    for (uint32_t i = 0; i < w->cols; i++)
        placed[place(part, i)] = values[i] + offset;
    if (!e) e = cudaMemcpy(to, placed, length * sizeof *to, cudaMemcpyHostToDevice);
    free(values), free(made);
    return e ? error_set(err, STATUS_DEVICE, "loading %s: %s", w->name, cudaGetErrorString(e))
             : STATUS_OK;
}

static enum status load_gain(struct loader *l, const struct plan_norm *norm, float *to,
                             const struct part *like, struct error *err)
{
    struct part part = like ? *like : (struct part){.placing = PLACE_IN_ORDER};

    part.first = 0;
    return to ? load_vector(l, &norm->gain, &part, norm->gain_offset, to, norm->gain.cols, err)
              : STATUS_OK;
}

static enum status load_bias(struct loader *l, const struct plan_weight *w, uint32_t part,
                             float *to, uint32_t rows, struct error *err)
{
    return w->rows ? load_vector(l, w, &l->parts[part], 0, to, rows, err) : STATUS_OK;
}

/* --- stages --- */

static void set_parts(struct loader *l, const struct stage *s)
{
    const struct stage_attn_in *a = &s->attn_in;
    uint32_t rope = s->kind == STAGE_ATTN_IN ? l->d->plan->ropes[a->rope].dim : 0;
    enum placing turned = a->pairing == ROPE_HALVES ? PLACE_ROPE_HALVES : PLACE_IN_ORDER;

    l->part_count = 1;
    switch (s->kind) {
    case STAGE_EMBED: l->parts[0] = (struct part){&s->embed.table, PLACE_IN_ORDER, 0, 0, 0}; break;
    case STAGE_ATTN_IN:
        l->parts[0] = (struct part){&a->q, turned, 0, a->head_dim, rope};
        l->parts[1] = (struct part){&a->k, turned, a->q.rows, a->head_dim, rope};
        l->parts[2] = (struct part){&a->v, PLACE_IN_ORDER, a->q.rows + a->k.rows, 0, 0};
        l->part_count = 3;
        break;
    case STAGE_FFN_IN:
        l->parts[0] = (struct part){&s->ffn_in.gate, PLACE_EVERY_SECOND, 0, 0, 0};
        l->parts[1] = (struct part){&s->ffn_in.up, PLACE_EVERY_SECOND, 1, 0, 0};
        l->part_count = 2;
        break;
    case STAGE_ATTN_OUT:
        l->parts[0] = (struct part){&s->attn_out.weight, PLACE_IN_ORDER, 0, 0, 0};
        break;
    case STAGE_FFN_OUT:
        l->parts[0] = (struct part){&s->ffn_out.weight, PLACE_IN_ORDER, 0, 0, 0};
        break;
    case STAGE_HEAD: l->parts[0] = (struct part){&s->head.weight, PLACE_IN_ORDER, 0, 0, 0}; break;
    default: l->part_count = 0;
    }
}

static enum status load_vectors(struct loader *l, const struct cuda_stage *s, struct error *err)
{
    const struct stage *p = s->plan;
    uint32_t rows = s->weight.rows;
    enum status st = STATUS_OK;

    switch (p->kind) {
    case STAGE_ATTN_IN:
        st = load_gain(l, &p->attn_in.norm, s->gain, NULL, err);
        if (!st) st = load_gain(l, &p->attn_in.q_norm, s->q_gain, &l->parts[0], err);
        if (!st) st = load_gain(l, &p->attn_in.k_norm, s->k_gain, &l->parts[1], err);
        if (!st) st = load_bias(l, &p->attn_in.q_bias, 0, s->bias, rows, err);
        if (!st) st = load_bias(l, &p->attn_in.k_bias, 1, s->bias, rows, err);
        if (!st) st = load_bias(l, &p->attn_in.v_bias, 2, s->bias, rows, err);
        break;
    case STAGE_FFN_IN:
        st = load_gain(l, &p->ffn_in.norm, s->gain, NULL, err);
        if (!st) st = load_bias(l, &p->ffn_in.gate_bias, 0, s->bias, rows, err);
        if (!st) st = load_bias(l, &p->ffn_in.up_bias, 1, s->bias, rows, err);
        break;
    case STAGE_ATTN_OUT:
        st = load_bias(l, &p->attn_out.bias, 0, s->bias, rows, err);
        if (!st) st = load_gain(l, &p->attn_out.post_norm, s->post_gain, NULL, err);
        break;
    case STAGE_FFN_OUT:
        st = load_bias(l, &p->ffn_out.bias, 0, s->bias, rows, err);
        if (!st) st = load_gain(l, &p->ffn_out.post_norm, s->post_gain, NULL, err);
        break;
    case STAGE_HEAD: st = load_gain(l, &p->head.norm, s->gain, NULL, err); break;
    default: break;
    }
    return st;
}

/* Whether the stage has a matrix of its own: a tied head has none. */
static const struct cuda_matrix *own_matrix(const struct loader *l, const struct cuda_stage *s)
{
    const struct cuda_matrix *m = s->plan->kind == STAGE_EMBED ? &l->d->b.embed : &s->weight;

    return m->rows && (s->plan->kind != STAGE_HEAD || m->at != l->d->b.embed.at) ? m : NULL;
}

/* In the order of reading: what is interleaved in the matrix is read in turns. */
static enum status list_parts(struct loader *l, struct error *err)
{
    bool more = true;
    enum status st = STATUS_OK;

    for (uint64_t done = 0; more && !st; done += ALTERNATE_BYTES) {
        more = false;
        for (uint32_t i = 0; i < l->part_count && !st; i++) {
            const struct plan_weight *w = l->parts[i].weight;
            uint64_t bytes = is_read(w) ? w->row_stride * w->rows : 0;
            if (l->parts[i].placing != PLACE_EVERY_SECOND) {
                if (!done) st = read_ahead_add(l->ahead, w->data, bytes, err);
                continue;
            }
            if (done >= bytes) continue;
            uint64_t n = bytes - done < ALTERNATE_BYTES ? bytes - done : ALTERNATE_BYTES;
            st = read_ahead_add(l->ahead, (const char *)w->data + done, n, err);
            more = true;
        }
    }
    return st;
}

static enum status list_reading(struct loader *l, struct error *err)
{
    enum status st = read_ahead_create(&l->ahead, err);

    for (uint32_t i = 0; !st && i < l->d->plan->stage_count; i++) {
        set_parts(l, l->d->b.stages[i].plan);
        if (own_matrix(l, &l->d->b.stages[i])) st = list_parts(l, err);
    }
    return st;
}

static void measure(struct loader *l, uint32_t *rows_max)
{
    for (uint32_t i = 0; i < l->d->plan->stage_count; i++) {
        const struct cuda_stage *s = &l->d->b.stages[i];
        const struct cuda_matrix *m = own_matrix(l, s);
        if (!m) continue;
        if (m->rows > *rows_max) *rows_max = m->rows;
        if (m->cols > l->scratch_cols) l->scratch_cols = m->cols;
        l->total_bytes += (uint64_t)m->rows * m->cols_padded * 2;
    }
}

static enum status begin(struct loader *l, struct error *err)
{
    uint32_t rows_max = 1, threads = cpu_limit_processors();
    enum status st;

    threads -= threads > AHEAD_THREADS ? AHEAD_THREADS
                                       : 0; /* who waits for a whole chunk wants no rivals */
    threads = threads > THREADS_MAX ? THREADS_MAX : threads;
    measure(l, &rows_max);
    st = list_reading(l, err);
    if (!st) st = cpu_pool_create(threads, NULL, &l->pool, err);
    l->sources = malloc(rows_max * sizeof *l->sources);
    bool ok = l->sources != NULL;
    for (uint32_t i = 0; i < threads; i++)
        ok &=
            (l->scratch[i] = malloc(2 * (l->scratch_cols + SCRATCH_SLACK) * sizeof(float))) != NULL;
    if (!st && !ok) st = error_set(err, STATUS_NOMEM, "no memory to load weights");
    if (st) return st;
    cudaError_t e = cudaEventCreateWithFlags(&l->sent[0], cudaEventDisableTiming);
    if (!e) e = cudaEventCreateWithFlags(&l->sent[1], cudaEventDisableTiming);
    return e ? error_set(err, STATUS_DEVICE, "events of loading: %s", cudaGetErrorString(e))
             : STATUS_OK;
}

enum status cuda_load_weights(struct cuda_device *d, struct error *err)
{
    struct loader l = {.d = d};
    enum status st = begin(&l, err);

    if (!st && d->options.progress) d->options.progress(d->options.progress_ctx, 0, l.total_bytes);
    if (!st) read_ahead_start(l.ahead, AHEAD_THREADS, AHEAD_BYTES);
    for (uint32_t i = 0; !st && i < d->plan->stage_count; i++) {
        const struct cuda_matrix *m = own_matrix(&l, &d->b.stages[i]);
        set_parts(&l, d->b.stages[i].plan);
        if (m) st = load_matrix(&l, m, err);
    }
    for (uint32_t i = 0; !st && i < d->plan->stage_count; i++) {
        set_parts(&l, d->b.stages[i].plan);
        st = load_vectors(&l, &d->b.stages[i], err);
    }
    cudaError_t e = cudaDeviceSynchronize();
    if (!st && e) st = error_set(err, STATUS_DEVICE, "loading weights: %s", cudaGetErrorString(e));
    if (!st && l.converted)
        log_info("weights converted",
                 "stored types that the CUDA device does not compute in were rounded to %s at load",
                 dtype_info(d->compute_dtype)->name);
    for (int i = 0; i < 2; i++)
        if (l.sent[i]) cudaEventDestroy(l.sent[i]);
    read_ahead_end(l.ahead);
    cpu_pool_destroy(l.pool);
    for (uint32_t i = 0; i < THREADS_MAX; i++)
        free(l.scratch[i]);
    free(l.sources);
    return st;
}
