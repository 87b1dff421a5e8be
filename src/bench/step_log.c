#include "bench/step_log.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "bench/log_line.h"
#include "bench/samples.h"

enum { STEPS_BYTES_MAX = 1 << 28 };

struct told { /* a step, as its line tells */
    json_int_t step, planned_ns, started_ns, ended_ns;
    struct device_work work;
};

static enum status read_told(const char *path, unsigned number, const char *text, size_t len,
                             struct told *out, struct error *err)
{
    json_int_t rows = 0, outputs = 0, kv_tokens = 0, pairs = 0;
    json_error_t fault;
    json_t *object = json_loadb(text, len, 0, &fault);
    /* without an object `fault` says why there is none */
    int wrong =
        !object || json_unpack_ex(object, &fault, 0, "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                                  "step", &out->step, "planned_ns", &out->planned_ns, "started_ns",
                                  &out->started_ns, "ended_ns", &out->ended_ns, "rows", &rows,
                                  "outputs", &outputs, "kv_tokens", &kv_tokens, "pairs", &pairs);

    json_decref(object);
    if (wrong || rows < 1 || rows > UINT32_MAX || outputs < 0 || outputs > rows || kv_tokens < 0 ||
        pairs < 0)
        return error_set(err, STATUS_CORRUPT, "%s:%u is not a line of GET /admin/steps%s%s", path,
                         number, wrong ? ": " : "", wrong ? fault.text : "");
    out->work = (struct device_work){.rows = (uint32_t)rows,
                                     .outputs = (uint32_t)outputs,
                                     .kv_tokens = (uint64_t)kv_tokens,
                                     .pairs = (uint64_t)pairs};
    return STATUS_OK;
}

/* The step as a sample, where the one before it is `last`. */
static enum status add(struct step_log *log, struct samples *wakes, const struct told *last,
                       const struct told *t)
{
    bool queued = t->planned_ns < last->ended_ns;
    int64_t from_ns = queued ? last->ended_ns : t->started_ns;

    if (t->step != last->step + 1 || t->ended_ns <= from_ns) return STATUS_OK;
    struct fit_sample *grown = log->samples;
    if ((log->count & (log->count + 1)) == 0) /* full at 0, 1, 3, 7, ... */
        grown = realloc(grown, (2 * (size_t)log->count + 1) * sizeof *grown);
    if (!grown) return STATUS_NOMEM;
    log->samples = grown;
    log->samples[log->count++] =
        (struct fit_sample){.work = t->work,
                            .ns = (double)(t->ended_ns - from_ns),
                            .idle_ns = queued ? 0 : (double)(t->started_ns - last->ended_ns)};
    return queued || t->started_ns < t->planned_ns
               ? STATUS_OK
               : samples_add(wakes, (double)(t->started_ns - t->planned_ns));
}

enum status step_log_read(const char *path, struct step_log *out, struct error *err)
{
    struct step_log log = {0};
    struct samples wakes = {0};
    struct told last = {.step = -1}, told;
    char *text = NULL;
    uint64_t len;
    unsigned number = 0;
    enum status st = file_read(path, STEPS_BYTES_MAX, &text, &len, err);

    for (char *at = text, *next; !st && at && *at; at = next) {
        size_t n = strcspn(at, "\n");
        next = at + n + (at[n] == '\n');
        st = read_told(path, ++number, at, n, &told, err);
        if (!st && last.step >= 0 && add(&log, &wakes, &last, &told))
            st = error_set(err, STATUS_NOMEM, "no memory for the steps of %s", path);
        last = told;
    }
    log.wake_ns = samples_percentile(&wakes, 50);
    samples_fini(&wakes);
    free(text);
    if (st)
        step_log_fini(&log);
    else
        *out = log;
    return st;
}

void step_log_fini(struct step_log *log)
{
    free(log->samples);
    *log = (struct step_log){0};
}

enum status front_from_log(const char *path, double *request_ns, double *reply_ns,
                           struct error *err)
{
    static const char *const before[] = {"accept_ms", "parse_ms", "template_ms", "tokenize_ms",
                                         "submit_ms"};
    struct samples fronts = {0}, replies = {0};
    struct log_line line;
    char *text = NULL;
    size_t cap = 0;
    bool memory = true;
    FILE *log = fopen(path, "re");

    if (!log) return error_set(err, STATUS_NOT_FOUND, "there is no log %s", path);
    while (memory && getline(&text, &cap, log) >= 0) {
        double front_ms = 0;
        if (!log_line_read(text, &line)) continue;
        for (size_t i = 0; i < sizeof before / sizeof *before; i++)
            front_ms += log_line_number(&line, before[i], 0);
        memory = !samples_add(&fronts, front_ms) &&
                 !samples_add(&replies, log_line_number(&line, "deliver_ms", 0));
        log_line_fini(&line);
    }
    *request_ns = samples_percentile(&fronts, 50) * 1e6;
    *reply_ns = samples_percentile(&replies, 50) * 1e6;
    bool any = fronts.count > 0;
    samples_fini(&fronts);
    samples_fini(&replies);
    free(text);
    fclose(log);
    if (!memory) return error_set(err, STATUS_NOMEM, "no memory for the lines of %s", path);
    if (!any)
        return error_set(err, STATUS_NOT_FOUND,
                         "%s has no \"request done\" line; inferd writes them at --log-level info",
                         path);
    return STATUS_OK;
}
