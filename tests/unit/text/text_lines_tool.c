/* text_lines_tool.c - the line protocol of text/tokenize_lines.h on stdin, without the daemon
 * around it.
 *
 * usage: text_lines_tool PATH. For tests/tools/compare_tokenizers.py. */
#include <stdio.h>
#include <stdlib.h>

#include "formats/weights.h"
#include "text/tokenize_lines.h"

int main(int argc, char **argv)
{
    struct weights *weights = NULL;
    struct tokenizer *tok = NULL;
    struct error err;
    struct buf out;
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;

    if (argc != 2) return 2;
    enum status st = weights_open(argv[1], WEIGHTS_CONFIG_ONLY, &weights, &err);
    if (!st) st = tokenizer_open(weights, &tok, &err);
    weights_close(weights);
    if (st) {
        fprintf(stderr, "%s: %s\n", status_name(st), err.message);
        return 1;
    }
    fprintf(stderr, "%s\n", tokenizer_description(tok));
    buf_init(&out, 0);
    while (!st && (len = getline(&line, &cap, stdin)) > 0) {
        if (line[len - 1] == '\n') len--;
        buf_clear(&out);
        st = tokenize_line(tok, slice_of(line, (size_t)len), NULL, NULL, &out);
        fwrite(out.ptr, 1, out.len, stdout);
        fflush(stdout); /* the asker waits for each answer */
    }
    buf_fini(&out);
    free(line);
    tokenizer_close(tok);
    return st != STATUS_OK;
}
