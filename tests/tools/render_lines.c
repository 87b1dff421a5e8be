/* render_lines.c - text/template_line.h on standard input and output, for tests/tools/jinja_differential.py. */
#include <stdio.h>
#include <stdlib.h>

#include "text/template_line.h"

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t len;

    while ((len = getline(&line, &room, stdin)) >= 0) {
        json_t *request = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
        json_t *answer = template_line(NULL, request);
        json_dumpf(answer, stdout, JSON_ENSURE_ASCII | JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(answer);
        json_decref(request);
    }
    free(line);
    return 0;
}
