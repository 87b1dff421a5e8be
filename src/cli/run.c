/* run.c - `inferd run MODEL [PROMPT]`: one answer, or a chat, in the terminal.
 *
 * The same engine and device as the daemon's, without HTTP: this thread is the output side of its own requests. Ctrl-C ends
 * the answer, the end of input (Ctrl-D) the chat. */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "base/log.h"
#include "base/shown.h"
#include "cli/check.h"
#include "cli/cli.h"
#include "cli/load.h"
#include "text/detok.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static void watch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};

    sigaction(SIGINT, &action, NULL);
}

struct session {
    struct loaded loaded;
    const struct config *config;
    struct output_bell bell;
    json_t *messages;
};

/* The conversation so far as a request with one choice. */
static enum status make_request(struct session *s, struct request **out, struct error *err)
{
    struct token_list tokens = {0};
    struct chat_request chat = {
        .messages = s->messages, .add_generation_prompt = true, .now = clock_wall_s()};
    uint32_t context = s->loaded.limits.context_tokens;
    enum status st = chat_encode(s->loaded.chat, &chat, &tokens, NULL, err);

    if (!st && tokens.count >= context)
        st =
            error_set(err, STATUS_INVALID, "the conversation has %zu token%s; the context holds %u",
                      tokens.count, plural(tokens.count), context);
    struct request *r = st ? NULL : request_create((uint64_t)tokens.count * 8 + (1 << 20));
    if (r) {
        struct request_prompt *prompt = arena_alloc(&r->arena, sizeof *prompt);
        int32_t *ids = arena_alloc(&r->arena, tokens.count * sizeof *ids);
        memcpy(ids, tokens.ids, tokens.count * sizeof *ids);
        *prompt = (struct request_prompt){ids, (uint32_t)tokens.count};
        snprintf(r->id, sizeof r->id, "run-%lld", (long long)clock_mono_ns());
        r->prompts = prompt;
        r->prompt_count = r->best_of = 1;
        r->sampling = (struct request_sampling){
            .temperature = (float)s->config->temperature, .top_p = 1, .repetition_penalty = 1};
        if (getrandom(&r->sampling.seed, sizeof r->sampling.seed, 0) < 0)
            r->sampling.seed = (uint64_t)clock_mono_ns();
        r->max_tokens = context - prompt->count;
        if (s->config->max_tokens && s->config->max_tokens < r->max_tokens)
            r->max_tokens = (uint32_t)s->config->max_tokens;
        uint32_t eos_count;
        r->stop_ids = tokenizer_eos_list(s->loaded.tokenizer, &eos_count);
        r->stop_id_count = eos_count;
        r->bell = &s->bell;
        r->ring = output_ring_create(256, 0);
    }
    if (!st && (!r || !r->ring)) {
        st = error_set(err, STATUS_NOMEM, "no memory for the request");
        if (r) request_unref(r);
    }
    token_list_fini(&tokens);
    if (!st) *out = r;
    return st;
}

static void show(struct buf *text, struct buf *answer)
{
    if (isatty(STDOUT_FILENO))
        shown_put(buf_slice(text), true, stdout); /* a model may say anything */
    else if (text->len)                           /* nothing yet of a character in parts */
        fwrite(text->ptr, 1, text->len, stdout);
    fflush(stdout);
    buf_append_slice(answer, buf_slice(text));
    buf_clear(text);
}

/* Prints outputs until the choice has ended. */
static enum status print_answer(struct session *s, struct request *r, struct buf *answer,
                                uint32_t *tokens, struct error *err)
{
    struct pollfd bell = {.fd = s->bell.event_fd, .events = POLLIN};
    struct detok detok;
    struct buf text;
    struct output out;
    bool done = false;
    enum status st = STATUS_OK;

    detok_init(&detok, s->loaded.tokenizer, true);
    buf_init(&text, 0);
    while (!done) {
        uint64_t rings;
        if (poll(&bell, 1, 100) > 0 && read(bell.fd, &rings, sizeof rings) < 0 && errno != EAGAIN)
            break;
        for (struct request *listed = output_bell_take(&s->bell), *next; listed; listed = next) {
            next = output_bell_next(listed);
            request_unref(listed);
        }
        while (!done && output_ring_pop(r->ring, &out) == STATUS_OK) {
            if (out.kind == OUTPUT_TOKEN) {
                ++*tokens;
                detok_push(&detok, out.token, &text);
            } else if (out.kind == OUTPUT_ERROR) {
                st = error_set(err, out.status, "%s", out.error);
                done = true;
            } else if (out.kind == OUTPUT_FINISHED) {
                done = true;
            }
        }
        show(&text, answer);
        if (interrupted && !done) {
            engine_cancel(s->loaded.engine, r);
            done = true;
        }
    }
    detok_flush(&detok, &text);
    show(&text, answer);
    buf_fini(&text);
    return st;
}

static enum status add_message(struct session *s, const char *role, const char *text, size_t len,
                               struct error *err)
{
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", text, len);

    if (!message)
        return error_set(err, STATUS_INVALID, "the %s prompt is not valid UTF-8; it must be", role);
    json_array_append_new(s->messages, message);
    return STATUS_OK;
}

/* One turn: the user's words in, the model's out. */
static enum status turn(struct session *s, const char *words, size_t len, struct error *err)
{
    struct request *r = NULL;
    struct buf answer;
    uint32_t retry, tokens = 0;
    int64_t from = clock_mono_ns();
    enum status st = add_message(s, "user", words, len, err);

    if (st) return st;
    st = make_request(s, &r, err);
    if (!st) st = engine_submit(s->loaded.engine, r, &retry, err);
    buf_init(&answer, 0);
    if (!st) st = print_answer(s, r, &answer, &tokens, err);
    if (!st) {
        double seconds = (double)(clock_mono_ns() - from) * 1e-9;
        putchar('\n');
        json_array_append_new(s->messages, json_pack("{s:s, s:s%}", "role", "assistant", "content",
                                                     answer.ptr ? answer.ptr : "", answer.len));
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\033[2m%u token%s in, %u out, %.1f tokens/s\033[0m\n",
                    r->prompts[0].count, plural(r->prompts[0].count), tokens, tokens / seconds);
    }
    if (st)
        json_array_remove(s->messages, json_array_size(s->messages) - 1); /* the turn never was */
    if (r) request_unref(r);
    buf_fini(&answer);
    return st;
}

/* Reads turns from the terminal until its end. A fault of one turn is shown and the chat goes on. */
static void chat_loop(struct session *s)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    struct error err;
    bool tty = isatty(STDIN_FILENO);

    if (tty)
        fprintf(stderr, "Chat with %s. Ctrl-C ends an answer, Ctrl-D the chat.\n", s->loaded.name);
    for (;;) {
        if (tty) fputs("\n> ", stderr);
        interrupted = 0;
        if ((len = getline(&line, &cap, stdin)) < 0) {
            if (errno != EINTR || !interrupted || feof(stdin)) break;
            clearerr(stdin);
            continue;
        }
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            line[--len] = '\0';
        if (len > 0 && turn(s, line, (size_t)len, &err)) cli_fail(&err);
    }
    free(line);
    if (tty) fputc('\n', stderr);
}

/* The words of the command line, or of --prompt-file; NULL: a chat. The caller frees. */
static enum status prompt_text(const struct config *config, char **out, uint64_t *len,
                               struct error *err)
{
    struct buf words;

    *out = NULL;
    if (config->prompt_file) return file_read(config->prompt_file, 16 << 20, out, len, err);
    if (!config->rest.count) return STATUS_OK;
    buf_init(&words, 0);
    for (uint32_t i = 0; i < config->rest.count; i++)
        buf_printf(&words, "%s%s", i ? " " : "", config->rest.items[i]);
    *out = strdup(buf_cstr(&words));
    *len = words.len;
    buf_fini(&words);
    return *out ? STATUS_OK : error_set(err, STATUS_NOMEM, "no memory for the prompt");
}

int cli_run(int argc, char **argv)
{
    struct config config;
    struct session s = {.config = &config, .bell.event_fd = -1};
    struct error err;
    char *prompt = NULL;
    uint64_t prompt_len = 0;
    enum status st = STATUS_OK;

    if (check_parse(argc, argv, &config)) return 2;
    if (config.help || !config.model) {
        int status = config.help ? 0 : 2;
        fprintf(config.help ? stdout : stderr,
                "usage: inferd run MODEL [options] [PROMPT]   (--help lists the options)\n");
        if (config.help) config_print_help(stdout);
        config_fini(&config);
        return status;
    }
    if (config.prompt_file && config.rest.count) {
        config_fini(&config);
        error_set(&err, STATUS_INVALID,
                  "the prompt is given twice: by --prompt-file and by words; one is enough");
        return cli_fail(&err) + 1;
    }
    log_set_level(config_given(&config, "log_level") && strcmp(config.log_level, "debug") == 0
                      ? LOG_DEBUG
                      : LOG_WARN);
    s.messages = json_array();
    if (config.system_prompt)
        st = add_message(&s, "system", config.system_prompt, strlen(config.system_prompt), &err);
    if (!st) st = prompt_text(&config, &prompt, &prompt_len, &err);
    if (!st && output_bell_init(&s.bell))
        st = error_set(&err, STATUS_IO, "no event descriptor: %s", strerror(errno));
    if (!st) st = load_open(&config, &s.loaded, &err);
    if (!st) watch_interrupts(); /* before, Ctrl-C ends the program: a model may load for long */
    if (!st && prompt) st = turn(&s, prompt, prompt_len, &err);
    if (!st && !prompt) chat_loop(&s);
    load_close(&s.loaded);
    if (s.bell.event_fd >= 0) output_bell_fini(&s.bell);
    json_decref(s.messages);
    free(prompt);
    config_fini(&config);
    return st ? cli_fail(&err) : 0;
}
