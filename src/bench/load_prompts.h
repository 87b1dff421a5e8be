/* load_prompts.h - which requests a benchmark sends: lengths, shared beginnings, turns, arrivals; and their bodies as JSON.
 *
 * Everything follows from the options and the seed: two runs send the same bytes (but for the answers that later turns of a
 * conversation carry). Kinds:
 *   random              lengths around input_tokens and output_tokens (range_ratio), a common beginning of prefix_tokens
 *   prefix_repetition   prefixes in turn, each of prefix_tokens, and an own rest of input_tokens
 *   multi_turn          conversations of `turns` requests; each carries all that was said before
 *   trace               arrivals, lengths and shared beginnings of a file (trace.h)
 * Prompts are token ids (completions only) or words, about one token each; a conversation is always words. */
#pragma once

#include "bench/load_client.h"
#include "bench/trace.h"

enum load_dataset { LOAD_RANDOM, LOAD_PREFIX_REPETITION, LOAD_MULTI_TURN, LOAD_TRACE };

struct load_prompt_options {
    enum load_dataset dataset;
    uint32_t count; /* requests; a trace's own count where 0 or more than it has */
    uint32_t input_tokens, output_tokens, prefix_tokens, prefixes, turns;
    double range_ratio;      /* 0..1 */
    double rate, burstiness; /* of requests; of conversations where multi_turn */
    double speed;            /* of a trace: 2 replays it twice as fast */
    uint64_t seed;
    const char *trace_path;
    const char *model;
    bool chat, words, ignore_eos;
    uint32_t token_low, token_high; /* ids of random prompts */
    double temperature;
};

struct load_prompts {
    const struct load_prompt_options *options; /* borrowed */
    struct trace trace;                        /* an item per request */
    struct load_job *jobs;                     /* [trace.count], owned */
    int32_t *tokens;                           /* of the longest prompt, owned */
};

/* Errors: as trace_read, STATUS_INVALID (options that do not go together), STATUS_NOMEM. */
enum status load_prompts_make(const struct load_prompt_options *options, struct load_prompts *out,
                              struct error *err);
void load_prompts_fini(struct load_prompts *prompts);

/* load_options.make_body, with a struct load_prompts as ctx. */
bool load_prompts_body(void *ctx, uint32_t job, const struct load_result *results, struct buf *out);
