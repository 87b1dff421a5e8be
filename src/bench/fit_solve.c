#include "bench/fit_solve.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "bench/samples.h"

enum {
    UNKNOWNS_MAX = MODEL_POINTS_MAX + 3,
    SPREAD_SAMPLES = 4 * SPREAD_PARTS,
    ROUNDS = 4,
    SWEEPS = 20000,
    SAMPLES_MIN = 8,
    AT_POINT = 3
};
/* A device that has stood still for a tenth of a second is as cold as it gets (measured on a virtual CPU: 20 to 100 ms 1.06, longer 1.16). */
static const double REST_NS = 1e8, RESTED_NS = 5e6;
static const double ENOUGH =
    1e-12; /* a sweep that changes no term by more than this share ends it */

struct normal { /* equations of the weighted squares, columns scaled to one */
    double gram[UNKNOWNS_MAX][UNKNOWNS_MAX], right[UNKNOWNS_MAX], scale[UNKNOWNS_MAX];
    uint32_t unknowns;
};

static bool is_rested(const struct fit_sample *s)
{
    return s->idle_ns > RESTED_NS;
}

/* What multiplies each unknown: the weights of the table's points, then outputs, kv_tokens, pairs. */
static void features(const struct device_model *m, const struct device_work *work,
                     double x[UNKNOWNS_MAX])
{
    uint32_t n = m->point_count, i = 1;
    double rows = work->rows, share;

    memset(x, 0, sizeof(double) * UNKNOWNS_MAX);
    while (i + 1 < n && rows > m->rows[i])
        i++;
    if (n == 1 || rows <= m->rows[0]) {
        x[0] = 1;
    } else {
        share = (rows - m->rows[i - 1]) / (m->rows[i] - m->rows[i - 1]);
        x[i - 1] = 1 - share;
        x[i] = share;
    }
    x[n] = work->outputs;
    x[n + 1] = (double)work->kv_tokens;
    x[n + 2] = (double)work->pairs;
}

/* A point where at least AT_POINT steps are nearer to it than to the next powers of two; the first and the last step's always. */
static void place_points(const struct fit_sample *samples, uint32_t count, struct device_model *m)
{
    uint32_t near[MODEL_POINTS_MAX] = {0}, low = UINT32_MAX, high = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t rows = samples[i].work.rows, k = (uint32_t)lround(log2(rows));

        if (k < MODEL_POINTS_MAX) near[k]++;
        if (rows < low) low = rows;
        if (rows > high) high = rows;
    }
    m->point_count = 0;
    m->rows[m->point_count++] = low;
    for (uint32_t k = 0; k < MODEL_POINTS_MAX - 2; k++)
        if (near[k] >= AT_POINT && 1U << k > low && 1U << k < high)
            m->rows[m->point_count++] = 1U << k;
    if (high > low) m->rows[m->point_count++] = high;
}

static void make_equations(const struct fit_sample *samples, uint32_t count,
                           const struct device_model *m, bool first, struct normal *eq)
{
    double x[UNKNOWNS_MAX];

    memset(eq, 0, sizeof *eq);
    eq->unknowns = m->point_count + 3;
    for (uint32_t k = 0; k < count; k++) {
        double told = first ? samples[k].ns : (double)device_model_step_ns(m, &samples[k].work);
        double weight = 1 / told; /* so the residuals' sum over all steps is zero */

        if (is_rested(&samples[k])) continue;
        features(m, &samples[k].work, x);
        for (uint32_t u = 0; u < eq->unknowns; u++) {
            if (x[u] == 0) continue;
            eq->right[u] += weight * x[u] * samples[k].ns;
            for (uint32_t v = 0; v < eq->unknowns; v++)
                eq->gram[u][v] += weight * x[u] * x[v];
        }
    }
    for (uint32_t u = 0; u < eq->unknowns; u++)
        eq->scale[u] = eq->gram[u][u] > 0 ? 1 / sqrt(eq->gram[u][u]) : 0;
    for (uint32_t u = 0; u < eq->unknowns; u++) {
        eq->right[u] *= eq->scale[u];
        for (uint32_t v = 0; v < eq->unknowns; v++)
            eq->gram[u][v] *= eq->scale[u] * eq->scale[v];
    }
}

/* One unknown after the other, none below zero: the problem is convex. w: scaled, a start on entry. */
static void descend(const struct normal *eq, double w[UNKNOWNS_MAX])
{
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double moved = 0, size = 0;

        for (uint32_t u = 0; u < eq->unknowns; u++) {
            double slope = eq->right[u], next;

            if (eq->scale[u] == 0) continue;
            for (uint32_t v = 0; v < eq->unknowns; v++)
                slope -= eq->gram[u][v] * w[v];
            next = w[u] + slope;
            if (next < 0) next = 0;
            moved = fmax(moved, fabs(next - w[u]));
            size = fmax(size, next);
            w[u] = next;
        }
        if (moved <= ENOUGH * size) break;
    }
}

static void take_terms(const struct normal *eq, const double w[UNKNOWNS_MAX],
                       struct device_model *m)
{
    uint32_t n = m->point_count;

    for (uint32_t i = 0; i < n; i++)
        m->rows_ns[i] = w[i] * eq->scale[i];
    m->output_ns = w[n] * eq->scale[n];
    m->kv_token_ns = w[n + 1] * eq->scale[n + 1];
    m->pair_ns = w[n + 2] * eq->scale[n + 2];
}

/* How much longer those take that start after a rest: by the sums, so that all of them together are right. */
static void fit_rest(const struct fit_sample *samples, uint32_t count, struct device_model *m)
{
    double more = 0, whole = 0;

    m->rest_ns = REST_NS;
    m->rest_share = 0;
    for (uint32_t i = 0; i < count; i++) {
        double told = (double)device_model_step_ns(m, &samples[i].work);

        if (!is_rested(&samples[i])) continue;
        more += samples[i].ns - told;
        whole += told * fmin(1, samples[i].idle_ns / REST_NS);
    }
    if (more > 0 && whole > 0) m->rest_share = more / whole;
}

/* Measured over told. */
static double ratio(const struct device_model *m, const struct fit_sample *s)
{
    struct device_work work = s->work;

    work.idle_ns = s->idle_ns;
    return s->ns / (double)device_model_step_ns(m, &work);
}

/* The mean of each of SPREAD_PARTS equal parts of the sorted ratios, over the mean of these. */
static struct model_spread spread_of(struct samples *ratios)
{
    struct model_spread spread = {0};
    double sum = 0;

    if (ratios->count < SPREAD_SAMPLES) return spread;
    samples_sort(ratios);
    for (size_t k = 0; k < SPREAD_PARTS; k++) {
        size_t from = ratios->count * k / SPREAD_PARTS, to = ratios->count * (k + 1) / SPREAD_PARTS;

        for (size_t i = from; i < to; i++)
            spread.ratios[k] += ratios->values[i] / (double)(to - from);
        sum += spread.ratios[k];
    }
    for (; spread.count < SPREAD_PARTS; spread.count++)
        spread.ratios[spread.count] *= SPREAD_PARTS / sum;
    return spread;
}

static enum status fit_spreads(const struct fit_sample *samples, uint32_t count,
                               struct device_model *m, struct error *err)
{
    struct samples ratios[MODEL_SPREADS] = {0};
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < count; i++)
        st = samples_add(&ratios[device_work_kind(&samples[i].work)], ratio(m, &samples[i]));
    for (int k = 0; k < MODEL_SPREADS; k++) {
        if (!st) m->spreads[k] = spread_of(&ratios[k]);
        samples_fini(&ratios[k]);
    }
    return st ? error_set(err, st, "no memory for %u steps", count) : STATUS_OK;
}

static struct fit_quality judge(const struct fit_sample *samples, uint32_t count,
                                const struct device_model *m)
{
    struct fit_quality q = {0};

    for (uint32_t i = 0; i < count; i++) {
        double off = fabs(1 / ratio(m, &samples[i]) - 1);
        q.mean += off / count;
        q.worst = fmax(q.worst, off);
    }
    return q;
}

enum status fit_solve(const struct fit_sample *samples, uint32_t count, struct device_model *out,
                      struct fit_quality *quality, struct error *err)
{
    double w[UNKNOWNS_MAX] = {0};
    struct normal eq;
    uint32_t usable = 0;

    for (uint32_t i = 0; i < count; i++)
        usable += !is_rested(&samples[i]);
    if (usable < SAMPLES_MIN)
        return error_set(err, STATUS_INVALID,
                         "%u steps that followed another at once; a fit needs %d or more", usable,
                         SAMPLES_MIN);
    place_points(samples, count, out);
    for (int round = 0; round < ROUNDS; round++) {
        make_equations(samples, count, out, round == 0, &eq);
        for (uint32_t u = 0; u < eq.unknowns; u++) /* from nothing: the scale is another */
            w[u] = 0;
        descend(&eq, w);
        take_terms(&eq, w, out);
    }
    fit_rest(samples, count, out);
    *quality = judge(samples, count, out);
    return fit_spreads(samples, count, out, err);
}
