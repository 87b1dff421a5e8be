/* simulate_main.c - `inferd simulate`: options, one run or a frontier of loads, page and JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/shown.h"
#include "bench/bench_args.h"
#include "bench/json_page.h"
#include "bench/simulate.h"
#include "config/config.h"

enum { LOADS_MAX = 32, PERCENTILES = 4 };
static const double percentiles[PERCENTILES] = {50, 90, 95, 99};
static const char *const names[REPORT_METRICS] = {
    [REPORT_TTFT] = "ttft", [REPORT_TPOT] = "tpot", [REPORT_ITL] = "itl", [REPORT_E2EL] = "e2el"};

struct simulation {
    struct sim_options o;
    struct trace trace;
    const char *trace_path, *device_path, *loads_text, *goodput, *router, *json_path, *window;
    uint32_t kv_tokens, requests, queue_tokens;
    uint32_t batched_tokens;                         /* 0: not given */
    uint32_t batched_tokens_cpu, batched_tokens_gpu; /* serve's own */
    double loads[LOADS_MAX];
    uint32_t load_count;
    bool detailed;
};

static const char about[] = "\nReplays arrivals through the daemon's own scheduler and block pool "
                            "on a modelled device, in virtual time.\n"
                            "  inferd simulate --trace bench/traces/mixed.jsonl --device "
                            "bench/devices/h200-llama3-8b.json --loads 1,2,4,8\n"
                            "Times are those of a client: from arrival to the token seen.\n";

static int parse(int argc, char **argv, struct simulation *s)
{
    struct sim_options *o = &s->o;
    const struct bench_arg args[] = {
        {"--trace", ARG_TEXT, &s->trace_path, 0, 0, "arrivals (docs: src/bench/trace.h)"},
        {"--device", ARG_TEXT, &s->device_path, 0, 0,
         "the modelled device (src/bench/device_model.h)"},
        {"--replicas", ARG_COUNT, &o->replicas, 1, 1024, "engines, each with such a device"},
        {"--router", ARG_TEXT, &s->router, 0, 0, "least (tokens to compute) or round-robin"},
        {"--speed", ARG_REAL, &o->speed, 1e-6, 1e6, "arrivals come so much faster"},
        {"--loads", ARG_TEXT, &s->loads_text, 0, 0, "several speeds, like 0.5,1,2: the frontier"},
        {"--requests", ARG_COUNT, &s->requests, 0, 1e8,
         "so many, repeating the trace; 0: as it is"},
        {"--kv-tokens", ARG_COUNT, &s->kv_tokens, 0, 2147483647,
         "of the pool; 0: as the device says"},
        {"--max-num-seqs", ARG_COUNT, &o->max_num_seqs, 1, 4096, "as serve's option"},
        {"--max-num-batched-tokens", ARG_COUNT, &s->batched_tokens, 0, 65536,
         "as serve's option; 0: as serve has it on such a device"},
        {"--max-queue-seqs", ARG_COUNT, &o->queue_seqs_max, 1, 1e6, "as serve's option"},
        {"--max-queue-tokens", ARG_COUNT, &s->queue_tokens, 1, 1e9, "as serve's option"},
        {"--max-batch-wait-ms", ARG_REAL, &o->max_batch_wait_ms, 0, 1000, "as serve's option"},
        {"--batch-window", ARG_TEXT, &s->window, 0, 0,
         "dynamic, or fixed:MS: hold everybody back so long, to compare with"},
        {"--max-itl-ms", ARG_REAL, &o->max_itl_ms, 0, 60000, "as serve's option"},
        {"--max-ttft-ms", ARG_REAL, &o->max_ttft_ms, 0, 1e6, "as serve's option"},
        {"--class-age-ms", ARG_REAL, &o->class_age_ms, 0, 60000, "as serve's option"},
        {"--target-throughput", ARG_REAL, &o->target_throughput, 0, 1e12, "as serve's option"},
        {"--no-prefix-sharing", ARG_FLAG, &o->no_prefix_sharing, 0, 0,
         "every prompt is computed in full"},
        {"--goodput", ARG_TEXT, &s->goodput, 0, 0,
         "objectives in ms: \"ttft:200 tpot:50 e2el:3000\""},
        {"--save-detailed", ARG_FLAG, &s->detailed, 0, 0, "JSON has every request's figures"},
        {"--json", ARG_TEXT, &s->json_path, 0, 0,
         "file for the figures; - : standard output, no page"},
    };

    return bench_args_parse("simulate", about, args, sizeof args / sizeof *args, argc, argv);
}

static enum status parse_loads(struct simulation *s, struct error *err)
{
    for (const char *at = s->loads_text ? s->loads_text : ""; *at;) {
        char *end;
        double load = strtod(at, &end);
        if (end == at || !(load > 0 && load <= 1e6) || (*end && *end != ',') ||
            s->load_count == LOADS_MAX)
            return error_set(err, STATUS_INVALID,
                             "--loads is %s; it must be up to %d positive numbers, like 0.5,1,2",
                             s->loads_text, LOADS_MAX);
        s->loads[s->load_count++] = load;
        at = end + (*end == ',');
    }
    return STATUS_OK;
}

/* The trace again and again, each time as long after the last arrival as its mean gap. */
static enum status repeat_trace(struct trace *t, uint32_t requests)
{
    uint32_t period = t->count;
    double length = t->items[period - 1].arrival_s * (1 + 1.0 / period);
    enum status st = STATUS_OK;

    for (uint32_t i = t->count; !st && i < requests; i++) {
        struct trace_item item = t->items[i % period];
        item.arrival_s += length * (i / period);
        st = trace_add(t, &item);
    }
    if (requests && requests < t->count) t->count = requests;
    return st;
}

static enum status parse_window(struct simulation *s, struct error *err)
{
    char *end;

    if (strcmp(s->window, "dynamic") == 0) return STATUS_OK;
    if (strncmp(s->window, "fixed:", 6) == 0) {
        s->o.max_batch_wait_ms = strtod(s->window + 6, &end);
        s->o.fixed_window = true;
        if (end > s->window + 6 && !*end && s->o.max_batch_wait_ms >= 0 &&
            s->o.max_batch_wait_ms <= 1000)
            return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID,
                     "--batch-window is %s; it must be dynamic or fixed:MS, 0 to 1000", s->window);
}

static enum status settle(struct simulation *s, struct error *err)
{
    enum status st = STATUS_OK;

    if (!s->trace_path || !s->device_path)
        return error_set(err, STATUS_INVALID, "--trace FILE and --device FILE are needed (--help)");
    if (strcmp(s->router, "least") != 0 && strcmp(s->router, "round-robin") != 0)
        return error_set(err, STATUS_INVALID, "--router is %s; it must be least or round-robin",
                         s->router);
    s->o.router = *s->router == 'l' ? ROUTE_LEAST : ROUTE_ROUND_ROBIN;
    s->o.queue_tokens_max = s->queue_tokens;
    st = parse_window(s, err);
    if (!st) st = parse_loads(s, err);
    if (!st) st = report_slo_parse(s->goodput ? s->goodput : "", &s->o.slo, err);
    return st;
}

static enum status read_files(struct simulation *s, struct error *err)
{
    enum status st = device_model_read(s->device_path, &s->o.device, err);

    if (!st) st = trace_read(s->trace_path, &s->trace, err);
    if (!st && repeat_trace(&s->trace, s->requests))
        st = error_set(err, STATUS_NOMEM, "no memory for the trace");
    if (!st && s->kv_tokens) s->o.device.kv_tokens = s->kv_tokens;
    s->o.calibrates = s->o.device.gpu;
    s->o.max_num_batched_tokens = s->batched_tokens ? s->batched_tokens
                                  : s->o.device.gpu ? s->batched_tokens_gpu
                                                    : s->batched_tokens_cpu;
    return st;
}

/* --- a run's figures --------------------------------------------------------------------------------------------- */

static double percentile(const struct sim_result *r, int m, double percent)
{
    return m == REPORT_ITL ? log_histogram_percentile(r->itl_ms, percent)
                           : samples_percentile(&r->ms[m], percent);
}

static double mean(const struct sim_result *r, int m)
{
    if (m != REPORT_ITL) return samples_mean(&r->ms[m]);
    return r->itl_ms->count ? r->itl_ms->sum / (double)r->itl_ms->count : 0;
}

static double rate(const struct sim_result *r, double n)
{
    return r->seconds > 0 ? n / r->seconds : 0;
}

static void print_run(const struct simulation *s, const struct sim_result *r)
{
    char name[256];

    printf("%s, %u replica%s, %u request%s at %g times the trace's pace\n",
           shown(slice_str(s->o.device.name), name, sizeof name), s->o.replicas,
           plural(s->o.replicas), s->trace.count, plural(s->trace.count), s->o.speed);
    printf("%-44s %.2f\n", "Duration (virtual s):", r->seconds);
    printf("%-44s %u\n%-44s %u, %u\n%-44s %u\n", "Successful requests:", r->completed,
           "Refused requests (429): full, late:", r->refused, r->refused_late,
           "Too large (400):", r->too_large);
    printf("%-44s %.2f\n%-44s %.2f\n", "Request throughput (req/s):", rate(r, r->completed),
           "Request goodput (req/s):", rate(r, r->good));
    printf("%-44s %.2f\n", "Output token throughput (tok/s):", rate(r, (double)r->output_tokens));
    printf("%-44s %.2f\n", "Total token throughput (tok/s):",
           rate(r, (double)(r->input_tokens + r->output_tokens)));
    printf("%-44s %.3f\n", "Cached share of prompt tokens:",
           r->input_tokens ? (double)r->cached_tokens / (double)r->input_tokens : 0.0);
    printf("%-44s %llu (%llu tokens again)\n", "Preemptions:", (unsigned long long)r->preemptions,
           (unsigned long long)r->recomputed_tokens);
    printf("%-44s %.3f, %.4f\n", "Device busy; KV slots wasted:", r->busy, r->waste);
    printf("%-8s %10s %10s %10s %10s %10s  (ms)\n", "", "mean", "P50", "P90", "P95", "P99");
    for (int m = 0; m < REPORT_METRICS; m++) {
        printf("%-8s %10.2f", names[m], mean(r, m));
        for (int i = 0; i < PERCENTILES; i++)
            printf(" %10.2f", percentile(r, m, percentiles[i]));
        putchar('\n');
    }
    printf("%llu steps, %llu sequence-steps simulated in %.4f CPU s: %.2f M a second; around it "
           "%.4f s\n\n",
           (unsigned long long)r->steps, (unsigned long long)r->sequence_steps,
           (double)r->cpu_ns * 1e-9,
           (double)r->sequence_steps * 1e3 / (double)(r->cpu_ns ? r->cpu_ns : 1),
           (double)r->around_ns * 1e-9);
}

static json_t *run_json(const struct simulation *s, const struct sim_result *r)
{
    json_t *page =
        json_pack("{s:f, s:f, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "speed", s->o.speed,
                  "duration", r->seconds, "completed", (int)r->completed, "refused",
                  (int)(r->refused + r->refused_late), "too_large", (int)r->too_large, "good",
                  (int)r->good, "request_throughput", rate(r, r->completed), "request_goodput",
                  rate(r, r->good), "output_throughput", rate(r, (double)r->output_tokens),
                  "total_token_throughput", rate(r, (double)(r->input_tokens + r->output_tokens)));
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"total_input_tokens", r->input_tokens},
                  {"total_cached_tokens", r->cached_tokens},
                  {"refused_late", r->refused_late},
                  {"total_output_tokens", r->output_tokens},
                  {"steps", r->steps},
                  {"sequence_steps", r->sequence_steps},
                  {"preemptions", r->preemptions},
                  {"recomputed_tokens", r->recomputed_tokens},
                  {"prefix_evictions", r->prefix_evictions}};
    char key[32];

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(page, counts[i].key, json_integer((json_int_t)counts[i].value));
    json_object_set_new(
        page, "simulated_sequence_steps_per_s",
        json_real((double)r->sequence_steps * 1e9 / (double)(r->cpu_ns ? r->cpu_ns : 1)));
    json_object_set_new(page, "simulated_in_s", json_real((double)r->cpu_ns * 1e-9));
    json_object_set_new(page, "made_and_ended_in_s", json_real((double)r->around_ns * 1e-9));
    json_object_set_new(page, "device_busy", json_real(r->busy));
    json_object_set_new(page, "kv_waste", json_real(r->waste));
    for (int m = 0; m < REPORT_METRICS; m++) {
        snprintf(key, sizeof key, "mean_%s_ms", names[m]);
        json_object_set_new(page, key, json_real(mean(r, m)));
        for (int i = 0; i < PERCENTILES; i++) {
            snprintf(key, sizeof key, "p%g_%s_ms", percentiles[i], names[m]);
            json_object_set_new(page, key, json_real(percentile(r, m, percentiles[i])));
        }
    }
    return page;
}

/* Of clients that are told apart, where there are several. */
static json_t *keys_json(const struct sim_result *r)
{
    json_t *keys = json_object();
    char name[16];

    for (int k = 0; k < SIM_KEYS; k++) {
        const struct samples *ttft = &r->key_ttft_ms[k];
        if (!ttft->count) continue;
        snprintf(name, sizeof name, "%d", k);
        json_object_set_new(keys, name,
                            json_pack("{s:i, s:f, s:f}", "completed", (int)ttft->count,
                                      "p50_ttft_ms", samples_percentile(ttft, 50), "p99_ttft_ms",
                                      samples_percentile(ttft, 99)));
    }
    return keys;
}

/* In the trace's order; null: refused, or too large. */
static json_t *requests_json(const struct simulation *s, const struct sim_result *r)
{
    json_t *arrivals = json_array(), *ttfts = json_array(), *e2els = json_array();

    for (uint32_t i = 0; i < s->trace.count; i++) {
        const struct sim_request *q = &r->requests[i];
        bool done = q->fate == SIM_DONE;
        json_array_append_new(arrivals, json_real(s->trace.items[i].arrival_s / s->o.speed));
        json_array_append_new(ttfts, done ? json_real(q->ttft_ms) : json_null());
        json_array_append_new(e2els, done ? json_real(q->e2el_ms) : json_null());
    }
    return json_pack("{s:o, s:o, s:o}", "arrival_s", arrivals, "ttft_ms", ttfts, "e2el_ms", e2els);
}

/* --- the frontier ------------------------------------------------------------------------------------------------ */

struct point {
    double speed, throughput, latency_s; /* output tokens a second; P50 end to end */
    bool dominated;                      /* another gives more for less */
};

/* log T = log a + b log(1/L), least squares over the points that none dominates. r2: share explained. false: too few. */
static bool fit_frontier(const struct point *points, uint32_t count, double *a, double *b,
                         double *r2)
{
    double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0, syy = 0, spread;

    for (uint32_t i = 0; i < count; i++) {
        double x = -log(points[i].latency_s), y = log(points[i].throughput);
        if (points[i].dominated || !(points[i].throughput > 0 && points[i].latency_s > 0)) continue;
        n++, sx += x, sy += y, sxx += x * x, sxy += x * y, syy += y * y;
    }
    spread = n * sxx - sx * sx;
    if (n < 2 || spread < 1e-12) return false;
    *b = (n * sxy - sx * sy) / spread;
    *a = exp((sy - *b * sx) / n);
    *r2 = n * syy - sy * sy > 1e-12 ? *b * *b * spread / (n * syy - sy * sy) : 1;
    return true;
}

static void mark_dominated(struct point *points, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < count; k++)
            points[i].dominated |= k != i && points[k].throughput >= points[i].throughput &&
                                   points[k].latency_s < points[i].latency_s;
}

static json_t *show_frontier(struct point *points, uint32_t count, bool page)
{
    double a = 0, b = 0, r2 = 0;
    bool fits;

    mark_dominated(points, count);
    fits = fit_frontier(points, count, &a, &b, &r2);
    if (page) {
        printf("throughput-latency frontier\n%10s %16s %16s\n", "speed", "T (tok/s)",
               "L (P50 E2E, s)");
        for (uint32_t i = 0; i < count; i++)
            printf("%10g %16.2f %16.4f%s\n", points[i].speed, points[i].throughput,
                   points[i].latency_s, points[i].dominated ? "   dominated" : "");
        if (fits)
            printf("fit: T = %.4g * (1/L)^%.4f   (R^2 %.3f)\n", a, b, r2);
        else
            printf("fit: too few points that none dominates\n");
    }
    return fits ? json_pack("{s:f, s:f, s:f}", "alpha", a, "beta", b, "r2", r2) : json_null();
}

static enum status write_json(const struct simulation *s, json_t *runs, json_t *fit,
                              struct error *err)
{
    json_t *page =
        json_pack("{s:s, s:i, s:i, s:O, s:O}", "device", s->o.device.name, "replicas",
                  (int)s->o.replicas, "requests", (int)s->trace.count, "runs", runs, "fit", fit);
    enum status st = json_page_write(page, s->json_path, 2, 9, err);

    json_decref(page);
    return st;
}

static enum status run_loads(struct simulation *s, struct error *err)
{
    struct point points[LOADS_MAX + 1] = {0};
    uint32_t count = s->load_count ? s->load_count : 1;
    bool page = !s->json_path || strcmp(s->json_path, "-") != 0;
    json_t *runs = json_array(), *fit = NULL, *one;
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < count; i++) {
        struct sim_result r;
        if (s->load_count) s->o.speed = s->loads[i];
        st = simulate(&s->o, &s->trace, &r, err);
        if (!st) {
            if (page) print_run(s, &r);
            one = run_json(s, &r);
            json_object_set_new(one, "keys", keys_json(&r));
            if (s->detailed) json_object_set_new(one, "detail", requests_json(s, &r));
            json_array_append_new(runs, one);
            points[i] = (struct point){s->o.speed, rate(&r, (double)r.output_tokens),
                                       percentile(&r, REPORT_E2EL, 50) * 1e-3, false};
        }
        sim_result_fini(&r);
    }
    if (!st) fit = s->load_count ? show_frontier(points, count, page) : json_null();
    if (!st && s->json_path) st = write_json(s, runs, fit, err);
    json_decref(runs);
    json_decref(fit);
    return st;
}

/* Serve's own defaults, its INFERD_ variables included. */
static enum status set_defaults(struct simulation *s, struct error *err)
{
    char *nothing[] = {(char *)(uintptr_t) "simulate", NULL};
    struct config config;
    enum status st = config_parse(1, nothing, &config, err);

    if (st) return st;
    s->o.max_num_seqs = (uint32_t)config.max_num_seqs;
    s->batched_tokens_cpu = config_batched_tokens(&config, false);
    s->batched_tokens_gpu = config_batched_tokens(&config, true);
    s->o.queue_seqs_max = (uint32_t)config.max_queue_seqs;
    s->queue_tokens = (uint32_t)config.max_queue_tokens;
    s->o.max_batch_wait_ms = config.max_batch_wait_ms;
    s->o.max_itl_ms = config.max_itl_ms;
    s->o.max_ttft_ms = config.max_ttft_ms;
    s->o.class_age_ms = config.class_age_ms;
    s->o.target_throughput = (double)config.target_throughput;
    s->o.no_prefix_sharing = !config.enable_prefix_caching;
    config_fini(&config);
    return STATUS_OK;
}

int bench_simulate_main(int argc, char **argv)
{
    struct simulation s = {
        .o = {.replicas = 1, .speed = 1}, .router = "least", .window = "dynamic"};
    struct error err = {0};
    enum status st = set_defaults(&s, &err);
    int wrong = st ? -1 : parse(argc, argv, &s);

    if (wrong >= 0) return wrong;
    if (!st) st = settle(&s, &err);
    if (st) {
        shown_error("simulate", &err);
        return 2;
    }
    st = read_files(&s, &err);
    if (!st) st = run_loads(&s, &err);
    if (st) shown_error("simulate", &err);
    trace_fini(&s.trace);
    return st != STATUS_OK;
}
