/* mini_daemon.c - the front end over the null device, without cli: usage mini_daemon MODEL PORT [OPTION=VALUE ...].
 *
 * For tests of src/frontend and src/api alone, under sanitizers too. Options: step_us, io, text, keys (with commas),
 * body (bytes), header_s, body_s, idle_s, stall_s, load_until (a file: "loading" lasts until it is there), queue, seqs, context, uds,
 * zmq (an endpoint), zmq_key, zmq_clients (files). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/device.h"
#include "engine/engine.h"
#include "formats/weights.h"
#include "frontend/frontend.h"
#include "text/chat.h"
#include "text/tokenizer.h"

static int arg_count;
static char **args;

static const char *text_option(const char *name, const char *otherwise)
{
    size_t len = strlen(name);

    for (int i = 3; i < arg_count; i++)
        if (strncmp(args[i], name, len) == 0 && args[i][len] == '=') return args[i] + len + 1;
    return otherwise;
}

static uint32_t option(const char *name, uint32_t otherwise)
{
    const char *text = text_option(name, NULL);

    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void must(enum status st, const struct error *err)
{
    if (!st) return;
    fprintf(stderr, "mini_daemon: %s: %s\n", status_name(st), err->message);
    exit(1);
}

static void pause_ms(uint32_t ms)
{
    nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

static volatile sig_atomic_t stop_count;

static void on_signal(int signal_number)
{
    (void)signal_number;
    stop_count = stop_count + 1;
}

static const char *const *split_keys(uint32_t *count)
{
    static const char *keys[8];
    char *text = strdup(text_option("keys", ""));

    *count = 0;
    for (char *key = strtok(text, ","); key && *count < 8; key = strtok(NULL, ","))
        keys[(*count)++] = key;
    return keys;
}

static struct frontend *start_frontend(void)
{
    struct frontend_options options = {.host = "127.0.0.1",
                                       .port = (uint16_t)atoi(args[2]),
                                       .uds = text_option("uds", NULL),
                                       .cors = option("cors", 1),
                                       .web_page = option("web_page", 1),
                                       .connections_max = option("connections", 4096),
                                       .body_bytes_max = option("body", 16777216),
                                       .header_timeout_s = option("header_s", 60),
                                       .body_timeout_s = option("body_s", 0),
                                       .idle_timeout_s = option("idle_s", 75),
                                       .client_stall_s = option("stall_s", 60),
                                       .io_threads = option("io", 1),
                                       .text_threads = option("text", 1),
                                       .version = "0.1.0"};
    struct frontend *frontend;
    struct error err;

    options.api_keys = split_keys(&options.api_key_count);
    static const char *endpoint;

    endpoint = text_option("zmq", NULL);
    options.zmq_endpoints = &endpoint;
    options.zmq_endpoint_count = endpoint != NULL;
    options.zmq_server_key_file = text_option("zmq_key", NULL);
    options.zmq_client_keys_file = text_option("zmq_clients", NULL);
    must(frontend_start(&options, &frontend, &err), &err);
    return frontend;
}

static void drain(struct frontend *frontend)
{
    int64_t until = clock_mono_ns() + (int64_t)option("drain_ms", 30000) * 1000000;

    frontend_refuse(frontend);
    frontend_drain(frontend);
    while (frontend_busy(frontend) && clock_mono_ns() < until && stop_count < 2)
        pause_ms(10);
}

int main(int argc, char **argv)
{
    struct error err;
    struct weights *weights;
    struct tokenizer *tok;
    struct chat *chat;
    struct device *device;
    struct engine *engine;

    if (argc < 3) return 2;
    arg_count = argc;
    args = argv;
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    struct frontend *frontend = start_frontend();

    printf("listening port=%u\n", frontend_port(frontend));
    fflush(stdout);
    must(weights_open(argv[1], 0, &weights, &err), &err);
    must(tokenizer_open(weights, &tok, &err), &err);
    must(chat_open(weights, tok, (struct slice){0}, &chat, &err), &err);
    uint32_t context = option("context", 2048), seqs = option("seqs", 128);
    struct plan plan = {.arch = "null",
                        .vocab_rows = tokenizer_vocab_size(tok),
                        .vocab_tokens = tokenizer_vocab_size(tok),
                        .context_tokens = context,
                        .group_count = 1};
    plan.groups[0] = (struct plan_kv_group){.layers = 1, .block_tokens = 16};
    struct device_limits limits = {.slots_max = seqs,
                                   .rows_max = 512,
                                   .logits_max = 512,
                                   .steps_inflight = 2,
                                   .context_tokens = context,
                                   .top_logprobs_max = 20,
                                   .kv_blocks = {option("blocks", seqs * context / 16)},
                                   .bias_max = 1024,
                                   .banned_max = 160};
    struct device_options device_options = {.kind = DEVICE_NULL,
                                            .null_step_us = option("step_us", 0)};
    must(device_open(&device_options, &device, &err), &err);
    must(device_compile(device, &plan, &limits, &err), &err);
    struct engine_options engine_options = {.max_num_seqs = seqs,
                                            .max_num_batched_tokens = 512,
                                            .queue_seqs_max = option("queue", 512),
                                            .queue_tokens_max = 4194304,
                                            .client_stall_ms = option("stall_s", 60) * 1000,
                                            .context_tokens = context};
    must(engine_create(&engine_options, device, &plan, &limits, &engine, &err), &err);
    const char *names[] = {"smollm2", "alias/smollm2"};
    struct api_model model = {.names = names,
                              .name_count = 2,
                              .created = clock_wall_s(),
                              .tokenizer = tok,
                              .chat = chat,
                              .context_tokens = context,
                              .vocab_size = tokenizer_vocab_size(tok),
                              .stop_ids_max = limits.banned_max,
                              .bias_max = limits.bias_max,
                              .sequences_max = 512,
                              .fingerprint = "fp_null",
                              .no_logits = true};
    const char *loaded = text_option("load_until", NULL);

    while (loaded && !stop_count && access(loaded, F_OK))
        pause_ms(10);
    if (!stop_count) must(frontend_set_ready(frontend, engine, &model, &err), &err);
    while (!stop_count) {
        engine_probe(engine);
        pause_ms(500); /* or until the signal */
    }
    drain(frontend);
    frontend_stop(frontend);
    engine_destroy(engine);
    device_close(device);
    chat_close(chat);
    tokenizer_close(tok);
    weights_close(weights);
    return 0;
}
