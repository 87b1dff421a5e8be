/* docs.c - pages that are made from the program itself. */
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
    fprintf(stderr, "usage: inferd docs configuration|man\n");
    return 2;
}
