/* zmq_client.c - a ZeroMQ client of inferd in C: goes on with a text, printed as it comes.
 *
 *     cc -Iinclude examples/zmq_client.c -Lbuild/release/src/client -linferd-client -lzmq -lprotobuf-c -o zmq_client
 *     inferd serve MODEL --zmq-listen tcp://127.0.0.1:5555
 *     ./zmq_client tcp://127.0.0.1:5555 "Once upon a time"
 *
 * INFERD_API_KEY, INFERD_SERVER_KEY and INFERD_CLIENT_SECRET in the environment: the keys, where the server asks for them. */
#include <inferd/client.h>

#include <stdio.h>
#include <stdlib.h>

static int on_event(void *ctx, const struct inferd_event *event)
{
    (void)ctx;
    if (event->kind == INFERD_CHUNK) {
        fwrite(event->text, 1, event->text_len, stdout);
        fflush(stdout);
    } else if (event->kind == INFERD_DONE) {
        fprintf(stderr, "\n[%u tokens in, %u out]\n", event->prompt_tokens,
                event->completion_tokens);
    }
    return 0; /* go on */
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: zmq_client ENDPOINT PROMPT [MAX_TOKENS]\n");
        return 2;
    }
    struct inferd_client_options options = {.endpoint = argv[1],
                                            .api_key = getenv("INFERD_API_KEY"),
                                            .server_key = getenv("INFERD_SERVER_KEY"),
                                            .secret_key = getenv("INFERD_CLIENT_SECRET")};
    struct inferd_client *client;
    struct inferd_error error;
    struct inferd_generate generate;

    if (inferd_client_open(&options, &client, &error)) {
        fprintf(stderr, "zmq_client: %s\n", error.message);
        return 1;
    }
    inferd_generate_init(&generate);
    generate.prompt = argv[2];
    generate.max_tokens = argc == 4 ? atoi(argv[3]) : 64;
    generate.stream = true;
    int status = inferd_client_generate(client, &generate, on_event, NULL, 60000, &error);

    if (status) fprintf(stderr, "zmq_client: %s %s\n", error.code, error.message);
    inferd_client_close(client);
    return status != INFERD_OK;
}
