/* tokenize.c - `inferd tokenize`: text to ids for a person, and the protocol of JSON lines for programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/shown.h"
#include "cli/check.h"
#include "cli/cli.h"
#include "cli/load.h"
#include "config/config.h"
#include "formats/weights.h"
#include "text/template_line.h"
#include "text/tokenize_lines.h"
#include "text/tokenizer.h"

static enum status answer_lines(const struct tokenizer *tok)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    struct buf out;
    enum status st = STATUS_OK;

    buf_init(&out, 0);
    while (!st && (len = getline(&line, &cap, stdin)) >= 0) {
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            len--;
        st = tokenize_line(tok, slice_of(line, (size_t)len), template_line, NULL, &out);
        fwrite(out.ptr, 1, out.len, stdout);
        fflush(stdout);
        buf_clear(&out);
    }
    buf_fini(&out);
    free(line);
    return st;
}

static void print_tokens(const struct tokenizer *tok, const struct token_list *tokens)
{
    for (size_t i = 0; i < tokens->count; i++) {
        struct slice bytes = tokenizer_token_bytes(tok, tokens->ids[i]);

        printf("%8d  ", tokens->ids[i]);
        shown_put(bytes, false, stdout); /* a part of a character as its bytes */
        putchar('\n');
    }
    printf("%zu token%s\n", tokens->count, plural(tokens->count));
}

static enum status print_text(const struct tokenizer *tok, const struct config *config,
                              struct error *err)
{
    struct token_list tokens = {0};
    struct buf text;

    buf_init(&text, 0);
    for (uint32_t i = 0; i < config->rest.count; i++)
        buf_printf(&text, "%s%s", i ? " " : "", config->rest.items[i]);
    enum status st = tokenizer_encode(
        tok, buf_slice(&text), TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, NULL, 0, &tokens);
    if (st) error_set(err, st, "no memory for the tokens");
    if (!st) print_tokens(tok, &tokens);
    token_list_fini(&tokens);
    buf_fini(&text);
    return st;
}

int cli_tokenize(int argc, char **argv)
{
    struct config config;
    struct error err;
    struct weights *weights = NULL;
    struct tokenizer *tok = NULL;
    char *path = NULL;
    bool lines = false, built_in;
    int kept = 1;
    enum status st = STATUS_OK;

    for (int i = 1; i < argc; i++) { /* --jsonl is this command's own; the rest are options */
        if (strcmp(argv[i], "--jsonl") == 0)
            lines = true;
        else
            argv[kept++] = argv[i];
    }
    if (check_parse(kept, argv, &config)) return 2;
    if (config.help || (!lines && (!config.model || !config.rest.count))) {
        fprintf(config.help ? stdout : stderr,
                "usage: inferd tokenize MODEL TEXT\n       inferd tokenize --jsonl [MODEL]\n");
        st = config.help ? STATUS_OK : STATUS_INVALID;
        config_fini(&config);
        return st ? 2 : 0;
    }
    if (config.model) {
        st = config_resolve_model(config.model, &path, &err);
        if (!st) st = weights_open(path, WEIGHTS_CONFIG_ONLY, &weights, &err);
        if (!st) st = load_tokenizer(&config, weights, &tok, &built_in, &err);
    }
    if (!st && lines && (st = answer_lines(tok))) error_set(&err, st, "no memory for an answer");
    if (!st && !lines) st = print_text(tok, &config, &err);
    tokenizer_close(tok);
    weights_close(weights);
    free(path);
    config_fini(&config);
    return st ? cli_fail(&err) : 0;
}
