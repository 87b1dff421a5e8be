/* cuda_bench_main.c - the CUDA benchmarks as a program of their own, for builds without the whole command line. */
#include "bench/cuda_bench.h"

int main(int argc, char **argv)
{
    return bench_cuda_main(argc - 1, argv + 1);
}
