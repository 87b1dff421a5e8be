/* device_bench_main.c - the device benchmark as a program of its own, for builds without the whole command line. */
#include "bench/device_bench.h"

int main(int argc, char **argv)
{
    return bench_device_main(argc, argv);
}
