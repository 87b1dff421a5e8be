#include "sched/cost_model.h"

enum { FEATURES = 3, COLD = 2, READY_AFTER = COLD + 8 };
static const double forgetting = 0.995;
static const double row_scale = 1.0 / 64,
                    pair_scale = 1.0 / 65536; /* features near one another in size */
static const double p_max = 1e3; /* without news the covariance grows; it must not without bound */

void cost_model_init(struct cost_model *model)
{
    *model = (struct cost_model){0};
    for (int i = 0; i < FEATURES; i++)
        model->p[i][i] = 100;
}

static void features(uint32_t rows, uint64_t pairs, double x[FEATURES])
{
    x[0] = 1;
    x[1] = rows * row_scale;
    x[2] = (double)pairs * pair_scale;
}

void cost_model_observe(struct cost_model *m, uint32_t rows, uint64_t pairs, int64_t ns)
{
    double x[FEATURES], px[FEATURES], gain[FEATURES], norm = forgetting, error = (double)ns;

    if (m->observed++ < COLD) return;
    features(rows, pairs, x);
    for (int i = 0; i < FEATURES; i++) {
        px[i] = 0;
        for (int j = 0; j < FEATURES; j++)
            px[i] += m->p[i][j] * x[j];
        error -= m->w[i] * x[i];
    }
    for (int i = 0; i < FEATURES; i++)
        norm += x[i] * px[i];
    for (int i = 0; i < FEATURES; i++) {
        gain[i] = px[i] / norm;
        m->w[i] += gain[i] * error;
    }
    double trace = m->p[0][0] + m->p[1][1] + m->p[2][2];
    double scale = trace < p_max ? 1 / forgetting : 1;
    /* One triangle, mirrored: an asymmetry from rounding would grow by 1 / forgetting each step, until p is no covariance any more. */
    for (int i = 0; i < FEATURES; i++)
        for (int j = i; j < FEATURES; j++)
            m->p[i][j] = m->p[j][i] = (m->p[i][j] - gain[i] * px[j]) * scale;
}

bool cost_model_ready(const struct cost_model *model)
{
    return model->observed >= READY_AFTER;
}

int64_t cost_model_predict(const struct cost_model *m, uint32_t rows, uint64_t pairs)
{
    double x[FEATURES], ns = 0;

    features(rows, pairs, x);
    for (int i = 0; i < FEATURES; i++)
        ns += m->w[i] * x[i];
    return ns > 0 ? (int64_t)ns : 0;
}

void cost_model_weights(const struct cost_model *m, double *step_ns, double *row_ns,
                        double *pair_ns)
{
    *step_ns = m->w[0] > 0 ? m->w[0] : 0;
    *row_ns = m->w[1] > 0 ? m->w[1] * row_scale : 0;
    *pair_ns = m->w[2] > 0 ? m->w[2] * pair_scale : 0;
}

/* The prediction grows with the rows (or is clamped), so the largest that fits is found by halving. */
uint32_t cost_model_rows(const struct cost_model *model, uint32_t rows, uint64_t pairs,
                         uint32_t context, uint32_t most, int64_t limit_ns)
{
    uint32_t low = 0, high = most;

    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;

        if (cost_model_predict(model, rows + middle, pairs + cost_pairs(context, middle)) <=
            limit_ns)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}
