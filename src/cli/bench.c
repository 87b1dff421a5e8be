/* bench.c - `inferd bench WHAT`: the measuring programs, one name each. */
#include <stdio.h>
#include <string.h>

#include "bench/device_bench.h"
#include "cli/cli.h"

int cli_bench(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "device") == 0) return bench_device_main(argc - 1, argv + 1);
    fprintf(stderr, "usage: inferd bench device MODEL [options]   (--help lists them)\n");
    return argc >= 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
}
