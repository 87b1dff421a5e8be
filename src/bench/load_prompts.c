#include "bench/load_prompts.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Each is one token in the usual vocabularies when a space stands before it. */
static const char *const words[] = {
    "the",   "of",    "and",  "to",    "in",    "is",     "that", "for",   "it",    "as",
    "was",   "with",  "be",   "by",    "on",    "not",    "he",   "this",  "are",   "or",
    "his",   "from",  "at",   "which", "but",   "have",   "an",   "had",   "they",  "you",
    "were",  "their", "one",  "all",   "we",    "can",    "her",  "has",   "there", "been",
    "if",    "more",  "when", "will",  "would", "who",    "so",   "no",    "time",  "people",
    "water", "house", "year", "day",   "world", "school", "work", "first", "life",  "hand",
    "part",  "child", "eye",  "place"};
enum { WORDS = sizeof words / sizeof *words };

static uint32_t around(struct random_state *random, uint32_t tokens, double ratio)
{
    double low = floor(tokens * (1 - ratio)), high = ceil(tokens * (1 + ratio));

    return random_between(random, low < 1 ? 1 : (uint32_t)low, high < 1 ? 1 : (uint32_t)high);
}

static struct trace_item make_item(const struct load_prompt_options *o, uint32_t index,
                                   struct random_state *random)
{
    struct trace_item item = {.prompt_tokens = around(random, o->input_tokens, o->range_ratio),
                              .max_tokens = around(random, o->output_tokens, o->range_ratio)};

    if (o->dataset == LOAD_MULTI_TURN || !o->prefix_tokens) return item;
    item.prefix_id = o->dataset == LOAD_PREFIX_REPETITION ? 1 + index % o->prefixes : 1;
    item.prefix_tokens = o->prefix_tokens;
    item.prompt_tokens += o->prefix_tokens;
    return item;
}

static enum status make_items(const struct load_prompt_options *o, struct trace *out)
{
    struct random_state random = {hash_mix64(o->seed + 1)};
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < o->count; i++) {
        struct trace_item item = make_item(o, i, &random);
        st = trace_add(out, &item);
    }
    if (!st) trace_spread(out->items, out->count, o->rate, o->burstiness, &random);
    return st;
}

static void scale_trace(const struct load_prompt_options *o, struct trace *t)
{
    if (o->count && o->count < t->count) t->count = o->count;
    for (uint32_t i = 0; i < t->count; i++)
        t->items[i].arrival_s /= o->speed;
}

/* Turn k of conversation c is request k * conversations + c: all first turns stand before all second ones. */
static void link_turns(const struct load_prompt_options *o, struct load_prompts *p)
{
    uint32_t conversations = o->dataset == LOAD_MULTI_TURN ? o->count / o->turns : p->trace.count;

    for (uint32_t i = 0; i < p->trace.count; i++)
        p->jobs[i] =
            (struct load_job){.due_s = p->trace.items[i].arrival_s,
                              .after = i < conversations ? -1 : (int32_t)(i - conversations)};
}

enum status load_prompts_make(const struct load_prompt_options *o, struct load_prompts *out,
                              struct error *err)
{
    uint32_t longest = 1;
    enum status st = STATUS_OK;

    *out = (struct load_prompts){.options = o};
    if (o->chat && !o->words)
        return error_set(err, STATUS_INVALID,
                         "a chat has no token ids; --prompt-kind must be text there");
    if (o->dataset == LOAD_TRACE && !o->trace_path)
        return error_set(err, STATUS_INVALID, "--dataset-name trace needs --trace FILE");
    if (o->dataset == LOAD_MULTI_TURN && (o->count % o->turns || !o->words))
        return error_set(err, STATUS_INVALID,
                         "%u requests are no whole number of conversations of %u turns, or the "
                         "prompts are not text",
                         o->count, o->turns);
    if (o->token_low > o->token_high)
        return error_set(err, STATUS_INVALID,
                         "--token-low is %u; it must be at most --token-high %u", o->token_low,
                         o->token_high);
    if (o->dataset == LOAD_TRACE) {
        st = trace_read(o->trace_path, &out->trace, err);
        if (st) return st;
        scale_trace(o, &out->trace);
    } else {
        st = make_items(o, &out->trace);
    }
    for (uint32_t i = 0; i < out->trace.count; i++)
        if (out->trace.items[i].prompt_tokens > longest)
            longest = out->trace.items[i].prompt_tokens;
    out->jobs = calloc(out->trace.count + 1, sizeof *out->jobs);
    out->tokens = calloc(longest, sizeof *out->tokens);
    if (st || !out->jobs || !out->tokens) {
        load_prompts_fini(out);
        return error_set(err, STATUS_NOMEM, "no memory for %u requests", o->count);
    }
    link_turns(o, out);
    return STATUS_OK;
}

void load_prompts_fini(struct load_prompts *p)
{
    trace_fini(&p->trace);
    free(p->jobs);
    free(p->tokens);
    p->jobs = NULL;
    p->tokens = NULL;
}

static void make_tokens(struct load_prompts *p, uint32_t job)
{
    const struct load_prompt_options *o = p->options;

    prompt_tokens_make(&p->trace.items[job], o->seed, job, (int32_t)o->token_low,
                       (int32_t)o->token_high, p->tokens);
}

static void append_words(const struct load_prompts *p, uint32_t job, struct buf *out)
{
    for (uint32_t i = 0; i < p->trace.items[job].prompt_tokens; i++) {
        if (i) buf_append_char(out, ' ');
        buf_append_str(out, words[(uint32_t)p->tokens[i] % WORDS]);
    }
}

/* `text` as a JSON string. */
static bool append_json_string(const char *text, struct buf *out)
{
    json_t *string = json_string(text);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;

    if (quoted) buf_append_str(out, quoted);
    free(quoted);
    json_decref(string);
    return quoted != NULL;
}

static void append_message(const char *role, const char *text, bool first, struct buf *out)
{
    buf_printf(out, "%s{\"role\": \"%s\", \"content\": ", first ? "" : ", ", role);
    append_json_string(text, out);
    buf_append_char(out, '}');
}

/* The requests that came before this one in its conversation, first first, and this one. */
static uint32_t turns_of(const struct load_prompts *p, uint32_t job, uint32_t *turns, uint32_t cap)
{
    uint32_t n = 0, at = job;

    for (;; at = (uint32_t)p->jobs[at].after) {
        n++;
        if (p->jobs[at].after < 0 || n == cap) break;
    }
    for (uint32_t i = n; i-- > 0; job = (uint32_t)p->jobs[job].after)
        turns[i] = job;
    return n;
}

static void append_prompt_text(struct load_prompts *p, uint32_t job,
                               const struct load_result *results, struct buf *out)
{
    uint32_t turns[256], n = turns_of(p, job, turns, 256);
    struct buf text;

    buf_init(&text, 0);
    for (uint32_t i = 0; i < n; i++) {
        make_tokens(p, turns[i]);
        append_words(p, turns[i], &text);
        if (p->options->chat) append_message("user", buf_cstr(&text), i == 0, out);
        if (i + 1 == n) break;
        const char *answer = results[turns[i]].text ? results[turns[i]].text : "";
        if (p->options->chat) {
            append_message("assistant", answer, false, out);
            buf_clear(&text);
        } else {
            buf_append_str(&text, answer);
            buf_append_char(&text, '\n');
        }
    }
    if (!p->options->chat) append_json_string(buf_cstr(&text), out);
    buf_fini(&text);
}

static void append_ids(struct load_prompts *p, uint32_t job, struct buf *out)
{
    make_tokens(p, job);
    buf_append_char(out, '[');
    for (uint32_t i = 0; i < p->trace.items[job].prompt_tokens; i++)
        buf_printf(out, i ? ",%d" : "%d", p->tokens[i]);
    buf_append_char(out, ']');
}

bool load_prompts_body(void *ctx, uint32_t job, const struct load_result *results, struct buf *out)
{
    struct load_prompts *p = ctx;
    const struct load_prompt_options *o = p->options;

    buf_append_str(out, "{\"model\": ");
    append_json_string(o->model, out);
    buf_append_str(out, o->chat ? ", \"messages\": [" : ", \"prompt\": ");
    if (o->words)
        append_prompt_text(p, job, results, out);
    else
        append_ids(p, job, out);
    buf_printf(out, "%s, \"max_tokens\": %u, \"temperature\": %g, \"stream\": true",
               o->chat ? "]" : "", p->trace.items[job].max_tokens, o->temperature);
    buf_append_str(out, ", \"stream_options\": {\"include_usage\": true}");
    if (o->ignore_eos) buf_append_str(out, ", \"ignore_eos\": true");
    buf_append_char(out, '}');
    return buf_status(out) == STATUS_OK;
}
