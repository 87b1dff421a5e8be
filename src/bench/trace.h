/* trace.h - arrivals: when a request came, how long its prompt and answer were, with whom it shares its beginning.
 *
 * A trace is a JSONL file, an object a line, in order of arrival:
 *   {"arrival_s": 0.132, "prompt_tokens": 600, "max_tokens": 64, "prefix_id": 3, "prefix_tokens": 256, "key": 2, "priority": 0}
 * The first three are required; prefix_id 0 (or none) shares with nobody, else the first prefix_tokens tokens of the prompt are those of
 * every request with that id. Texts are not kept: whoever replays makes tokens from the numbers (prompt_tokens_make), the same each
 * time. Thread: one. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "bench/random.h"

struct trace_item {
    double arrival_s; /* since the trace began */
    uint32_t prompt_tokens, max_tokens;
    uint32_t prefix_id, prefix_tokens; /* prefix_tokens <= prompt_tokens; 0, 0: its own */
    uint32_t key;                      /* of the client (an API key's number) */
    int32_t priority;
};
struct trace {
    struct trace_item *items; /* owned, by arrival_s */
    uint32_t count, cap;
};

void trace_fini(struct trace *trace); /* takes an empty one */
enum status trace_add(struct trace *trace, const struct trace_item *item);

/* Errors: as file_read, and STATUS_CORRUPT with file, line, field and what would be right; arrivals that go backwards are sorted. */
enum status trace_read(const char *path, struct trace *out, struct error *err);
/* STATUS_IO when a write failed. */
enum status trace_write(const struct trace *trace, FILE *to, struct error *err);

/* The arrivals that a daemon's log tells ("request done" lines, which carry time, duration and token counts; timestamps must be on).
 * Other lines are passed over. The first arrival is time 0. max_tokens is what the answer had. A request of several choices becomes as many
 * arrivals that share their prompt. What was cached is told as a beginning shared by all that had something cached (prefix 1): with whom
 * they shared it the log does not say. Errors: STATUS_NOT_FOUND (no such
 * line), STATUS_NOMEM. */
enum status trace_from_log(FILE *log, struct trace *out, struct error *err);

/* Gives `count` arrivals gaps of a gamma distribution: mean 1 / rate, shape `burstiness` (1: Poisson, below: bursts, above: even). An
 * infinite rate puts all at 0. */
void trace_spread(struct trace_item *items, uint32_t count, double rate, double burstiness,
                  struct random_state *random);

/* Token ids in low..high for an item: the prefix from (seed, prefix_id), the rest from (seed, index). out: [prompt_tokens]. */
void prompt_tokens_make(const struct trace_item *item, uint64_t seed, uint32_t index, int32_t low,
                        int32_t high, int32_t *out);
