#include "bench/load_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/shown.h"

static const struct {
    const char *key, *title, *name;
} metrics[REPORT_METRICS] = {
    [REPORT_TTFT] = {"ttft", "Time to First Token", "TTFT"},
    [REPORT_TPOT] = {"tpot", "Time per Output Token (excl. 1st token)", "TPOT"},
    [REPORT_ITL] = {"itl", "Inter-token Latency", "ITL"},
    [REPORT_E2EL] = {"e2el", "End-to-end Latency", "E2EL"},
};

/* --- making --- */

static bool meets(const struct report_slo *slo, double ttft, double tpot, double e2el)
{
    return (!slo->ms[REPORT_TTFT] || ttft <= slo->ms[REPORT_TTFT]) &&
           (!slo->ms[REPORT_TPOT] || tpot <= slo->ms[REPORT_TPOT]) &&
           (!slo->ms[REPORT_E2EL] || e2el <= slo->ms[REPORT_E2EL]);
}

static enum status add_result(struct load_report *out, const struct load_result *r,
                              const struct report_slo *slo)
{
    double ttft = r->ttft_s * 1e3, e2el = r->e2e_s * 1e3, tpot = 0;
    enum status st;

    out->completed++;
    out->input_tokens += r->prompt_tokens;
    out->cached_tokens += r->cached_tokens;
    out->output_tokens += r->output_tokens;
    st = samples_add(&out->ms[REPORT_TTFT], ttft);
    if (!st) st = samples_add(&out->ms[REPORT_E2EL], e2el);
    if (!st && r->output_tokens > 1) {
        tpot = (e2el - ttft) / (r->output_tokens - 1);
        st = samples_add(&out->ms[REPORT_TPOT], tpot);
    }
    for (uint32_t i = 0; !st && i < r->gap_count; i++)
        st = samples_add(&out->ms[REPORT_ITL], r->gaps_s[i] * 1e3);
    out->good += meets(slo, ttft, tpot, e2el);
    return st;
}

static void count_tokens(const struct load_result *r, double *per_second, uint32_t seconds)
{
    double at = r->started_s + r->ttft_s, chunks = r->gap_count + 1;

    for (uint32_t i = 0; i <= r->gap_count; i++) {
        if (at < seconds) per_second[(uint32_t)at] += r->output_tokens / chunks;
        if (i < r->gap_count) at += r->gaps_s[i];
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The most intervals that are open at one time. Sorts both lists. */
static uint32_t most_open(double *starts, double *ends, uint32_t count)
{
    uint32_t most = 0, ended = 0;

    qsort(starts, count, sizeof *starts, by_value);
    qsort(ends, count, sizeof *ends, by_value);
    for (uint32_t i = 0; i < count; i++) {
        while (ended < count && ends[ended] <= starts[i])
            ended++;
        if (i + 1 - ended > most) most = i + 1 - ended;
    }
    return most;
}

static enum status find_peaks(struct load_report *out, const struct load_result *results,
                              uint32_t count)
{
    uint32_t seconds = (uint32_t)out->seconds + 1, n = 0;
    double *tokens = calloc(seconds, sizeof *tokens);
    double *starts = calloc(count + 1, sizeof *starts), *ends = calloc(count + 1, sizeof *ends);
    enum status st = tokens && starts && ends ? STATUS_OK : STATUS_NOMEM;

    for (uint32_t i = 0; !st && i < count; i++) {
        const struct load_result *r = &results[i];
        if (!r->ok) continue;
        count_tokens(r, tokens, seconds);
        starts[n] = r->started_s;
        ends[n++] = r->started_s + r->e2e_s;
    }
    if (!st) out->peak_concurrent = most_open(starts, ends, n);
    for (uint32_t s = 0; !st && s < seconds; s++)
        if (tokens[s] > out->peak_output_tokens_s) out->peak_output_tokens_s = tokens[s];
    free(tokens);
    free(starts);
    free(ends);
    return st;
}

enum status report_make(const struct load_result *results, uint32_t count, double seconds,
                        const struct report_slo *slo, struct load_report *out)
{
    enum status st = STATUS_OK;

    *out = (struct load_report){.seconds = seconds, .rate = INFINITY, .burstiness = 1};
    for (int m = 0; m < REPORT_METRICS; m++)
        out->has_slo |= slo->ms[m] > 0;
    for (uint32_t i = 0; !st && i < count; i++) {
        const struct load_result *r = &results[i];
        if (r->ok) {
            st = add_result(out, r, slo);
        } else if (*r->error) { /* else it was never started */
            out->failed++;
            out->refused += r->http_status == 429 || r->http_status == 503;
            if (!out->first_error) out->first_error = r->error;
        }
    }
    return st ? st : find_peaks(out, results, count);
}

void report_fini(struct load_report *report)
{
    for (int m = 0; m < REPORT_METRICS; m++)
        samples_fini(&report->ms[m]);
}

enum status report_slo_parse(const char *text, struct report_slo *out, struct error *err)
{
    *out = (struct report_slo){0};
    while (*(text += strspn(text, " ,"))) {
        size_t len = strcspn(text, ": ,");
        char *end = NULL;
        bool found = false;

        for (int m = 0; text[len] == ':' && m < REPORT_METRICS; m++) {
            if (m == REPORT_ITL || strlen(metrics[m].key) != len ||
                strncmp(metrics[m].key, text, len) != 0)
                continue;
            out->ms[m] = strtod(text + len + 1, &end);
            found = out->ms[m] > 0 && end > text + len + 1 && strchr(" ,", *end);
        }
        if (!found)
            return error_set(
                err, STATUS_INVALID,
                "--goodput is \"%.60s\"; it must be like \"ttft:200 tpot:50 e2el:3000\" (ms)",
                text);
        text = end;
    }
    return STATUS_OK;
}

/* --- printing --- */

static void print_middle(FILE *to, const char *text, char fill)
{
    int left = (50 - (int)strlen(text)) / 2, right = 50 - (int)strlen(text) - left;

    for (int i = 0; i < left; i++)
        fputc(fill, to);
    fputs(text, to);
    for (int i = 0; i < right; i++)
        fputc(fill, to);
    fputc('\n', to);
}

static void print_count(FILE *to, const char *name, uint64_t value)
{
    fprintf(to, "%-40s %-10llu\n", name, (unsigned long long)value);
}

static void print_real(FILE *to, const char *name, double value)
{
    fprintf(to, "%-40s %-10.2f\n", name, value);
}

static double per_second(const struct load_report *r, double n)
{
    return r->seconds > 0 ? n / r->seconds : 0;
}

static void print_percentile(FILE *to, const struct load_report *r, int m, double percent)
{
    char name[64];

    snprintf(name, sizeof name, "P%g %s (ms):", percent, metrics[m].name);
    print_real(to, name, samples_percentile(&r->ms[m], percent));
}

static void print_named(FILE *to, const char *what, int m, double value)
{
    char name[64];

    snprintf(name, sizeof name, "%s %s (ms):", what, metrics[m].name);
    print_real(to, name, value);
}

static void print_throughput(const struct load_report *r, FILE *to)
{
    print_count(to, "Successful requests:", r->completed);
    print_count(to, "Failed requests:", r->failed);
    if (r->refused) print_count(to, "Refused requests (429, 503):", r->refused);
    if (r->concurrency) print_count(to, "Maximum request concurrency:", r->concurrency);
    if (!isinf(r->rate)) print_real(to, "Request rate configured (RPS):", r->rate);
    print_real(to, "Benchmark duration (s):", r->seconds);
    print_count(to, "Total input tokens:", r->input_tokens);
    if (r->cached_tokens) print_count(to, "Total cached input tokens:", r->cached_tokens);
    print_count(to, "Total generated tokens:", r->output_tokens);
    print_real(to, "Request throughput (req/s):", per_second(r, r->completed));
    if (r->has_slo) print_real(to, "Request goodput (req/s):", per_second(r, r->good));
    print_real(to, "Output token throughput (tok/s):", per_second(r, (double)r->output_tokens));
    print_real(to, "Peak output token throughput (tok/s):", r->peak_output_tokens_s);
    print_real(to, "Peak concurrent requests:", r->peak_concurrent);
    print_real(to, "Total token throughput (tok/s):",
               per_second(r, (double)(r->input_tokens + r->output_tokens)));
}

/* In the server's words. */
static void print_failure(const struct load_report *r, FILE *to)
{
    if (!r->first_error) return;
    fputs("first failure: ", to);
    shown_put(slice_str(r->first_error), false, to);
    fputc('\n', to);
}

void report_print(const struct load_report *r, const double *percentiles, uint32_t count, FILE *to)
{
    print_middle(to, " Serving Benchmark Result ", '=');
    print_throughput(r, to);
    for (int m = 0; m < REPORT_METRICS; m++) {
        print_middle(to, metrics[m].title, '-');
        print_named(to, "Mean", m, samples_mean(&r->ms[m]));
        print_named(to, "Median", m, samples_percentile(&r->ms[m], 50));
        for (uint32_t i = 0; i < count; i++)
            print_percentile(to, r, m, percentiles[i]);
    }
    print_middle(to, "", '=');
    print_failure(r, to);
}

void report_print_latency(const struct load_report *r, FILE *to)
{
    static const double percentiles[] = {50, 90, 99};

    print_middle(to, " Single Request Latency ", '=');
    print_count(to, "Repeats:", r->completed);
    print_count(to, "Failed requests:", r->failed);
    for (int m = 0; m < REPORT_METRICS; m++) {
        print_middle(to, metrics[m].title, '-');
        print_named(to, "Median", m, samples_percentile(&r->ms[m], 50));
        for (int i = 0; i < 3; i++)
            print_percentile(to, r, m, percentiles[i]);
        print_named(to, "Sigma", m, samples_std(&r->ms[m]));
    }
    print_middle(to, "", '=');
    print_failure(r, to);
}

/* --- JSON --- */

static void set_named(json_t *page, const char *what, int m, double value)
{
    char name[64];

    snprintf(name, sizeof name, "%s_%s_ms", what, metrics[m].key);
    json_object_set_new(page, name, json_real(value));
}

static void add_metric(json_t *page, const struct load_report *r, int m, const double *percentiles,
                       uint32_t count)
{
    char what[32];

    set_named(page, "mean", m, samples_mean(&r->ms[m]));
    set_named(page, "median", m, samples_percentile(&r->ms[m], 50));
    set_named(page, "std", m, samples_std(&r->ms[m]));
    for (uint32_t i = 0; i < count; i++) {
        snprintf(what, sizeof what, "p%g", percentiles[i]);
        set_named(page, what, m, samples_percentile(&r->ms[m], percentiles[i]));
    }
}

static json_t *gaps_json(const struct load_result *r)
{
    json_t *gaps = json_array();

    for (uint32_t i = 0; i < r->gap_count; i++)
        json_array_append_new(gaps, json_real(r->gaps_s[i]));
    return gaps;
}

static void add_details(json_t *page, const struct load_result *results, uint32_t count)
{
    json_t *input = json_array(), *output = json_array(), *ttfts = json_array(),
           *itls = json_array(), *starts = json_array(), *errors = json_array();

    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(input, json_integer(results[i].prompt_tokens));
        json_array_append_new(output, json_integer(results[i].output_tokens));
        json_array_append_new(ttfts, json_real(results[i].ttft_s));
        json_array_append_new(itls, gaps_json(&results[i]));
        json_array_append_new(starts, json_real(results[i].started_s));
        json_array_append_new(errors, json_string(results[i].error));
    }
    json_object_set_new(page, "input_lens", input);
    json_object_set_new(page, "output_lens", output);
    json_object_set_new(page, "ttfts", ttfts);
    json_object_set_new(page, "itls", itls);
    json_object_set_new(page, "start_times", starts);
    json_object_set_new(page, "errors", errors);
}

json_t *report_json(const struct load_report *r, const double *percentiles, uint32_t count,
                    const struct load_result *detailed, uint32_t result_count)
{
    json_t *page = json_pack(
        "{s:f, s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:i}", "duration", r->seconds,
        "completed", (int)r->completed, "failed", (int)r->failed, "refused", (int)r->refused,
        "total_input_tokens", (json_int_t)r->input_tokens, "total_cached_tokens",
        (json_int_t)r->cached_tokens, "total_output_tokens", (json_int_t)r->output_tokens,
        "request_throughput", per_second(r, r->completed), "output_throughput",
        per_second(r, (double)r->output_tokens), "total_token_throughput",
        per_second(r, (double)(r->input_tokens + r->output_tokens)), "max_output_tokens_per_s",
        r->peak_output_tokens_s, "max_concurrent_requests", (int)r->peak_concurrent);

    if (!page) return NULL;
    json_object_set_new(page, "request_goodput",
                        r->has_slo ? json_real(per_second(r, r->good)) : json_null());
    json_object_set_new(page, "request_rate",
                        isinf(r->rate) ? json_string("inf") : json_real(r->rate));
    json_object_set_new(page, "burstiness", json_real(r->burstiness));
    json_object_set_new(page, "max_concurrency",
                        r->concurrency ? json_integer(r->concurrency) : json_null());
    for (int m = 0; m < REPORT_METRICS; m++)
        add_metric(page, r, m, percentiles, count);
    if (detailed) add_details(page, detailed, result_count);
    return page;
}
