/* keygen.c - `inferd keygen`: a pair of CURVE keys for ZeroMQ. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "frontend/frontend.h"

int cli_keygen(int argc, char **argv)
{
    char public_text[ZMQ_KEY_TEXT + 1], secret_text[ZMQ_KEY_TEXT + 1];

    if (argc > 1) {
        bool help = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;

        fprintf(
            help ? stdout : stderr,
            "usage: inferd keygen\nTwo lines: the public key, and the secret one, which goes into "
            "--zmq-server-key-file or stays with the client.\n");
        return help ? 0 : 2;
    }
    struct error err;

    if (frontend_make_zmq_keys(public_text, secret_text, &err)) return cli_fail(&err);
    printf("public %s\nsecret %s\n", public_text, secret_text);
    explicit_bzero(secret_text, sizeof secret_text);
    return 0;
}
