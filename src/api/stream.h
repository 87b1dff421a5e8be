/* stream.h - inside of struct api_stream: the state of each choice between the engine's tokens and the answer's bytes.
 *
 * stream.c decides what has become certain (text, log probability entries, ends); stream_json.c writes it.
 *
 *     token --detok--> certain text --stop--> released text: what may be sent
 *
 * A log probability entry waits until its token's text is known to lie before any stop match: entry.needs counts the
 * released bytes at which that is so. In whole mode "released" collects until the end; in event mode each flush empties it. */
#pragma once

#include "api/api.h"
#include "api/params.h"
#include "text/detok.h"
#include "text/stop.h"

enum {
    STREAM_ANSWER_MAX = 256 << 20
}; /* bytes of a whole answer's parts: beyond it the request is refused */

struct logprob_entry {
    uint64_t needs;       /* released bytes of the choice from which on the entry counts */
    uint32_t text_offset; /* code points of the choice's text before the token */
    int32_t token;
    float logprob;
    uint32_t top_count;
    bool at_start; /* the text began here: the decoder takes a first space */
    bool no_bytes; /* a special token that is left out of the text */
    bool no_score; /* the very first token of an echoed prompt */
    struct top_logprob tops[20];
};

/* Entries as JSON. Chat uses `tokens` alone (whole entries); completions has an array in each. Without brackets. */
struct logprob_json {
    struct buf tokens, numbers, tops, offsets; /* proto: tokens holds the entries themselves */
    uint32_t count;
};

enum choice_reason { REASON_NONE, REASON_EOS, REASON_STOP_ID, REASON_STOP_STRING, REASON_LENGTH };

struct choice {
    struct detok detok;
    struct stop_state stop;
    struct buf released; /* text not yet sent */
    struct logprob_json logprobs;
    struct token_list ids;         /* sampled ids not yet sent, with return_token_ids */
    struct logprob_entry *waiting; /* [waiting_count] entries in order */
    uint32_t waiting_count, waiting_cap;
    uint64_t certain_bytes;  /* text given out by detok, in all */
    uint64_t released_bytes; /* text given out by stop, in all */
    uint32_t text_chars;     /* code points of the text so far: echoed prompt and certain_bytes */
    uint32_t tokens;         /* sampled tokens that count */
    double logprob_sum;
    enum choice_reason reason; /* not NONE: nothing more comes of it */
    int32_t stop_id;           /* REASON_STOP_ID */
    uint32_t stop_string;      /* REASON_STOP_STRING: index in the set */
    bool finished;             /* the engine has said so */
    bool dirty, finish_sent, echo_due, prompt_ids_sent;
};

struct echo_text { /* of one prompt */
    struct buf text;
    uint32_t chars;
    bool from_ids;
    bool scored; /* OUTPUT_PROMPT_SCORED has come */
};

struct api_stream;
/* How certain text, entries and ends become bytes: JSON (stream_json.c) or ZeroMQ's messages (stream_proto.c). */
struct stream_writer {
    void (*start)(struct api_stream *stream); /* once the request is whole */
    void (*entry)(struct api_stream *stream, struct choice *choice,
                  const struct logprob_entry *entry);
    void (*begin)(struct api_stream *stream, struct buf *out); /* before the first token */
    void (*echo)(struct api_stream *stream, uint32_t c, struct buf *out);
    void (*delta)(struct api_stream *stream, uint32_t c, struct buf *out);
    void (*finish)(struct api_stream *stream, uint32_t c, struct buf *out);
    void (*end)(struct api_stream *stream, struct buf *out); /* usage, [DONE] */
    void (*whole)(struct api_stream *stream, struct buf *out);
    void (*error)(const struct api_stream *stream, const struct api_fault *fault, bool event,
                  struct buf *out);
};
extern const struct stream_writer stream_json_writer, stream_proto_writer;

struct api_stream {
    const struct api_model *model;
    const struct stream_writer *writer;
    uint64_t message_id;     /* proto */
    char request_id[132];    /* proto */
    struct request *request; /* a reference */
    enum api_route route;
    int64_t created;
    uint32_t n, best_of, choice_count; /* choice_count: prompts * best_of */
    uint32_t min_tokens, top_logprobs;
    bool sse, include_usage, echo, logprobs, return_ids, ids_as_tokens, timings, metrics;
    bool include_stop, skip_special, ignore_eos, continues;
    struct stop_set *stops; /* NULL: none */
    int32_t *stop_ids;      /* stop_token_ids, [stop_id_count] */
    uint32_t stop_id_count;
    struct echo_text *echoes; /* [prompt_count] with echo */
    struct choice *choices;   /* [choice_count] */
    uint32_t *dirty; /* [choice_count], the first dirty_count are choices with something new */
    uint32_t dirty_count, finished_count;
    struct buf head;        /* the start of every event, up to "choices": */
    struct buf scratch;     /* a token's text */
    uint64_t held_bytes;    /* whole mode: size of the parts so far */
    struct api_fault fault; /* http_status 0: none */
    bool closed;            /* [DONE] has been written */
};

/* Takes a reference to request. continues: the text goes on from the prompt's, so its first space stays. The echo
 * texts are filled by the caller (api_open.c) before api_stream_start. NULL: no memory. */
struct api_stream *stream_create(const struct api_model *model, enum api_route route,
                                 const struct params *params, struct request *request,
                                 bool continues);
/* After the echo texts are there. */
enum status stream_start(struct api_stream *stream);

/* --- stream_json.c --- */
/* Text and log probability entries of a prompt's tokens, for echo, as the choice's own. */
void stream_put_prompt_entries(struct api_stream *stream, uint32_t c);
/* The index that the client sees: candidates beyond n are never in a stream. */
uint32_t stream_shown_index(const struct api_stream *stream, uint32_t c);
/* The bytes that a token adds to the text, or would add in its place. */
struct slice stream_token_bytes(const struct api_stream *stream, int32_t token, bool at_start);
/* The n best candidates of a prompt, best first; of equal ones the first. chosen: [n]. */
void stream_choose_best(const struct api_stream *stream, uint32_t prompt, uint32_t *chosen);
