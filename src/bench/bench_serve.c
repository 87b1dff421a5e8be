#include "bench/bench_serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/shown.h"
#include "bench/bench_args.h"
#include "bench/json_page.h"
#include "bench/load_prompts.h"
#include "bench/load_report.h"

enum {
    PERCENTILES_MAX = 8,
    WARMUP_REQUESTS_MAX = 200000,
    WARMUP_CONCURRENCY = 8,
    NAME_BYTES = 256
};

struct serve {
    struct load_prompt_options prompts;
    struct load_target target;
    const char *dataset, *kind, *goodput, *percentile_text, *result_path;
    double warmup_s;
    uint32_t concurrency, repeats, prefix_len, prefixes;
    bool quiet_block, detailed, no_eos;
    double percentiles[PERCENTILES_MAX];
    uint32_t percentile_count;
    struct report_slo slo;
    char model[NAME_BYTES]; /* as the server names it, where none was given */
    struct load_result cold;
};

static const char about[] =
    "\nLoad on an OpenAI server; figures under the names of `vllm bench serve`. The first request "
    "(cold), a warm-up and the\n"
    "measured requests (warm) are told apart. The same seed sends the same requests.\n";

/* --- options --- */

static int parse(int argc, char **argv, struct serve *s)
{
    struct load_prompt_options *p = &s->prompts;
    const struct bench_arg args[] = {
        {"--url", ARG_TEXT, &s->target.url, 0, 0,
         "server, without the endpoint (a /v1 at its end may stay)"},
        {"--base-url", ARG_TEXT, &s->target.url, 0, 0, "the same"},
        {"--endpoint", ARG_TEXT, &s->target.endpoint, 0, 0,
         "/v1/completions or /v1/chat/completions"},
        {"--model", ARG_TEXT, &p->model, 0, 0, "name; default: the first of /v1/models"},
        {"--api-key", ARG_TEXT, &s->target.api_key, 0, 0, "bearer token"},
        {"--dataset-name", ARG_TEXT, &s->dataset, 0, 0,
         "random, prefix_repetition, multi_turn, trace"},
        {"--prompt-kind", ARG_TEXT, &s->kind, 0, 0,
         "ids (completions), text; default: what the endpoint takes"},
        {"--num-prompts", ARG_COUNT, &p->count, 0, 1e7, "requests; 0: 100, or all of a trace"},
        {"--input-len", ARG_COUNT, &p->input_tokens, 1, 1e7,
         "tokens of a prompt, but for its prefix"},
        {"--random-input-len", ARG_COUNT, &p->input_tokens, 1, 1e7, "the same"},
        {"--output-len", ARG_COUNT, &p->output_tokens, 1, 1e7, "tokens of an answer"},
        {"--random-output-len", ARG_COUNT, &p->output_tokens, 1, 1e7, "the same"},
        {"--random-range-ratio", ARG_REAL, &p->range_ratio, 0, 1,
         "lengths vary by this share, evenly"},
        {"--prefix-len", ARG_COUNT, &s->prefix_len, 0, 1e7, "tokens of a shared beginning"},
        {"--random-prefix-len", ARG_COUNT, &s->prefix_len, 0, 1e7, "the same"},
        {"--num-prefixes", ARG_COUNT, &p->prefixes, 1, 1e6,
         "prefix_repetition: different beginnings"},
        {"--turns", ARG_COUNT, &p->turns, 1, 256, "multi_turn: requests of a conversation"},
        {"--trace", ARG_TEXT, &p->trace_path, 0, 0, "file of arrivals (implies the dataset)"},
        {"--trace-speed", ARG_REAL, &p->speed, 1e-3, 1e6, "how much faster it is replayed"},
        {"--request-rate", ARG_REAL, &p->rate, 1e-6, INFINITY,
         "arrivals a second; inf: all at once"},
        {"--burstiness", ARG_REAL, &p->burstiness, 1e-3, 1e6,
         "gamma's shape; 1: Poisson, below: bursts"},
        {"--max-concurrency", ARG_COUNT, &s->concurrency, 0, 1e6, "in flight at most; 0: no bound"},
        {"--warmup", ARG_REAL, &s->warmup_s, 0, 3600, "seconds before measuring"},
        {"--repeats", ARG_COUNT, &s->repeats, 0, 1e6,
         "single requests one after the other: latency"},
        {"--goodput", ARG_TEXT, &s->goodput, 0, 0,
         "objectives in ms: \"ttft:200 tpot:50 e2el:3000\""},
        {"--metric-percentiles", ARG_TEXT, &s->percentile_text, 0, 0, "like 50,90,99"},
        {"--temperature", ARG_REAL, &p->temperature, 0, 2, "0: greedy"},
        {"--respect-eos", ARG_FLAG, &s->no_eos, 0, 0, "answers may end before --output-len"},
        {"--token-low", ARG_COUNT, &p->token_low, 0, 1e9, "smallest id of random prompts"},
        {"--token-high", ARG_COUNT, &p->token_high, 0, 1e9, "largest"},
        {"--timeout", ARG_COUNT, &s->target.timeout_s, 0, 1e6, "seconds of a request; 0: none"},
        {"--result-filename", ARG_TEXT, &s->result_path, 0, 0,
         "JSON goes there; - : standard output, no block"},
        {"--save-detailed", ARG_FLAG, &s->detailed, 0, 0, "JSON has every request's figures"},
    };
    double seed = 0;
    struct bench_arg all[sizeof args / sizeof *args + 1];
    int st;

    memcpy(all, args, sizeof args);
    all[sizeof args / sizeof *args] =
        (struct bench_arg){"--seed", ARG_REAL, &seed, 0, 1e15, "of lengths, ids, gaps"};
    st = bench_args_parse("bench serve", about, all, sizeof all / sizeof *all, argc, argv);
    p->seed = (uint64_t)seed;
    return st;
}

static bool parse_percentiles(const char *text, struct serve *s)
{
    while (*text) {
        char *end;
        double value = strtod(text, &end);
        if (end == text || !(value >= 0 && value <= 100) || s->percentile_count == PERCENTILES_MAX)
            return false;
        s->percentiles[s->percentile_count++] = value;
        text = end + strspn(end, ", ");
    }
    return s->percentile_count > 0;
}

static enum status settle(struct serve *s, struct error *err)
{
    static const char *const names[] = {"random", "prefix_repetition", "multi_turn", "trace"};
    struct load_prompt_options *p = &s->prompts;
    int found = -1;
    enum status st;

    if (p->trace_path) s->dataset = "trace";
    for (int i = 0; i < 4; i++)
        if (strcmp(s->dataset, names[i]) == 0) found = i;
    if (found < 0)
        return error_set(
            err, STATUS_INVALID,
            "--dataset-name is %s; it must be random, prefix_repetition, multi_turn or trace",
            s->dataset);
    if (s->target.endpoint[0] != '/')
        return error_set(err, STATUS_INVALID,
                         "--endpoint is %s; it must begin with /, as in /v1/chat/completions",
                         s->target.endpoint);
    p->dataset = (enum load_dataset)found;
    p->chat = strstr(s->target.endpoint, "chat") != NULL;
    p->words = s->kind ? strcmp(s->kind, "text") == 0 : p->chat || p->dataset == LOAD_MULTI_TURN;
    if (s->kind && !p->words && strcmp(s->kind, "ids") != 0)
        return error_set(err, STATUS_INVALID, "--prompt-kind is %s; it must be ids or text",
                         s->kind);
    if (!p->count && p->dataset != LOAD_TRACE) p->count = 100;
    p->prefix_tokens = s->prefix_len;
    p->ignore_eos = !s->no_eos;
    if (p->dataset == LOAD_PREFIX_REPETITION && !p->prefix_tokens) p->prefix_tokens = 256;
    if (s->repeats) {
        p->count = s->repeats;
        p->rate = INFINITY;
        s->concurrency = 1;
        if (p->dataset == LOAD_MULTI_TURN) p->turns = 1;
    }
    st = report_slo_parse(s->goodput ? s->goodput : "", &s->slo, err);
    if (!st && !parse_percentiles(s->percentile_text, s))
        st = error_set(err, STATUS_INVALID,
                       "--metric-percentiles is %s; it must be up to %d numbers of 0 to 100",
                       s->percentile_text, PERCENTILES_MAX);
    if (!st && s->result_path) st = json_page_check(s->result_path, err);
    return st;
}

/* The first name that the server tells. */
static enum status ask_model(struct serve *s, struct error *err)
{
    struct buf body;
    json_t *page;
    const char *name;
    enum status st;

    buf_init(&body, 1 << 20);
    st = load_get(&s->target, "/v1/models", &body, err);
    page = st ? NULL : json_loadb(body.ptr ? body.ptr : "", body.len, 0, NULL);
    name =
        json_string_value(json_object_get(json_array_get(json_object_get(page, "data"), 0), "id"));
    if (!st && !name)
        st = error_set(err, STATUS_IO, "%s/v1/models names no model; --model would tell it",
                       s->target.url);
    if (name && !s->prompts.model) {
        snprintf(s->model, sizeof s->model, "%s", name);
        s->prompts.model = s->model;
    }
    json_decref(page);
    buf_fini(&body);
    return st;
}

/* --- runs --- */

static enum status run(const struct serve *s, const struct load_prompt_options *o,
                       uint32_t concurrency, double stop_after_s, struct load_result **results,
                       uint32_t *count, double *seconds, struct error *err)
{
    struct load_prompts prompts;
    struct load_options options = {.target = s->target,
                                   .max_concurrency = concurrency,
                                   .stop_after_s = stop_after_s,
                                   .keep_text = o->dataset == LOAD_MULTI_TURN,
                                   .make_body = load_prompts_body,
                                   .ctx = &prompts};
    enum status st = load_prompts_make(o, &prompts, err);

    if (st) return st;
    *count = prompts.trace.count;
    *results = calloc(*count, sizeof **results);
    st = *results ? load_run(&options, prompts.jobs, *count, *results, seconds, err)
                  : error_set(err, STATUS_NOMEM, "no memory for %u results", *count);
    load_prompts_fini(&prompts);
    return st;
}

static void free_results(struct load_result *results, uint32_t count)
{
    if (results) load_results_fini(results, count);
    free(results);
}

/* As it was asked: the next ones would be too, a warm-up only some thousand times a second. */
static bool is_refused(const struct load_result *r)
{
    return r->http_status >= 400 && r->http_status < 500 && r->http_status != 429;
}

/* The first request of all, alone; then --warmup seconds of load like the measured one, of other prompts. */
static enum status warm_up(struct serve *s, struct error *err)
{
    struct load_prompt_options o = s->prompts;
    struct load_result *results = NULL;
    uint32_t count = 0;
    double seconds;
    enum status st;

    o.seed = hash_mix64(o.seed + 77);
    o.rate = INFINITY;
    o.count = o.dataset == LOAD_MULTI_TURN ? o.turns : 1;
    st = run(s, &o, 1, 0, &results, &count, &seconds, err);
    if (!st) {
        s->cold = results[0];
        s->cold.gaps_s = NULL;
        s->cold.text = NULL;
    }
    free_results(results, count);
    if (st || !s->warmup_s || is_refused(&s->cold)) return st;
    o.seed++;
    o.speed = INFINITY;
    o.count = o.dataset == LOAD_TRACE ? 0 : WARMUP_REQUESTS_MAX / o.turns * o.turns;
    results = NULL;
    st = run(s, &o,
             s->repeats       ? 1
             : s->concurrency ? s->concurrency
                              : WARMUP_CONCURRENCY,
             s->warmup_s, &results, &count, &seconds, err);
    free_results(results, count);
    return st;
}

static void print_cold(const struct serve *s, FILE *to)
{
    char text[512];

    fprintf(to, "cold start: first request ");
    if (s->cold.ok)
        fprintf(to, "TTFT %.2f ms, E2EL %.2f ms (%u tokens in, %u out)\n", s->cold.ttft_s * 1e3,
                s->cold.e2e_s * 1e3, s->cold.prompt_tokens, s->cold.output_tokens);
    else
        fprintf(to, "failed: %s\n", shown(slice_str(s->cold.error), text, sizeof text));
    fprintf(to, "warm state, after %g s of warm-up:\n", s->warmup_s);
}

static enum status save(const struct serve *s, const struct load_report *report,
                        const struct load_result *results, uint32_t count, struct error *err)
{
    json_t *page = report_json(report, s->percentiles, s->percentile_count,
                               s->detailed ? results : NULL, count);
    time_t now = time(NULL);
    char date[32];
    struct tm tm;

    strftime(date, sizeof date, "%Y%m%d-%H%M%S", gmtime_r(&now, &tm));
    if (page) {
        json_object_set_new(page, "date", json_string(date));
        json_object_set_new(page, "backend", json_string("openai"));
        json_object_set_new(page, "endpoint_type",
                            json_string(s->prompts.chat ? "openai-chat" : "openai"));
        json_object_set_new(page, "model_id", json_string(s->prompts.model));
        json_object_set_new(page, "num_prompts", json_integer(count));
        json_object_set_new(page, "seed", json_integer((json_int_t)s->prompts.seed));
        json_object_set_new(page, "warmup_s", json_real(s->warmup_s));
        json_object_set_new(page, "cold_ttft_ms",
                            s->cold.ok ? json_real(s->cold.ttft_s * 1e3) : json_null());
        json_object_set_new(page, "cold_e2el_ms",
                            s->cold.ok ? json_real(s->cold.e2e_s * 1e3) : json_null());
    }
    enum status st = json_page_write(page, s->result_path, 2, 9, err);

    json_decref(page);
    return st;
}

static enum status measure(struct serve *s, bool *any, struct error *err)
{
    struct load_result *results = NULL;
    struct load_report report = {0};
    uint32_t count = 0;
    double seconds = 0;
    enum status st = run(s, &s->prompts, s->concurrency, 0, &results, &count, &seconds, err);

    if (!st && report_make(results, count, seconds, &s->slo, &report))
        st = error_set(err, STATUS_NOMEM, "no memory for the report");
    if (!st) {
        report.rate = s->prompts.rate;
        report.burstiness = s->prompts.burstiness;
        report.concurrency = s->concurrency;
        *any = report.completed > 0;
        if (!s->result_path || strcmp(s->result_path, "-") != 0) {
            print_cold(s, stdout);
            if (s->repeats)
                report_print_latency(&report, stdout);
            else
                report_print(&report, s->percentiles, s->percentile_count, stdout);
        }
        if (s->result_path) st = save(s, &report, results, count, err);
    }
    report_fini(&report);
    free_results(results, count);
    return st;
}

int bench_serve_main(int argc, char **argv)
{
    struct serve s = {
        .prompts = {.input_tokens = 512,
                    .output_tokens = 128,
                    .prefixes = 10,
                    .turns = 4,
                    .rate = INFINITY,
                    .burstiness = 1,
                    .speed = 1,
                    .token_low = 1000,
                    .token_high = 9999},
        .target = {.url = "http://127.0.0.1:8000", .endpoint = "/v1/completions"},
        .dataset = "random",
        .percentile_text = "99",
        .warmup_s = 10,
    };
    struct error err = {0};
    bool any = false;
    int wrong = parse(argc, argv, &s);
    enum status st;

    if (wrong >= 0) return wrong;
    st = settle(&s, &err);
    if (st) {
        shown_error("bench serve", &err);
        return 2;
    }
    st = ask_model(&s, &err);
    if (!st) st = warm_up(&s, &err);
    if (!st) st = measure(&s, &any, &err);
    if (st) shown_error("bench serve", &err);
    return st || !any;
}

/* --- recording --- */

int bench_record_main(int argc, char **argv)
{
    const char *log_path = "-", *out_path = "-";
    const struct bench_arg args[] = {
        {"--log", ARG_TEXT, &log_path, 0, 0, "the daemon's log; - : standard input"},
        {"--out", ARG_TEXT, &out_path, 0, 0, "the trace; - : standard output"},
    };
    struct trace trace = {0};
    struct error err = {0};
    FILE *log, *out = stdout;
    int wrong = bench_args_parse(
        "bench record",
        "\nA live server's arrivals as a trace, from the \"request done\" lines of inferd's log:\n"
        "  inferd serve MODEL 2> >(tee server.log >&2);  inferd bench record --log server.log\n",
        args, 2, argc, argv);
    enum status st;

    if (wrong >= 0) return wrong;
    log = strcmp(log_path, "-") ? fopen(log_path, "re") : stdin;
    st = log ? trace_from_log(log, &trace, &err)
             : error_set(&err, STATUS_NOT_FOUND, "there is no log %s", log_path);
    if (!st && strcmp(out_path, "-") && !(out = fopen(out_path, "we")))
        st = error_set(&err, STATUS_IO, "%s could not be made", out_path);
    if (!st) st = trace_write(&trace, out, &err);
    if (st) shown_error("bench record", &err);
    if (log && log != stdin) fclose(log);
    if (out && out != stdout && fclose(out) && !st) st = STATUS_IO; /* flushed and told of before */
    trace_fini(&trace);
    return st != STATUS_OK;
}
