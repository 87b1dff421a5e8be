#include "bench/samples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status samples_add(struct samples *s, double value)
{
    if (s->count == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        double *grown = realloc(s->values, cap * sizeof *grown);
        if (!grown) return STATUS_NOMEM;
        s->values = grown;
        s->cap = cap;
    }
    s->values[s->count++] = value;
    return STATUS_OK;
}

void samples_fini(struct samples *s)
{
    free(s->values);
    *s = (struct samples){0};
}

double samples_sum(const struct samples *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->count; i++)
        sum += s->values[i];
    return sum;
}

double samples_mean(const struct samples *s)
{
    return s->count ? samples_sum(s) / (double)s->count : 0;
}

double samples_std(const struct samples *s)
{
    double mean = samples_mean(s), sum = 0;

    for (size_t i = 0; i < s->count; i++)
        sum += (s->values[i] - mean) * (s->values[i] - mean);
    return s->count ? sqrt(sum / (double)s->count) : 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

void samples_sort(struct samples *s)
{
    if (s->count) qsort(s->values, s->count, sizeof *s->values, by_value);
}

double samples_percentile(const struct samples *s, double percent)
{
    double *sorted, rank, result;
    size_t low, high;

    if (!s->count) return 0;
    sorted = malloc(s->count * sizeof *sorted);
    if (!sorted) return NAN;
    memcpy(sorted, s->values, s->count * sizeof *sorted);
    qsort(sorted, s->count, sizeof *sorted, by_value);
    rank = percent / 100 * (double)(s->count - 1);
    low = (size_t)rank;
    high = low + 1 < s->count ? low + 1 : low;
    result = sorted[low] + (sorted[high] - sorted[low]) * (rank - (double)low);
    free(sorted);
    return result;
}
