/* text_bench.c - times of the text path alone: tokenizing, a short prompt, a streamed token.
 *
 *     text-bench encode MODEL FILE THREADS   every document of FILE (they end with a NUL byte) for the first time with a
 *                                            newly opened tokenizer, then all of them again; thread t takes the
 *                                            documents t, t + THREADS, ...
 *     text-bench prompt MODEL FILE CHARS     a system prompt of CHARS characters in ChatML: first time and again
 *     text-bench stream MODEL FILE           detokenising and SSE encoding of the tokens of FILE, one event each
 *     text-bench machine                     how much more two cores do than one here, with nothing shared: the limit of
 *                                            any factor of two threads
 * Prints one JSON object. compare_tokenizers.py runs it beside other libraries. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "base/clock.h"
#include "formats/weights.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum { THREADS_MAX = 64, PROMPTS_MAX = 2000 };

static void fail(const char *what)
{
    fprintf(stderr, "text-bench: %s\n", what);
    exit(1);
}

static int64_t cpu_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- documents --- */

struct documents {
    struct slice *at; /* owned; the bytes are the file's */
    size_t count, bytes;
};

static struct documents read_documents(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct documents docs = {0};
    size_t cap = 0, room = 0, len = 0, got;
    char *text = NULL;

    if (!file) fail("the text cannot be read");
    do {
        if (room - len < 1 << 16) text = realloc(text, room = 2 * room + (1 << 17));
        if (!text) fail("no memory");
        len += got = fread(text + len, 1, room - len, file);
    } while (got);
    fclose(file);
    for (char *p = text, *end = text + len, *nul; p < end; p = nul + 1) {
        nul = memchr(p, 0, (size_t)(end - p));
        if (!nul) nul = end;
        if (docs.count == cap) docs.at = realloc(docs.at, (cap = 2 * cap + 64) * sizeof *docs.at);
        if (!docs.at) fail("no memory");
        docs.at[docs.count++] = slice_of(p, (size_t)(nul - p));
        docs.bytes += (size_t)(nul - p);
    }
    if (!docs.count) fail("the file has no text");
    return docs; /* the text stays until the program ends */
}

/* --- encode --- */

struct pass {
    const struct tokenizer *tok;
    const struct documents *docs;
    size_t first, step;
    size_t tokens;    /* result */
    uint64_t sum;     /* result: of all ids, so that two programs can compare */
    int64_t spent_ns; /* result: CPU time of the thread */
};

static void *run_part(void *arg)
{
    struct pass *p = arg;
    struct token_list ids = {0};
    int64_t begin = cpu_ns(CLOCK_THREAD_CPUTIME_ID);

    for (size_t i = p->first; i < p->docs->count; i += p->step) {
        ids.count = 0;
        if (tokenizer_encode(p->tok, p->docs->at[i], TOKENIZE_PARSE_SPECIAL, NULL, 0, &ids))
            fail("a text could not be tokenised");
        p->tokens += ids.count;
        for (size_t k = 0; k < ids.count; k++)
            p->sum += (uint64_t)ids.ids[k] * (k + 1);
    }
    p->spent_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
    token_list_fini(&ids);
    return NULL;
}

static void run_pass(const char *name, const struct tokenizer *tok, const struct documents *docs,
                     unsigned threads)
{
    struct pass parts[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    size_t tokens = 0;
    uint64_t sum = 0;
    int64_t spent = 0, begin = clock_mono_ns();

    for (unsigned t = 0; t < threads; t++) {
        parts[t] = (struct pass){.tok = tok, .docs = docs, .first = t, .step = threads};
        if (t && pthread_create(&ids[t], NULL, run_part, &parts[t])) fail("no thread");
    }
    run_part(&parts[0]);
    for (unsigned t = 1; t < threads; t++)
        pthread_join(ids[t], NULL);
    int64_t wall = clock_mono_ns() - begin;
    for (unsigned t = 0; t < threads; t++) {
        tokens += parts[t].tokens;
        sum += parts[t].sum;
        spent += parts[t].spent_ns;
    }
    printf("\"%s_s\":%.9f,\"%s_cpu_s\":%.9f,\"tokens\":%zu,\"sum\":%llu", name, (double)wall / 1e9,
           name, (double)spent / 1e9, tokens, (unsigned long long)sum);
}

static void run_encode(const struct tokenizer *tok, const struct documents *docs, unsigned threads)
{
    if (threads < 1 || threads > THREADS_MAX) fail("THREADS must be 1 to 64");
    printf("{\"bytes\":%zu,", docs->bytes);
    run_pass("first", tok, docs, threads);
    printf(",");
    run_pass("again", tok, docs, threads);
    printf("}\n");
}

/* --- prompt --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Microseconds of one call. */
static double time_encode(const struct tokenizer *tok, struct slice text, struct token_list *ids)
{
    int64_t begin = clock_mono_ns();

    ids->count = 0;
    if (tokenizer_encode(tok, text, TOKENIZE_PARSE_SPECIAL, NULL, 0, ids)) fail("no tokens");
    return (double)(clock_mono_ns() - begin) / 1e3;
}

/* Prompt i is the ChatML of the first `chars` bytes of document i; nothing of it was seen before. The first one warms
 * the code up and counts nowhere. */
static void run_prompt(const struct tokenizer *tok, const struct documents *docs, unsigned chars)
{
    static double unseen[PROMPTS_MAX], seen[PROMPTS_MAX];
    struct token_list ids = {0};
    size_t n = 0;

    for (size_t i = 0; i < docs->count && n < PROMPTS_MAX; i++) {
        char text[512];
        if (docs->at[i].len < chars || chars > 256) continue;
        int len = snprintf(text, sizeof text, "<|im_start|>system\n%.*s<|im_end|>\n", (int)chars,
                           docs->at[i].ptr);
        unseen[n] = time_encode(tok, slice_of(text, (size_t)len), &ids);
        seen[n] = time_encode(tok, slice_of(text, (size_t)len), &ids);
        n += i != 0;
    }
    if (!n) fail("no document is long enough");
    qsort(unseen, n, sizeof *unseen, by_value);
    qsort(seen, n, sizeof *seen, by_value);
    printf("{\"prompts\":%zu,\"unseen_us\":%.3f,\"unseen_p99_us\":%.3f,\"seen_us\":%.3f,\"seen_p99_"
           "us\":%.3f}\n",
           n, unseen[n / 2], unseen[n - 1 - n / 100], seen[n / 2], seen[n - 1 - n / 100]);
    token_list_fini(&ids);
}

/* --- stream --- */

static struct api_answer open_stream(const struct api_model *model)
{
    static const char body[] = "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":1000000}";
    struct api_client client = {0};
    struct api_answer answer = {0};

    api_open(model, API_COMPLETIONS, API_READY, slice_str(body), &client, &answer);
    if (answer.kind != API_GENERATE) fail(answer.fault.message);
    return answer;
}

static void run_stream(const struct tokenizer *tok, const struct chat *chat,
                       const struct documents *docs)
{
    static const char *const names[] = {"bench"};
    struct api_model model = {.names = names,
                              .name_count = 1,
                              .tokenizer = tok,
                              .chat = chat,
                              .context_tokens = 2000000,
                              .vocab_size = tokenizer_vocab_size(tok),
                              .stop_ids_max = 160,
                              .bias_max = 1024,
                              .sequences_max = 512,
                              .fingerprint = "fp_bench"};
    struct api_answer answer;
    struct api_ended ended;
    struct token_list ids = {0};
    struct buf out;
    size_t bytes = 0;

    api_model_prepare(&model);
    for (size_t i = 0; i < docs->count; i++)
        if (tokenizer_encode(tok, docs->at[i], 0, NULL, 0, &ids)) fail("no tokens");
    answer = open_stream(&model);
    buf_init(&out, 0);
    api_stream_begin(answer.stream, &out);
    int64_t begin = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < ids.count; i++) {
        struct output token = {.kind = OUTPUT_TOKEN, .token = ids.ids[i], .index = (uint32_t)i};
        buf_clear(&out);
        api_stream_push(answer.stream, &token, &ended);
        api_stream_flush(answer.stream, &out);
        bytes += out.len;
    }
    int64_t spent = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
    printf("{\"tokens\":%zu,\"bytes\":%zu,\"us_per_token\":%.4f}\n", ids.count, bytes,
           (double)spent / 1e3 / (double)ids.count);
    buf_fini(&out);
    token_list_fini(&ids);
    api_stream_destroy(answer.stream);
    request_unref(answer.request);
}

static int by_factor(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* --- the machine's own factor --- */

enum { PROBE_WORDS = 1 << 18, PROBES = 60000000 };

/* Dependent look-ups in 1 MiB of the thread's own, with branches that nobody foretells: a tokenizer's kind of work. */
static void *probe(void *words)
{
    const uint32_t *at = words;
    uint64_t state = 88172645463325252u, sum = 0;

    for (int i = 0; i < PROBES; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint32_t v = at[(state + sum) & (PROBE_WORDS - 1)];
        if (v & 1)
            sum += v;
        else
            sum ^= state;
    }
    return (void *)(uintptr_t)(sum & 1);
}

static void run_machine(void)
{
    uint32_t *words[2];
    double factors[5];

    for (int k = 0; k < 2; k++) {
        words[k] = malloc(PROBE_WORDS * sizeof *words[k]);
        if (!words[k]) fail("no memory");
        for (int i = 0; i < PROBE_WORDS; i++)
            words[k][i] = (uint32_t)rand();
    }
    for (int r = 0; r < 5; r++) {
        pthread_t threads[2];
        int64_t begin = clock_mono_ns();
        probe(words[0]);
        int64_t middle = clock_mono_ns();

        for (int k = 0; k < 2; k++)
            if (pthread_create(&threads[k], NULL, probe, words[k])) fail("no thread");
        for (int k = 0; k < 2; k++)
            pthread_join(threads[k], NULL);
        factors[r] = 2 * (double)(middle - begin) / (double)(clock_mono_ns() - middle);
    }
    qsort(factors, 5, sizeof *factors, by_factor);
    printf("{\"least\":%.2f,\"median\":%.2f,\"most\":%.2f}\n", factors[0], factors[2], factors[4]);
    free(words[0]);
    free(words[1]);
}

int main(int argc, char **argv)
{
    struct weights *weights = NULL;
    struct tokenizer *tok = NULL;
    struct chat *chat = NULL;
    struct error err;

    if (argc == 2 && strcmp(argv[1], "machine") == 0) {
        run_machine();
        return 0;
    }
    if (argc < 4)
        fail("usage: encode MODEL FILE THREADS | prompt MODEL FILE CHARS | stream MODEL FILE | "
             "machine");
    if (weights_open(argv[2], WEIGHTS_CONFIG_ONLY, &weights, &err) ||
        tokenizer_open(weights, &tok, &err) ||
        chat_open(weights, tok, slice_of(NULL, 0), &chat, &err))
        fail(err.message);
    struct documents docs = read_documents(argv[3]);
    if (strcmp(argv[1], "encode") == 0)
        run_encode(tok, &docs, argc > 4 ? (unsigned)atoi(argv[4]) : 1);
    else if (strcmp(argv[1], "prompt") == 0)
        run_prompt(tok, &docs, argc > 4 ? (unsigned)atoi(argv[4]) : 20);
    else if (strcmp(argv[1], "stream") == 0)
        run_stream(tok, chat, &docs);
    else
        fail("encode, prompt or stream");
    free(docs.at);
    chat_close(chat);
    weights_close(weights);
    tokenizer_close(tok);
    return 0;
}
