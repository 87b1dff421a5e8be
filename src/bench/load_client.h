/* load_client.h - many streamed requests against an OpenAI server, each token's arrival timed.
 *
 * One thread, libcurl's multi interface over epoll. A job starts when it is due, when the job it follows has ended, and when fewer than
 * max_concurrency are in flight; a job that waits only for the last of these is not yet timed (as in `vllm bench serve`, so that fixed
 * concurrency measures the server and not the line before it). Answers are server-sent events; times are taken as bytes arrive:
 *
 *     started --> first chunk with text: TTFT --> gap --> chunk --> gap --> ... last chunk with text: E2E latency
 *
 * Token counts come from the stream's `usage`; where a server sends none, chunks are counted. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

struct load_target {
    const char *url;      /* "http://127.0.0.1:8000", without the endpoint */
    const char *endpoint; /* "/v1/completions" or "/v1/chat/completions" */
    const char *api_key;  /* NULL: none */
    uint32_t timeout_s;   /* of a request; 0: none */
};

struct load_job {
    double due_s; /* since the run began; jobs that follow none stand in this order */
    int32_t
        after; /* the job whose end it waits for (a turn of the same conversation; at most one waits for each), or -1 */
};

struct load_result { /* seconds */
    bool ended, ok;
    long http_status; /* 0: no answer */
    double started_s; /* since the run began */
    double ttft_s, e2e_s;
    float *gaps_s; /* [gap_count], owned: between chunks with text */
    uint32_t gap_count, gap_cap;
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    char *text;      /* of the answer, owned; where keep_text, else NULL */
    char error[160]; /* where not ok */
};

struct load_options {
    struct load_target target;
    uint32_t max_concurrency; /* 0: no bound */
    double stop_after_s;      /* no job starts later; 0: all of them start */
    bool keep_text;
    /* Writes the request's body; results are those so far. false: no memory. */
    bool (*make_body)(void *ctx, uint32_t job, const struct load_result *results, struct buf *out);
    void *ctx;
};

/* Runs the jobs; results: [count], zeroed, ended by load_results_fini. *seconds: from the start of the first to the end of the last.
 * A request that fails is a result, not a fault. Errors: STATUS_NOMEM, STATUS_IO (epoll, libcurl). */
enum status load_run(const struct load_options *options, const struct load_job *jobs,
                     uint32_t count, struct load_result *results, double *seconds,
                     struct error *err);
void load_results_fini(struct load_result *results, uint32_t count);

/* GET of a path; the answer's body goes to `out`. Errors: STATUS_IO (no connection, or not 200), with the sentence. */
enum status load_get(const struct load_target *target, const char *path, struct buf *out,
                     struct error *err);
