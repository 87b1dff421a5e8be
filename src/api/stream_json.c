/* stream_json.c - chunks and whole answers as JSON text: docs/api.md sections 9 to 12 and 17.
 *
 * What is the same in every event of an answer is made once (stream->head); a plain token then costs an append of the
 * head, the index, the escaped text and a constant tail. */
#include "api/json_out.h"
#include "api/stream.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/utf8.h"

static bool is_chat(const struct api_stream *s)
{
    return s->route == API_CHAT;
}

static void put(struct buf *out, const char *literal)
{
    buf_append_str(out, literal);
}

/* "id":..,"object":..,"created":..,"model":..,"system_fingerprint":.., */
static void put_common(const struct api_stream *s, const char *object, struct buf *out)
{
    buf_printf(out, "\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", s->request->id,
               object, (long long)s->created);
    json_out_string(out, slice_str(s->model->names[0]));
    put(out, ",\"system_fingerprint\":");
    json_out_string(out, slice_str(s->model->fingerprint));
    put(out, ",");
}

static void make_head(struct api_stream *s)
{
    put(&s->head, "data: {");
    put_common(s, is_chat(s) ? "chat.completion.chunk" : "text_completion", &s->head);
    if (s->include_usage) put(&s->head, "\"usage\":null,");
}

uint32_t stream_shown_index(const struct api_stream *s, uint32_t c)
{
    return c / s->best_of * s->n + c % s->best_of;
}

static const struct request_prompt *prompt_of(const struct api_stream *s, uint32_t c)
{
    return &s->request->prompts[c / s->best_of];
}

/* --- tokens as text --- */

struct slice stream_token_bytes(const struct api_stream *s, int32_t token, bool at_start)
{
    const struct tokenizer *tok = s->model->tokenizer;
    struct slice bytes = tokenizer_token_bytes(tok, token);

    if (at_start && bytes.len && bytes.ptr[0] == ' ' && !tokenizer_is_special(tok, token) &&
        tokenizer_strips_first_space(tok))
        bytes = slice_of(bytes.ptr + 1, bytes.len - 1);
    return bytes;
}

/* Appends the token's text (token_id:N where asked for), ill-formed parts as U+FFFD. */
static void put_token_text(const struct api_stream *s, int32_t token, bool at_start,
                           struct buf *out)
{
    struct slice bytes;
    struct detok repair = {0};

    if (s->ids_as_tokens) {
        put(out, "token_id:");
        json_out_u64(out, (uint64_t)token);
        return;
    }
    bytes = stream_token_bytes(s, token, at_start);
    if (utf8_valid(bytes)) {
        buf_append_slice(out, bytes);
        return;
    }
    detok_push_bytes(&repair, bytes, out);
    detok_flush(&repair, out);
}

static void put_quoted_token(const struct api_stream *s, int32_t token, bool at_start,
                             struct buf *out)
{
    struct buf text;

    buf_init(&text, 0);
    put_token_text(s, token, at_start, &text);
    json_out_string(out, buf_slice(&text));
    buf_fini(&text);
}

/* {"token":..,"logprob":..,"bytes":[..]  without the closing brace */
static void put_scored_token(const struct api_stream *s, int32_t token, float logprob,
                             bool at_start, struct buf *out)
{
    bool hidden = s->skip_special && tokenizer_is_special(s->model->tokenizer, token);
    struct slice bytes = hidden ? (struct slice){0} : stream_token_bytes(s, token, at_start);

    put(out, "{\"token\":");
    put_quoted_token(s, token, at_start, out);
    put(out, ",\"logprob\":");
    json_out_logprob(out, logprob);
    put(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.len; i++) {
        if (i) buf_append_char(out, ',');
        json_out_u64(out, (unsigned char)bytes.ptr[i]);
    }
    put(out, "]");
}

/* The sampled token has one number wherever it stands. */
static float top_number(const struct logprob_entry *entry, uint32_t i)
{
    return entry->tops[i].id == entry->token ? entry->logprob : entry->tops[i].logprob;
}

static void put_chat_entry(struct api_stream *s, struct choice *choice,
                           const struct logprob_entry *entry)
{
    struct buf *out = &choice->logprobs.tokens;

    if (choice->logprobs.count) put(out, ",");
    put_scored_token(s, entry->token, entry->logprob, entry->at_start, out);
    put(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < entry->top_count; i++) {
        if (i) put(out, ",");
        put_scored_token(s, entry->tops[i].id, top_number(entry, i), entry->at_start, out);
        put(out, "}");
    }
    put(out, "]}");
}

/* The object of likeliest tokens: of two with the same text the likelier stays, so the first. */
static void put_top_object(const struct api_stream *s, const struct logprob_entry *entry,
                           struct buf *out)
{
    struct buf texts;
    size_t starts[22];
    uint32_t count = 0;
    bool sampled_seen = false;

    buf_init(&texts, 0);
    put(out, "{");
    for (uint32_t i = 0; i <= entry->top_count; i++) {
        bool extra = i == entry->top_count; /* the sampled token, if it was not among them */
        int32_t token = extra ? entry->token : entry->tops[i].id;
        bool twice = false;

        sampled_seen |= !extra && token == entry->token;
        if (extra && sampled_seen) break;
        starts[count] = texts.len;
        put_token_text(s, token, entry->at_start, &texts);
        struct slice text = slice_of(texts.ptr + starts[count], texts.len - starts[count]);

        for (uint32_t j = 0; j < count && !twice; j++)
            twice = slice_eq(text, slice_of(texts.ptr + starts[j], starts[j + 1] - starts[j]));
        if (twice) {
            texts.len = starts[count];
            continue;
        }
        if (count) put(out, ",");
        json_out_string(out, text);
        put(out, ":");
        json_out_logprob(out, extra ? entry->logprob : top_number(entry, i));
        starts[++count] = texts.len;
    }
    put(out, "}");
    buf_fini(&texts);
}

static void put_completion_entry(struct api_stream *s, struct choice *choice,
                                 const struct logprob_entry *entry)
{
    struct logprob_json *l = &choice->logprobs;

    if (l->count) {
        put(&l->tokens, ",");
        put(&l->numbers, ",");
        put(&l->tops, ",");
        put(&l->offsets, ",");
    }
    put_quoted_token(s, entry->token, entry->at_start, &l->tokens);
    json_out_u64(&l->offsets, entry->text_offset);
    if (entry->no_score) {
        put(&l->numbers, "null");
        put(&l->tops, "null");
        return;
    }
    json_out_logprob(&l->numbers, entry->logprob);
    put_top_object(s, entry, &l->tops);
}

static void put_entry(struct api_stream *s, struct choice *choice,
                      const struct logprob_entry *entry)
{
    if (is_chat(s))
        put_chat_entry(s, choice, entry);
    else
        put_completion_entry(s, choice, entry);
    choice->logprobs.count++;
}

/* "logprobs":... of what has been released since the last time, or null */
static void put_logprobs(struct api_stream *s, struct choice *choice, struct buf *out)
{
    struct logprob_json *l = &choice->logprobs;

    if (!s->logprobs) {
        put(out, "\"logprobs\":null");
        return;
    }
    if (is_chat(s)) {
        put(out, "\"logprobs\":{\"content\":[");
        buf_append_slice(out, buf_slice(&l->tokens));
        put(out, "],\"refusal\":null}");
    } else {
        put(out, "\"logprobs\":{\"tokens\":[");
        buf_append_slice(out, buf_slice(&l->tokens));
        put(out, "],\"token_logprobs\":[");
        buf_append_slice(out, buf_slice(&l->numbers));
        put(out, "],\"top_logprobs\":[");
        buf_append_slice(out, buf_slice(&l->tops));
        put(out, "],\"text_offset\":[");
        buf_append_slice(out, buf_slice(&l->offsets));
        put(out, "]}");
    }
    buf_clear(&l->tokens);
    buf_clear(&l->numbers);
    buf_clear(&l->tops);
    buf_clear(&l->offsets);
    l->count = 0;
}

void stream_put_prompt_entries(struct api_stream *s, uint32_t c)
{
    const struct request_prompt *prompt = prompt_of(s, c);
    const struct prompt_scores *scores = &s->request->prompt_scores[c / s->best_of];
    const struct echo_text *echo = &s->echoes[c / s->best_of];
    struct detok detok;
    struct buf text;
    uint32_t offset = 0;

    detok_init(&detok, s->model->tokenizer, echo->from_ids);
    buf_init(&text, 0);
    for (uint32_t i = 0; i < prompt->count; i++) {
        const struct step_output *score = &scores->outputs[i];
        struct logprob_entry entry = {.token = prompt->ids[i],
                                      .text_offset = offset < echo->chars ? offset : echo->chars,
                                      .no_score = i == 0,
                                      .at_start = detok.at_start};

        if (i) {
            entry.logprob = score->logprob;
            entry.top_count =
                score->top_count < s->top_logprobs ? score->top_count : s->top_logprobs;
            memcpy(entry.tops, scores->tops + (size_t)i * s->top_logprobs,
                   entry.top_count * sizeof *entry.tops);
        }
        s->writer->entry(s, &s->choices[c], &entry);
        /* a BOS that was added in front is no part of a prompt that came as text */
        if (i == 0 && !echo->from_ids &&
            tokenizer_is_special(s->model->tokenizer, prompt->ids[0]) &&
            !slice_starts(buf_slice(&echo->text),
                          tokenizer_token_bytes(s->model->tokenizer, prompt->ids[0])))
            continue;
        buf_clear(&text);
        detok_push(&detok, prompt->ids[i], &text);
        for (size_t b = 0; b < text.len; b++)
            offset += ((unsigned char)text.ptr[b] & 0xc0) != 0x80;
    }
    buf_fini(&text);
}

/* Appends "," and the second list to the first, and ends the second. */
static void move_behind(struct buf *list, struct buf *second)
{
    if (second->len) {
        if (list->len) put(list, ",");
        buf_append_slice(list, buf_slice(second));
    }
    buf_fini(second);
}

/* Puts a list behind another, and ends it. */
static void join_logprobs(struct logprob_json *list, struct logprob_json *second)
{
    move_behind(&list->tokens, &second->tokens);
    move_behind(&list->numbers, &second->numbers);
    move_behind(&list->tops, &second->tops);
    move_behind(&list->offsets, &second->offsets);
    list->count += second->count;
}

/* --- events --- */

static void put_choices_start(const struct api_stream *s, uint32_t c, struct buf *out)
{
    put(out, "\"choices\":[{\"index\":");
    json_out_u64(out, stream_shown_index(s, c));
}

static void put_prompt_ids(const struct api_stream *s, uint32_t c, struct buf *out)
{
    const struct request_prompt *prompt = prompt_of(s, c);

    put(out, "\"prompt_token_ids\":");
    json_out_ids(out, prompt->ids, prompt->count);
}

/* ,"prompt_token_ids":[..] in a completion's first event of a choice, unless its echo has had them */
static void put_prompt_ids_once(struct api_stream *s, uint32_t c, struct buf *out)
{
    if (!s->return_ids || is_chat(s) || s->echo || s->choices[c].prompt_ids_sent) return;
    put(out, ",");
    put_prompt_ids(s, c, out);
    s->choices[c].prompt_ids_sent = true;
}

/* ,"token_ids":[..] of what was sampled since the last time */
static void put_token_ids(struct api_stream *s, struct choice *choice, struct buf *out)
{
    if (!s->return_ids) return;
    put(out, ",\"token_ids\":");
    json_out_ids(out, choice->ids.ids, choice->ids.count);
    choice->ids.count = 0;
}

static void put_role(struct api_stream *s, uint32_t c, struct buf *out)
{
    buf_append_slice(out, buf_slice(&s->head));
    if (s->return_ids) {
        put_prompt_ids(s, c, out);
        put(out, ",");
    }
    put_choices_start(s, c, out);
    put(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
             "\"finish_reason\":null");
    if (s->return_ids) put(out, ",\"token_ids\":[]");
    put(out, "}]}\n\n");
}

static void put_echo(struct api_stream *s, uint32_t c, struct buf *out)
{
    struct choice *choice = &s->choices[c];

    struct logprob_json sampled =
        choice->logprobs; /* of the same turn: they come after the prompt's */

    choice->echo_due = false;
    choice->logprobs = (struct logprob_json){0};
    if (s->logprobs) stream_put_prompt_entries(s, c);
    buf_append_slice(out, buf_slice(&s->head));
    put_choices_start(s, c, out);
    put(out, ",\"text\":");
    json_out_string(out, buf_slice(&s->echoes[c / s->best_of].text));
    put(out, ",");
    put_logprobs(s, choice, out);
    put(out, ",\"finish_reason\":null");
    if (s->return_ids) {
        put(out, ",\"token_ids\":[],");
        put_prompt_ids(s, c, out);
    }
    put(out, "}]}\n\n");
    join_logprobs(&choice->logprobs, &sampled); /* an empty list has no comma */
}

static void put_delta(struct api_stream *s, uint32_t c, struct buf *out)
{
    struct choice *choice = &s->choices[c];

    buf_append_slice(out, buf_slice(&s->head));
    put_choices_start(s, c, out);
    put(out, is_chat(s) ? ",\"delta\":{\"content\":\"" : ",\"text\":\"");
    json_out_escaped(out, buf_slice(&choice->released));
    buf_clear(&choice->released);
    put(out, is_chat(s) ? "\"}," : "\",");
    put_logprobs(s, choice, out);
    put(out, ",\"finish_reason\":null");
    put_token_ids(s, choice, out);
    put_prompt_ids_once(s, c, out);
    put(out, "}]}\n\n");
}

/* "finish_reason":..,"stop_reason":.. */
static void put_reason(const struct api_stream *s, const struct choice *choice, struct buf *out)
{
    put(out, choice->reason == REASON_LENGTH ? "\"finish_reason\":\"length\",\"stop_reason\":"
                                             : "\"finish_reason\":\"stop\",\"stop_reason\":");
    if (choice->reason == REASON_STOP_STRING)
        json_out_string(out, stop_set_string(s->stops, choice->stop_string));
    else if (choice->reason == REASON_STOP_ID)
        json_out_u64(out, (uint64_t)choice->stop_id);
    else
        put(out, "null");
}

static void put_finish(struct api_stream *s, uint32_t c, struct buf *out)
{
    struct choice *choice = &s->choices[c];

    buf_append_slice(out, buf_slice(&s->head));
    put_choices_start(s, c, out);
    put(out, is_chat(s) ? ",\"delta\":{},\"logprobs\":null," : ",\"text\":\"\",\"logprobs\":null,");
    put_reason(s, choice, out);
    put_token_ids(s, choice, out);
    put_prompt_ids_once(s, c, out);
    put(out, "}]}\n\n");
}

static void put_usage(const struct api_stream *s, struct buf *out)
{
    uint64_t prompt = 0, completion = api_stream_completion_tokens(s);

    for (uint32_t p = 0; p < s->request->prompt_count; p++)
        prompt += s->request->prompts[p].count;
    buf_printf(out,
               "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
               (unsigned long long)prompt, (unsigned long long)completion,
               (unsigned long long)(prompt + completion), s->request->times.cached_tokens);
}

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

/* "timings":{..}: llama-server's fields, and our stages, of which the sum is total_ms. */
static void put_timings(const struct api_stream *s, struct buf *out)
{
    const struct stage_times *t = &s->request->times;
    struct stage_ledger ledger = stage_ledger(t, clock_mono_ns());
    double prompt_ms = ms(ledger.ns[STAGE_PREFILL]), answer_ms = ms(ledger.ns[STAGE_DECODE]);
    uint64_t answer = api_stream_completion_tokens(s);
    uint32_t computed = t->prompt_tokens - t->cached_tokens;
    uint32_t steps = t->prefill_chunks + t->decode_steps;

    buf_printf(out,
               "\"timings\":{\"cache_n\":%u,\"prompt_n\":%u,\"prompt_ms\":%.3f,"
               "\"prompt_per_token_ms\":%.3f,\"prompt_per_second\":%.3f,",
               t->cached_tokens, computed, prompt_ms, computed ? prompt_ms / computed : 0.0,
               prompt_ms > 0 ? computed * 1e3 / prompt_ms : 0.0);
    buf_printf(out,
               "\"predicted_n\":%llu,\"predicted_ms\":%.3f,\"predicted_per_token_ms\":%.3f,"
               "\"predicted_per_second\":%.3f",
               (unsigned long long)answer, answer_ms, answer ? answer_ms / (double)answer : 0.0,
               answer_ms > 0 ? (double)answer * 1e3 / answer_ms : 0.0);
    buf_printf(out,
               ",\"prefill_chunks\":%u,\"decode_steps\":%u,\"mean_batch\":%.2f,"
               "\"preemptions\":%u,"
               "\"queued_for\":\"%s\",\"stages_ms\":{",
               t->prefill_chunks, t->decode_steps, steps ? (double)t->batch_rows_sum / steps : 0.0,
               t->preemptions, t->queued_for ? t->queued_for : "none");
    for (int i = 0; i < STAGES; i++)
        buf_printf(out, "%s\"%s\":%.3f", i ? "," : "", stage_name((enum request_stage)i),
                   ms(ledger.ns[i]));
    buf_printf(out, "},\"total_ms\":%.3f}", ms(ledger.total_ns));
}

static void put_ms_or_null(struct buf *out, const char *name, int64_t ns)
{
    if (ns > 0)
        buf_printf(out, "\"%s\":%.3f,", name, ms(ns));
    else
        buf_printf(out, "\"%s\":null,", name);
}

/* "metrics":{..}: vLLM's fields, by its definitions; null where several choices share one answer. */
static void put_metrics(const struct api_stream *s, struct buf *out)
{
    struct stage_ledger ledger = stage_ledger(&s->request->times, clock_mono_ns());
    int64_t prefill_ns = ledger.ns[STAGE_PREFILL], decode_ns = ledger.ns[STAGE_DECODE];
    uint32_t tokens = api_stream_completion_tokens(s);

    if (s->choice_count > 1) {
        put(out, "\"metrics\":null");
        return;
    }
    put(out, "\"metrics\":{");
    put_ms_or_null(out, "time_to_first_token_ms", prefill_ns);
    put_ms_or_null(out, "generation_time_ms", decode_ns);
    buf_printf(out, "\"queue_time_ms\":%.3f,", ms(ledger.ns[STAGE_QUEUE]));
    put_ms_or_null(out, "mean_itl_ms", tokens > 1 ? decode_ns / (tokens - 1) : 0);
    if (prefill_ns + decode_ns > 0)
        buf_printf(out, "\"tokens_per_second\":%.3f}",
                   tokens * 1e9 / (double)(prefill_ns + decode_ns));
    else
        put(out, "\"tokens_per_second\":null}");
}

static void put_end(struct api_stream *s, struct buf *out)
{
    bool metrics = s->metrics && s->include_usage; /* they come with the usage, as vLLM's do */

    if (s->include_usage || s->timings) {
        put(out, "data: {");
        put_common(s, is_chat(s) ? "chat.completion.chunk" : "text_completion", out);
        put(out, "\"choices\":[],");
        if (s->include_usage) put_usage(s, out);
        if (metrics) put(out, ",");
        if (metrics) put_metrics(s, out);
        if (s->include_usage && s->timings) put(out, ",");
        if (s->timings) put_timings(s, out);
        put(out, "}\n\n");
    }
    put(out, "data: [DONE]\n\n");
}

/* --- whole answers --- */

static double mean_logprob(const struct choice *choice)
{
    return choice->tokens ? choice->logprob_sum / choice->tokens : 0;
}

void stream_choose_best(const struct api_stream *s, uint32_t prompt, uint32_t *chosen)
{
    const struct choice *all = s->choices + (size_t)prompt * s->best_of;
    bool taken[512] = {false};

    for (uint32_t rank = 0; rank < s->n; rank++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t i = 0; i < s->best_of; i++)
            if (!taken[i] && (s->best_of == s->n || best == UINT32_MAX ||
                              mean_logprob(&all[i]) > mean_logprob(&all[best]))) {
                best = i;
                if (s->best_of == s->n) break; /* in order */
            }
        taken[best] = true;
        chosen[rank] = prompt * s->best_of + best;
    }
}

static void put_text(struct api_stream *s, uint32_t c, struct buf *out)
{
    put(out, "\"");
    if (s->echo) json_out_escaped(out, buf_slice(&s->echoes[c / s->best_of].text));
    json_out_escaped(out, buf_slice(&s->choices[c].released));
    put(out, "\"");
}

/* Prompt entries come first, but the sampled ones are there already: put them behind. */
static void put_whole_logprobs(struct api_stream *s, uint32_t c, struct buf *out)
{
    struct choice *choice = &s->choices[c];
    struct logprob_json sampled = choice->logprobs;

    if (s->logprobs && s->echo) {
        choice->logprobs = (struct logprob_json){0};
        stream_put_prompt_entries(s, c);
        join_logprobs(&choice->logprobs, &sampled);
    }
    put_logprobs(s, choice, out);
}

static void put_whole_choice(struct api_stream *s, uint32_t c, uint32_t index, struct buf *out)
{
    struct choice *choice = &s->choices[c];

    put(out, "{\"index\":");
    json_out_u64(out, index);
    put(out, is_chat(s) ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"text\":");
    put_text(s, c, out);
    put(out, is_chat(s) ? ",\"refusal\":null}," : ",");
    put_whole_logprobs(s, c, out);
    put(out, ",");
    put_reason(s, choice, out);
    put_token_ids(s, choice, out);
    if (s->return_ids && !is_chat(s)) {
        put(out, ",");
        put_prompt_ids(s, c, out);
    }
    put(out, "}");
}

static void put_whole(struct api_stream *s, struct buf *out)
{
    uint32_t chosen[128], index = 0;

    put(out, "{");
    put_common(s, is_chat(s) ? "chat.completion" : "text_completion", out);
    if (s->return_ids && is_chat(s)) {
        put_prompt_ids(s, 0, out);
        put(out, ",");
    }
    put(out, "\"choices\":[");
    for (uint32_t p = 0; p < s->request->prompt_count; p++) {
        stream_choose_best(s, p, chosen);
        for (uint32_t i = 0; i < s->n; i++) {
            if (index) put(out, ",");
            put_whole_choice(s, chosen[i], index++, out);
        }
    }
    put(out, "],");
    put_usage(s, out);
    if (s->timings) {
        put(out, ",");
        put_timings(s, out);
    }
    if (s->metrics) {
        put(out, ",");
        put_metrics(s, out);
    }
    put(out, "}");
}

/* --- the writer --- */

static void put_begin(struct api_stream *s, struct buf *out)
{
    for (uint32_t c = 0; s->sse && is_chat(s) && c < s->choice_count; c++)
        put_role(s, c, out);
}

static void put_error(const struct api_stream *s, const struct api_fault *fault, bool event,
                      struct buf *out)
{
    (void)s;
    if (event) put(out, "data: ");
    api_fault_body(fault, out);
    if (event) put(out, "\n\ndata: [DONE]\n\n");
}

const struct stream_writer stream_json_writer = {.start = make_head,
                                                 .entry = put_entry,
                                                 .begin = put_begin,
                                                 .echo = put_echo,
                                                 .delta = put_delta,
                                                 .finish = put_finish,
                                                 .end = put_end,
                                                 .whole = put_whole,
                                                 .error = put_error};
