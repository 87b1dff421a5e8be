/* stream.c - from outputs to certain text, entries and ends. See stream.h for the picture. */
#include "api/stream.h"

#include <stdlib.h>

#include "base/clock.h"

static uint32_t count_chars(const char *text, size_t len)
{
    uint32_t chars = 0;

    for (size_t i = 0; i < len; i++)
        chars += ((unsigned char)text[i] & 0xc0) != 0x80;
    return chars;
}

static enum status copy_stops(struct api_stream *s, const struct params *params)
{
    struct slice strings[STOP_STRINGS_MAX];
    uint32_t count = 0;
    const json_t *item;
    size_t i;

    if (json_is_string(params->stop))
        strings[count++] =
            slice_of(json_string_value(params->stop), json_string_length(params->stop));
    json_array_foreach(params->stop, i, item) strings[count++] =
        slice_of(json_string_value(item), json_string_length(item));
    if (count && stop_set_create(strings, count, &s->stops)) return STATUS_NOMEM;
    s->stop_id_count = (uint32_t)json_array_size(params->stop_token_ids);
    if (!s->stop_id_count) return STATUS_OK;
    s->stop_ids = calloc(s->stop_id_count, sizeof *s->stop_ids);
    if (!s->stop_ids) return STATUS_NOMEM;
    json_array_foreach(params->stop_token_ids, i, item)
    {
        int64_t id = 0;

        params_integral(item, &id);
        s->stop_ids[i] = (int32_t)id;
    }
    return STATUS_OK;
}

struct api_stream *stream_create(const struct api_model *model, enum api_route route,
                                 const struct params *params, struct request *request,
                                 bool continues)
{
    struct api_stream *s = calloc(1, sizeof *s);

    if (!s) return NULL;
    request_ref(request);
    *s = (struct api_stream){.model = model,
                             .writer = &stream_json_writer,
                             .request = request,
                             .route = route,
                             .created = clock_wall_s(),
                             .n = (uint32_t)params->n,
                             .best_of = request->best_of,
                             .choice_count = request_choices(request),
                             .min_tokens = request->min_tokens,
                             .top_logprobs = request->top_logprobs,
                             .sse = params->stream,
                             .include_usage = params->include_usage,
                             .echo = params->echo,
                             .logprobs = params->logprobs,
                             .return_ids = params->return_token_ids,
                             .timings = params->return_timings || params->timings_per_token,
                             .metrics = params->include_metrics || model->request_metrics,
                             .ids_as_tokens = params->tokens_as_ids,
                             .include_stop = params->include_stop,
                             .skip_special = params->skip_special,
                             .ignore_eos = params->ignore_eos,
                             .continues = continues};
    s->choices = calloc(s->choice_count, sizeof *s->choices);
    s->dirty = calloc(s->choice_count, sizeof *s->dirty);
    if (s->echo) s->echoes = calloc(request->prompt_count, sizeof *s->echoes);
    if (!s->choices || !s->dirty || (s->echo && !s->echoes) || copy_stops(s, params)) {
        api_stream_destroy(s);
        return NULL;
    }
    for (uint32_t c = 0; c < s->choice_count; c++) {
        detok_init(&s->choices[c].detok, model->tokenizer, s->skip_special);
        if (continues) s->choices[c].detok.at_start = false;
        stop_state_init(&s->choices[c].stop, s->stops);
    }
    return s;
}

enum status stream_start(struct api_stream *s)
{
    for (uint32_t p = 0; s->echo && p < s->request->prompt_count; p++)
        s->echoes[p].chars = count_chars(s->echoes[p].text.ptr, s->echoes[p].text.len);
    for (uint32_t c = 0; s->echo && c < s->choice_count; c++) {
        s->choices[c].text_chars = s->echoes[c / s->best_of].chars;
        s->choices[c].echo_due = true;
    }
    s->writer->start(s);
    return buf_status(&s->head);
}

void api_stream_destroy(struct api_stream *s)
{
    if (!s) return;
    for (uint32_t c = 0; s->choices && c < s->choice_count; c++) {
        struct choice *choice = &s->choices[c];

        stop_state_fini(&choice->stop);
        buf_fini(&choice->released);
        buf_fini(&choice->logprobs.tokens);
        buf_fini(&choice->logprobs.numbers);
        buf_fini(&choice->logprobs.tops);
        buf_fini(&choice->logprobs.offsets);
        token_list_fini(&choice->ids);
        free(choice->waiting);
    }
    for (uint32_t p = 0; s->echoes && p < s->request->prompt_count; p++)
        buf_fini(&s->echoes[p].text);
    free(s->choices);
    free(s->dirty);
    free(s->echoes);
    free(s->stop_ids);
    stop_set_destroy(s->stops);
    buf_fini(&s->head);
    buf_fini(&s->scratch);
    request_unref(s->request);
    free(s);
}

static void fail(struct api_stream *s, unsigned http_status, const char *code, const char *message)
{
    if (s->fault.http_status) return;
    api_refuse(&s->fault, http_status, code, NULL, "%s", message);
}

static void mark_dirty(struct api_stream *s, uint32_t c)
{
    if (s->choices[c].dirty) return;
    s->choices[c].dirty = true;
    s->dirty[s->dirty_count++] = c;
}

/* --- log probability entries --- */

static void add_entry(struct api_stream *s, struct choice *choice, const struct output *output,
                      uint64_t certain_before, bool at_start, bool no_bytes)
{
    if (choice->waiting_count == choice->waiting_cap) {
        uint32_t cap = choice->waiting_cap ? choice->waiting_cap * 2 : 4;
        void *grown = realloc(choice->waiting, cap * sizeof *choice->waiting);

        if (!grown) {
            fail(s, 503, "service_unavailable", "The server has no memory for this answer.");
            return;
        }
        choice->waiting = grown;
        choice->waiting_cap = cap;
    }
    struct logprob_entry *entry = &choice->waiting[choice->waiting_count++];
    uint32_t tops = output->top_count < s->top_logprobs ? output->top_count : s->top_logprobs;

    *entry = (struct logprob_entry){.needs = certain_before + !no_bytes,
                                    .text_offset = choice->text_chars,
                                    .token = output->token,
                                    .logprob = output->logprob,
                                    .top_count = tops,
                                    .at_start = at_start,
                                    .no_bytes = no_bytes};
    memcpy(entry->tops, output->tops, tops * sizeof *entry->tops);
}

/* Writes the entries whose text is released; with `all` every one (the text has been flushed). */
static void release_entries(struct api_stream *s, struct choice *choice, bool all)
{
    uint32_t done = 0;

    while (done < choice->waiting_count &&
           (all || choice->waiting[done].needs <= choice->released_bytes))
        s->writer->entry(s, choice, &choice->waiting[done++]);
    if (!done) return;
    choice->waiting_count -= done;
    memmove(choice->waiting, choice->waiting + done,
            choice->waiting_count * sizeof *choice->waiting);
}

/* --- text --- */

/* Sends the scratch text through the stop automaton. True: a stop string has ended the choice. */
static bool feed_stop(struct api_stream *s, struct choice *choice)
{
    size_t before = choice->released.len;
    bool armed = choice->tokens > s->min_tokens;
    int match =
        stop_push(&choice->stop, buf_slice(&s->scratch), armed, s->include_stop, &choice->released);

    choice->certain_bytes += s->scratch.len;
    choice->text_chars += count_chars(s->scratch.ptr, s->scratch.len);
    choice->released_bytes += choice->released.len - before;
    if (match < 0) return false;
    choice->reason = REASON_STOP_STRING;
    choice->stop_string = (uint32_t)match;
    return true;
}

static bool starts_with_space(const struct api_stream *s, int32_t token)
{
    struct slice bytes = tokenizer_token_bytes(s->model->tokenizer, token);

    return bytes.len && bytes.ptr[0] == ' ';
}

/* A sampled token that adds to the text. True: stop text has ended the choice. */
static bool push_text(struct api_stream *s, struct choice *choice, const struct output *output)
{
    const struct tokenizer *tok = s->model->tokenizer;
    uint64_t before = choice->certain_bytes;
    bool at_start = choice->detok.at_start;

    if (s->logprobs) {
        bool special = tokenizer_is_special(tok, output->token);
        bool strip = at_start && !special && tokenizer_strips_first_space(tok) &&
                     starts_with_space(s, output->token);
        bool no_bytes = (special && s->skip_special) ||
                        tokenizer_token_bytes(tok, output->token).len == (strip ? 1u : 0u);

        add_entry(s, choice, output, before, at_start, no_bytes);
    }
    buf_clear(&s->scratch);
    detok_push(&choice->detok, output->token, &s->scratch);
    bool matched = feed_stop(s, choice);

    if (s->logprobs) release_entries(s, choice, false);
    return matched;
}

/* The choice ends with what it has: held bytes become U+FFFD, held text is released. */
static void flush_text(struct api_stream *s, struct choice *choice)
{
    size_t before;

    buf_clear(&s->scratch);
    detok_flush(&choice->detok, &s->scratch);
    if (s->scratch.len && feed_stop(s, choice)) {
        release_entries(s, choice, false);
        return;
    }
    before = choice->released.len;
    stop_flush(&choice->stop, &choice->released);
    choice->released_bytes += choice->released.len - before;
    release_entries(s, choice, true);
}

static bool is_eos(const struct api_stream *s, int32_t token)
{
    uint32_t count;
    const int32_t *list = tokenizer_eos_list(s->model->tokenizer, &count);

    for (uint32_t i = 0; !s->ignore_eos && i < count; i++)
        if (list[i] == token) return true;
    return false;
}

static bool is_stop_id(const struct api_stream *s, int32_t token)
{
    for (uint32_t i = 0; i < s->stop_id_count; i++)
        if (s->stop_ids[i] == token) return true;
    return false;
}

/* A token that ends the choice by itself: left out of the text, unless it is a stop token that is to be included. */
static void push_end_token(struct api_stream *s, struct choice *choice, const struct output *output,
                           bool eos)
{
    if (!eos && s->include_stop) push_text(s, choice, output);
    if (choice->reason == REASON_NONE) flush_text(s, choice);
    choice->reason = eos ? REASON_EOS : REASON_STOP_ID;
    choice->stop_id = output->token;
}

static bool push_token(struct api_stream *s, const struct output *output, struct api_ended *ended)
{
    struct choice *choice = &s->choices[output->choice];
    bool eos;

    if (choice->reason != REASON_NONE) return false; /* one step too many: counts nowhere */
    choice->tokens = output->index + 1;
    choice->logprob_sum += (double)output->logprob;
    if (s->return_ids && token_list_push(&choice->ids, output->token))
        fail(s, 503, "service_unavailable", "The server has no memory for this answer.");
    mark_dirty(s, output->choice);
    eos = is_eos(s, output->token);
    if (choice->tokens > s->min_tokens && (eos || is_stop_id(s, output->token))) {
        push_end_token(s, choice, output, eos);
        return false;
    }
    if (!push_text(s, choice, output)) return false;
    *ended = (struct api_ended){output->choice, choice->tokens};
    return true;
}

static void finish_choice(struct api_stream *s, const struct output *output)
{
    struct choice *choice = &s->choices[output->choice];

    if (choice->finished) return;
    choice->finished = true;
    s->finished_count++;
    mark_dirty(s, output->choice);
    if (output->reason == FINISH_CANCELLED) {
        fail(s, 503, "service_unavailable", "The request was ended by the server.");
        return;
    }
    if (choice->reason != REASON_NONE) return;
    flush_text(s, choice);
    if (choice->reason == REASON_NONE)
        choice->reason = output->reason == FINISH_LENGTH ? REASON_LENGTH : REASON_EOS;
}

static void take_error(struct api_stream *s, const struct output *output)
{
    if (output->status == STATUS_CLOSED || output->status == STATUS_CANCELLED)
        fail(s, 503, "server_draining", "The server is shutting down.");
    else if (output->status == STATUS_TIMEOUT)
        fail(s, 503, "service_unavailable", "The request's time (X-Request-Timeout) ran out.");
    else
        fail(s, 500, "internal_error",
             output->error ? output->error : "The request failed inside the server.");
}

/* Whole mode keeps everything until the end: the sum is bounded. */
static void check_size(struct api_stream *s, const struct choice *choice, size_t before)
{
    const struct logprob_json *l = &choice->logprobs;
    size_t now = choice->released.len + l->tokens.len + l->tops.len + l->numbers.len;

    s->held_bytes += now - before;
    if (s->held_bytes > STREAM_ANSWER_MAX)
        api_refuse(&s->fault, 400, "invalid_value", "n",
                   "The answer grew past %d MiB; ask for fewer choices, tokens or log "
                   "probabilities, or for a stream.",
                   STREAM_ANSWER_MAX >> 20);
}

bool api_stream_push(struct api_stream *s, const struct output *output, struct api_ended *ended)
{
    bool stopped = false;

    if (s->fault.http_status) return false;
    switch (output->kind) {
    case OUTPUT_TOKEN: {
        struct choice *choice = &s->choices[output->choice];
        const struct logprob_json *l = &choice->logprobs;
        size_t before = choice->released.len + l->tokens.len + l->tops.len + l->numbers.len;

        stopped = push_token(s, output, ended);
        if (!s->sse) check_size(s, choice, before);
        break;
    }
    case OUTPUT_FINISHED: finish_choice(s, output); break;
    case OUTPUT_PROMPT_SCORED: {
        uint32_t prompt = output->choice / s->best_of;

        if (s->echoes) s->echoes[prompt].scored = true;
        for (uint32_t i = 0; s->echoes && i < s->best_of; i++)
            mark_dirty(s, prompt * s->best_of + i);
        break;
    }
    case OUTPUT_ERROR: take_error(s, output); break;
    }
    return stopped;
}

bool api_stream_is_sse(const struct api_stream *s)
{
    return s->sse;
}

bool api_stream_done(const struct api_stream *s)
{
    return s->fault.http_status || s->finished_count == s->choice_count;
}

void api_stream_begin(struct api_stream *s, struct buf *out)
{
    s->writer->begin(s, out);
    for (uint32_t c = 0; s->sse && s->echo && !s->logprobs && c < s->choice_count; c++)
        s->writer->echo(s, c, out);
}

static void flush_choice(struct api_stream *s, uint32_t c, struct buf *out)
{
    struct choice *choice = &s->choices[c];
    bool ends = choice->reason != REASON_NONE;

    if (choice->echo_due) {
        if (!s->echoes[c / s->best_of].scored) return; /* its text comes first */
        s->writer->echo(s, c, out);
    }
    if (choice->released.len || choice->logprobs.count || (choice->ids.count && !ends))
        s->writer->delta(s, c, out);
    if (ends && !choice->finish_sent) {
        s->writer->finish(s, c, out);
        choice->finish_sent = true;
    }
}

void api_stream_flush(struct api_stream *s, struct buf *out)
{
    if (!s->sse || s->closed) return;
    for (uint32_t i = 0; i < s->dirty_count; i++) {
        s->choices[s->dirty[i]].dirty = false;
        flush_choice(s, s->dirty[i], out);
    }
    s->dirty_count = 0;
    if (!api_stream_done(s)) return;
    s->closed = true;
    if (s->fault.http_status)
        s->writer->error(s, &s->fault, true, out);
    else
        s->writer->end(s, out);
}

void api_stream_fail(struct api_stream *s, const struct api_fault *fault, struct buf *out)
{
    if (s->closed) return;
    s->fault = *fault;
    if (!s->sse) return;
    s->closed = true;
    s->writer->error(s, fault, true, out);
}

unsigned api_stream_answer(struct api_stream *s, struct buf *out, struct api_fault *fault)
{
    if (!s->fault.http_status) {
        s->writer->whole(s, out);
        if (!buf_status(out)) return 200;
        fail(s, 503, "service_unavailable", "The server has no memory for this answer.");
        buf_clear(out);
    }
    *fault = s->fault;
    s->writer->error(s, fault, false, out);
    return fault->http_status;
}

const char *api_stream_outcome(const struct api_stream *s)
{
    if (s->fault.http_status) return "error";
    return s->choices[0].reason == REASON_LENGTH ? "length" : "stop";
}

uint32_t api_stream_completion_tokens(const struct api_stream *s)
{
    uint32_t tokens = 0;

    for (uint32_t c = 0; c < s->choice_count; c++)
        tokens += s->choices[c].tokens;
    return tokens;
}

uint32_t api_stream_longest_choice(const struct api_stream *s)
{
    uint32_t tokens = 0;

    for (uint32_t c = 0; c < s->choice_count; c++)
        if (s->choices[c].tokens > tokens) tokens = s->choices[c].tokens;
    return tokens;
}

uint32_t api_stream_n(const struct api_stream *s)
{
    return s->n;
}

const char *api_stream_error_code(const struct api_stream *s)
{
    return s->fault.http_status ? s->fault.code : NULL;
}

enum status api_prompt_text(const struct api_model *model, const struct request *request,
                            uint32_t prompt, struct buf *out)
{
    const struct request_prompt *p = &request->prompts[prompt];

    return tokenizer_decode(model->tokenizer, p->ids, p->count, false, out);
}
