/* stream_proto.c - Started, Chunks and Done of proto/inferd.proto: the writer for ZeroMQ clients.
 *
 * An entry of log probabilities waits as it is (choice->logprobs.tokens holds struct logprob_entry) and is packed with the
 * Chunk that gives it out. */
#include "api/proto_out.h"
#include "api/stream.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"

static Inferd__V1__Response response_of(const struct api_stream *s,
                                        Inferd__V1__Response__BodyCase body)
{
    Inferd__V1__Response response = INFERD__V1__RESPONSE__INIT;

    response.has_id = true;
    response.id = s->message_id;
    response.body_case = body;
    return response;
}

static void start(struct api_stream *s)
{
    (void)s;
}

static void put_begin(struct api_stream *s, struct buf *out)
{
    Inferd__V1__Response response = response_of(s, INFERD__V1__RESPONSE__BODY_STARTED);
    Inferd__V1__Started started = INFERD__V1__STARTED__INIT;

    started.completion_id = proto_string(s->request->id);
    started.x_request_id = proto_string(s->request_id);
    started.model = proto_string(s->model->names[0]);
    started.fingerprint = proto_string(s->model->fingerprint);
    started.has_created = true;
    started.created = s->created;
    response.started = &started;
    proto_out(&response, out);
}

static void put_error(const struct api_stream *s, const struct api_fault *fault, bool event,
                      struct buf *out)
{
    (void)event;
    api_proto_error(s->message_id, fault, out);
}

/* --- log probabilities --- */

static void put_entry(struct api_stream *s, struct choice *choice,
                      const struct logprob_entry *entry)
{
    (void)s;
    buf_append(&choice->logprobs.tokens, entry, sizeof *entry);
    choice->logprobs.count++;
}

static struct slice shown_bytes(const struct api_stream *s, int32_t token, bool at_start)
{
    if (s->skip_special && tokenizer_is_special(s->model->tokenizer, token))
        return (struct slice){0};
    return stream_token_bytes(s, token, at_start);
}

static bool fill_tops(const struct api_stream *s, const struct logprob_entry *entry,
                      struct arena *arena, Inferd__V1__TokenLogprob *out)
{
    Inferd__V1__TopLogprob **tops = arena_alloc(arena, entry->top_count * sizeof *tops);

    for (uint32_t i = 0; i < entry->top_count; i++) {
        Inferd__V1__TopLogprob *top = arena_alloc(arena, sizeof *top);

        if (!tops || !top) return false;
        inferd__v1__top_logprob__init(top);
        top->has_id = top->has_token = top->has_logprob = true;
        top->id = entry->tops[i].id;
        top->token = proto_bytes(shown_bytes(s, top->id, entry->at_start));
        /* the sampled token has one number wherever it stands */
        top->logprob = top->id == entry->token ? entry->logprob : entry->tops[i].logprob;
        tops[i] = top;
    }
    out->top = tops;
    out->n_top = entry->top_count;
    return true;
}

static bool fill_entries(const struct api_stream *s, struct slice entries, struct arena *arena,
                         Inferd__V1__Chunk *chunk)
{
    size_t count = entries.len / sizeof(struct logprob_entry);
    const struct logprob_entry *list = (const void *)entries.ptr;
    Inferd__V1__TokenLogprob **out = arena_alloc(arena, count * sizeof *out + 1);

    for (size_t i = 0; i < count; i++) {
        Inferd__V1__TokenLogprob *token = arena_alloc(arena, sizeof *token);

        if (!out || !token) return false;
        inferd__v1__token_logprob__init(token);
        token->has_id = token->has_token = token->has_text_offset = true;
        token->id = list[i].token;
        token->token = proto_bytes(shown_bytes(s, token->id, list[i].at_start));
        token->text_offset = list[i].text_offset;
        token->has_logprob = !list[i].no_score;
        token->logprob = list[i].logprob;
        if (!fill_tops(s, &list[i], arena, token)) return false;
        out[i] = token;
    }
    chunk->logprobs = out;
    chunk->n_logprobs = count;
    return true;
}

/* --- chunks --- */

static Inferd__V1__Chunk chunk_of(const struct api_stream *s, uint32_t index, struct slice text)
{
    Inferd__V1__Chunk chunk = INFERD__V1__CHUNK__INIT;

    (void)s;
    chunk.has_index = true;
    chunk.index = index;
    chunk.has_text = text.len > 0;
    chunk.text = proto_bytes(text);
    return chunk;
}

static void add_prompt_ids(struct api_stream *s, uint32_t c, Inferd__V1__Chunk *chunk)
{
    const struct request_prompt *prompt = &s->request->prompts[c / s->best_of];

    if (!s->return_ids || s->choices[c].prompt_ids_sent) return;
    s->choices[c].prompt_ids_sent = true;
    chunk->prompt_token_ids = (int32_t *)(uintptr_t)prompt->ids;
    chunk->n_prompt_token_ids = prompt->count;
}

static void add_token_ids(const struct api_stream *s, struct choice *choice,
                          Inferd__V1__Chunk *chunk)
{
    if (!s->return_ids) return;
    chunk->token_ids = choice->ids.ids;
    chunk->n_token_ids = choice->ids.count;
}

static void add_finish(const struct api_stream *s, const struct choice *choice,
                       Inferd__V1__Chunk *chunk)
{
    chunk->has_finish_reason = true;
    chunk->finish_reason = choice->reason == REASON_LENGTH ? INFERD__V1__FINISH_REASON__LENGTH
                                                           : INFERD__V1__FINISH_REASON__STOP;
    if (choice->reason == REASON_STOP_STRING) {
        chunk->has_stop_text = true;
        chunk->stop_text = proto_bytes(stop_set_string(s->stops, choice->stop_string));
    }
    if (choice->reason == REASON_STOP_ID) {
        chunk->has_stop_token = true;
        chunk->stop_token = choice->stop_id;
    }
}

/* Packs the chunk with the choice's entries, which are then gone. */
static void send_chunk(struct api_stream *s, struct choice *choice, Inferd__V1__Chunk *chunk,
                       struct buf *out)
{
    Inferd__V1__Response response = response_of(s, INFERD__V1__RESPONSE__BODY_CHUNK);
    struct arena arena;

    arena_init(&arena, 0);
    response.chunk = chunk;
    if (fill_entries(s, buf_slice(&choice->logprobs.tokens), &arena, chunk))
        proto_out(&response, out);
    else
        out->failed = STATUS_NOMEM;
    arena_fini(&arena);
    buf_clear(&choice->logprobs.tokens);
    choice->logprobs.count = 0;
}

/* The common chunk of one token, without what only some requests ask for. */
static void put_plain(struct api_stream *s, uint32_t c, struct buf *out)
{
    Inferd__V1__Response response = response_of(s, INFERD__V1__RESPONSE__BODY_CHUNK);
    Inferd__V1__Chunk chunk =
        chunk_of(s, stream_shown_index(s, c), buf_slice(&s->choices[c].released));

    response.chunk = &chunk;
    proto_out(&response, out);
}

static void put_delta(struct api_stream *s, uint32_t c, struct buf *out)
{
    struct choice *choice = &s->choices[c];

    if (!s->logprobs && !s->return_ids) {
        put_plain(s, c, out);
    } else {
        Inferd__V1__Chunk chunk =
            chunk_of(s, stream_shown_index(s, c), buf_slice(&choice->released));

        add_token_ids(s, choice, &chunk);
        add_prompt_ids(s, c, &chunk);
        send_chunk(s, choice, &chunk, out);
        choice->ids.count = 0;
    }
    buf_clear(&choice->released);
}

static void put_finish(struct api_stream *s, uint32_t c, struct buf *out)
{
    struct choice *choice = &s->choices[c];
    Inferd__V1__Chunk chunk = chunk_of(s, stream_shown_index(s, c), (struct slice){0});

    add_token_ids(s, choice, &chunk);
    add_prompt_ids(s, c, &chunk);
    add_finish(s, choice, &chunk);
    send_chunk(s, choice, &chunk, out);
    choice->ids.count = 0;
}

/* The prompt's entries in front of those that have been sampled already. */
static void entries_with_prompt(struct api_stream *s, uint32_t c)
{
    struct choice *choice = &s->choices[c];
    struct buf sampled = choice->logprobs.tokens;

    buf_init(&choice->logprobs.tokens, 0);
    stream_put_prompt_entries(s, c);
    buf_append_slice(&choice->logprobs.tokens, buf_slice(&sampled));
    buf_fini(&sampled);
}

static void put_echo(struct api_stream *s, uint32_t c, struct buf *out)
{
    struct choice *choice = &s->choices[c];
    Inferd__V1__Chunk chunk =
        chunk_of(s, stream_shown_index(s, c), buf_slice(&s->echoes[c / s->best_of].text));

    choice->echo_due = false;
    if (s->logprobs) entries_with_prompt(s, c);
    add_prompt_ids(s, c, &chunk);
    send_chunk(s, choice, &chunk, out);
}

/* --- the end --- */

static void fill_timings(const struct api_stream *s, Inferd__V1__Timings *out)
{
    const struct stage_times *t = &s->request->times;
    struct stage_ledger ledger = stage_ledger(t, clock_mono_ns());

#define PUT(field, value)    \
    out->has_##field = true; \
    out->field = value
    PUT(parse_us, (double)ledger.ns[STAGE_PARSE] * 1e-3);
    PUT(accept_us, (double)ledger.ns[STAGE_ACCEPT] * 1e-3);
    PUT(template_us, (double)ledger.ns[STAGE_TEMPLATE] * 1e-3);
    PUT(tokenize_us, (double)ledger.ns[STAGE_TOKENIZE] * 1e-3);
    PUT(submit_us, (double)ledger.ns[STAGE_SUBMIT] * 1e-3);
    PUT(queue_us, (double)ledger.ns[STAGE_QUEUE] * 1e-3);
    PUT(prefill_us, (double)ledger.ns[STAGE_PREFILL] * 1e-3);
    PUT(decode_us, (double)ledger.ns[STAGE_DECODE] * 1e-3);
    PUT(deliver_us, (double)ledger.ns[STAGE_DELIVER] * 1e-3);
    PUT(total_us, (double)ledger.total_ns * 1e-3);
    PUT(prefill_chunks, t->prefill_chunks);
    PUT(decode_steps, t->decode_steps);
    PUT(preemptions, t->preemptions);
#undef PUT
}

static void put_end(struct api_stream *s, struct buf *out)
{
    Inferd__V1__Response response = response_of(s, INFERD__V1__RESPONSE__BODY_DONE);
    Inferd__V1__Done done = INFERD__V1__DONE__INIT;
    Inferd__V1__Usage usage = INFERD__V1__USAGE__INIT;
    Inferd__V1__Timings timings = INFERD__V1__TIMINGS__INIT;

    usage.has_prompt_tokens = usage.has_completion_tokens = usage.has_cached_tokens = true;
    usage.prompt_tokens = s->request->times.prompt_tokens;
    usage.completion_tokens = api_stream_completion_tokens(s);
    usage.cached_tokens = s->request->times.cached_tokens;
    done.usage = &usage;
    if (s->timings) {
        fill_timings(s, &timings);
        done.timings = &timings;
    }
    response.done = &done;
    proto_out(&response, out);
}

/* --- whole answers --- */

static void put_whole_choice(struct api_stream *s, uint32_t c, uint32_t index, struct buf *out)
{
    struct choice *choice = &s->choices[c];
    struct buf text;

    buf_init(&text, 0);
    if (s->echo) buf_append_slice(&text, buf_slice(&s->echoes[c / s->best_of].text));
    buf_append_slice(&text, buf_slice(&choice->released));
    if (s->logprobs && s->echo) entries_with_prompt(s, c);
    Inferd__V1__Chunk chunk = chunk_of(s, index, buf_slice(&text));

    add_token_ids(s, choice, &chunk);
    add_prompt_ids(s, c, &chunk);
    add_finish(s, choice, &chunk);
    send_chunk(s, choice, &chunk, out);
    if (buf_status(&text)) out->failed = STATUS_NOMEM;
    buf_fini(&text);
}

static void put_whole(struct api_stream *s, struct buf *out)
{
    uint32_t chosen[128], index = 0;

    for (uint32_t p = 0; p < s->request->prompt_count; p++) {
        stream_choose_best(s, p, chosen);
        for (uint32_t i = 0; i < s->n; i++)
            put_whole_choice(s, chosen[i], index++, out);
    }
    put_end(s, out);
}

const struct stream_writer stream_proto_writer = {.start = start,
                                                  .entry = put_entry,
                                                  .begin = put_begin,
                                                  .echo = put_echo,
                                                  .delta = put_delta,
                                                  .finish = put_finish,
                                                  .end = put_end,
                                                  .whole = put_whole,
                                                  .error = put_error};
