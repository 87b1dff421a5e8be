/* docs.c - pages that are made from the program itself. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "config/config.h"

int cli_docs(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "configuration") == 0) {
        config_print_markdown(stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "man") == 0) {
        config_print_man(stdout, INFERD_VERSION);
        return 0;
    }
    bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);

    fprintf(help ? stdout : stderr, "usage: inferd docs configuration|man\n");
    return help ? 0 : 2;
}
