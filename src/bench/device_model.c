#include "bench/device_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/hash.h"

enum { FILE_BYTES_MAX = 1 << 20 };

static const char *const spread_names[MODEL_SPREADS] = {
    [SPREAD_DECODES] = "spread", [SPREAD_PROMPTS] = "prompt_spread"};

struct reader {
    const char *path;
    const json_t *page;
    struct error *err;
};

static enum status wrong(const struct reader *r, const char *key, const char *right)
{
    return error_set(r->err, STATUS_CORRUPT, "%s: %s must be %s", r->path, key, right);
}

static enum status get_time(const struct reader *r, const char *key, double *out)
{
    const json_t *value = json_object_get(r->page, key);

    if (!value) return STATUS_OK;
    *out = json_number_value(value);
    if (!json_is_number(value) || !(*out >= 0 && *out < 1e12))
        return wrong(r, key, "nanoseconds, 0 or more");
    return STATUS_OK;
}

static enum status get_share(const struct reader *r, const char *key, double *out)
{
    const json_t *value = json_object_get(r->page, key);

    if (!value) return STATUS_OK;
    *out = json_number_value(value);
    if (!json_is_number(value) || !(*out >= 0 && *out <= 100))
        return wrong(r, key, "a number, 0 to 100");
    return STATUS_OK;
}

static enum status get_count(const struct reader *r, const char *key, uint32_t low, uint32_t high,
                             uint32_t *out)
{
    const json_t *value = json_object_get(r->page, key);

    if (!value && *out) return STATUS_OK;
    if (!json_is_integer(value) || json_integer_value(value) < low ||
        json_integer_value(value) > high)
        return error_set(r->err, STATUS_CORRUPT, "%s: %s must be a whole number, %u to %u", r->path,
                         key, low, high);
    *out = (uint32_t)json_integer_value(value);
    return STATUS_OK;
}

static enum status get_kind(const struct reader *r, bool *gpu)
{
    const json_t *value = json_object_get(r->page, "kind");
    const char *kind = json_string_value(value);

    *gpu = kind && strcmp(kind, "cuda") == 0;
    if (!value || *gpu || (kind && strcmp(kind, "cpu") == 0)) return STATUS_OK;
    return wrong(r, "kind", "cpu or cuda");
}

static enum status get_points(const struct reader *r, struct device_model *out)
{
    const json_t *points = json_object_get(r->page, "rows_ns"), *point;
    size_t i, count = json_array_size(points);

    if (count < 1 || count > MODEL_POINTS_MAX)
        return wrong(r, "rows_ns", "1 to 32 pairs [rows, ns]");
    json_array_foreach(points, i, point)
    {
        double rows = json_number_value(json_array_get(point, 0)),
               ns = json_number_value(json_array_get(point, 1));
        if (json_array_size(point) != 2 || !(rows >= 1) || !(ns >= 0 && ns < 1e12) ||
            (i && rows <= out->rows[i - 1]))
            return wrong(r, "rows_ns", "pairs [rows, ns] with rising rows, from 1 on");
        out->rows[i] = rows;
        out->rows_ns[i] = ns;
    }
    out->point_count = (uint32_t)count;
    return STATUS_OK;
}

static enum status get_spread(const struct reader *r, const char *key, struct model_spread *out)
{
    const json_t *spread = json_object_get(r->page, key), *value;
    size_t i, count = json_array_size(spread);
    double sum = 0;

    if (!spread) return STATUS_OK;
    if (count < 1 || count > MODEL_SPREAD_MAX)
        return wrong(r, key, "1 to 64 numbers whose mean is 1");
    json_array_foreach(spread, i, value)
    {
        out->ratios[i] = json_number_value(value);
        sum += out->ratios[i];
        if (!json_is_number(value) || !(out->ratios[i] >= 0))
            return wrong(r, key, "numbers, 0 or more");
    }
    out->count = (uint32_t)count;
    if (!(fabs(sum / (double)count - 1) < 0.01))
        return wrong(r, key, "1 to 64 numbers whose mean is 1");
    return STATUS_OK;
}

static enum status read_model(const struct reader *r, struct device_model *out)
{
    const char *name = json_string_value(json_object_get(r->page, "name"));
    enum status st;

    *out = (struct device_model){.block_tokens = 16, .max_model_len = 16777216};
    if (!name) return wrong(r, "name", "a string");
    snprintf(out->name, sizeof out->name, "%s", name);
    st = get_count(r, "kv_tokens", 16, 0x7fffffff, &out->kv_tokens);
    if (!st) st = get_count(r, "block_tokens", 16, 64, &out->block_tokens);
    if (!st) st = get_count(r, "max_model_len", 1, 16777216, &out->max_model_len);
    if (!st) st = get_points(r, out);
    if (!st) st = get_time(r, "output_ns", &out->output_ns);
    if (!st) st = get_time(r, "kv_token_ns", &out->kv_token_ns);
    if (!st) st = get_time(r, "pair_ns", &out->pair_ns);
    if (!st) st = get_time(r, "rest_ns", &out->rest_ns);
    if (!st) st = get_share(r, "rest_share", &out->rest_share);
    if (!st && out->rest_share > 0 && !(out->rest_ns > 0))
        st = wrong(r, "rest_ns", "more than 0 where there is a rest_share");
    for (int k = 0; !st && k < MODEL_SPREADS; k++)
        st = get_spread(r, spread_names[k], &out->spreads[k]);
    if (!st) st = get_kind(r, &out->gpu);
    if (!st) st = get_time(r, "host_ns", &out->host_ns);
    if (!st) st = get_time(r, "host_seq_ns", &out->host_seq_ns);
    if (!st) st = get_time(r, "request_ns", &out->request_ns);
    if (!st) st = get_time(r, "reply_ns", &out->reply_ns);
    return st;
}

enum status device_model_read(const char *path, struct device_model *out, struct error *err)
{
    char *text = NULL;
    uint64_t len;
    json_error_t fault;
    enum status st = file_read(path, FILE_BYTES_MAX, &text, &len, err);

    if (st) return st;
    json_t *page = json_loadb(text, len, JSON_REJECT_DUPLICATES, &fault);
    struct reader reader = {path, page, err};
    if (!json_is_object(page))
        st = error_set(err, STATUS_CORRUPT, "%s:%d: not a JSON object: %s", path, fault.line,
                       fault.text);
    else
        st = read_model(&reader, out);
    json_decref(page);
    free(text);
    return st;
}

static json_t *spread_json(const struct model_spread *spread)
{
    json_t *ratios = json_array();

    for (uint32_t i = 0; i < spread->count; i++)
        json_array_append_new(ratios, json_real(spread->ratios[i]));
    return ratios;
}

json_t *device_model_json(const struct device_model *m)
{
    json_t *points = json_array();

    for (uint32_t i = 0; i < m->point_count; i++)
        json_array_append_new(points, json_pack("[i, f]", (int)m->rows[i], m->rows_ns[i]));
    json_t *page = json_pack("{s:s, s:I, s:I, s:I, s:o}", "name", m->name, "kv_tokens",
                             (json_int_t)m->kv_tokens, "block_tokens", (json_int_t)m->block_tokens,
                             "max_model_len", (json_int_t)m->max_model_len, "rows_ns", points);
    const struct {
        const char *key;
        double value;
    } times[] = {{"output_ns", m->output_ns},     {"kv_token_ns", m->kv_token_ns},
                 {"pair_ns", m->pair_ns},         {"rest_ns", m->rest_ns},
                 {"rest_share", m->rest_share},   {"host_ns", m->host_ns},
                 {"host_seq_ns", m->host_seq_ns}, {"request_ns", m->request_ns},
                 {"reply_ns", m->reply_ns}};

    for (size_t i = 0; page && i < sizeof times / sizeof *times; i++)
        json_object_set_new(page, times[i].key, json_real(times[i].value));
    for (int k = 0; page && k < MODEL_SPREADS; k++)
        if (m->spreads[k].count)
            json_object_set_new(page, spread_names[k], spread_json(&m->spreads[k]));
    if (page) json_object_set_new(page, "kind", json_string(m->gpu ? "cuda" : "cpu"));
    return page;
}

static double table_ns(const struct device_model *m, double rows)
{
    uint32_t i = 1;

    if (m->point_count == 1 || rows <= m->rows[0]) return m->rows_ns[0];
    while (i + 1 < m->point_count && rows > m->rows[i])
        i++;
    return m->rows_ns[i - 1] + (m->rows_ns[i] - m->rows_ns[i - 1]) * (rows - m->rows[i - 1]) /
                                   (m->rows[i] - m->rows[i - 1]);
}

int64_t device_model_step_ns(const struct device_model *m, const struct device_work *work)
{
    double ns = table_ns(m, work->rows) + m->output_ns * work->outputs +
                m->kv_token_ns * (double)work->kv_tokens + m->pair_ns * (double)work->pairs;

    if (m->rest_share > 0)
        ns *= 1 + m->rest_share * (work->idle_ns < m->rest_ns ? work->idle_ns / m->rest_ns : 1);
    return ns < 1 ? 1 : (int64_t)ns;
}

double device_model_luck(const struct device_model *m, int kind, uint64_t number)
{
    const struct model_spread *spread = &m->spreads[kind];

    return spread->count ? spread->ratios[hash_mix64(number) % spread->count] : 1;
}
