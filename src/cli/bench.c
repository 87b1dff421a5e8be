/* bench.c - `inferd bench WHAT`: the measuring programs, one name each. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench_serve.h"
#if INFERD_HAVE_CUDA
#include "bench/cuda_bench.h"
#else
#include "bench/cuda_bench_options.h"
#endif
#include "bench/device_bench.h"
#include "bench/device_fit.h"
#include "cli/cli.h"

#if !INFERD_HAVE_CUDA
static int bench_cuda_main(int argc, char **argv)
{
    struct cuda_bench_options o;
    int done = cuda_bench_options(argc, argv, &o);

    if (done >= 0) return done;
    fprintf(stderr,
            "inferd: bench %s measures a GPU, and this build has no CUDA device: configure it "
            "where nvcc is on "
            "PATH (cmake --preset cuda). The CPU is measured by `inferd bench device MODEL`, a "
            "server by "
            "`inferd bench serve --url URL`\n",
            o.name);
    return 1;
}
#endif

static const struct {
    const char *name, *usage;
    int (*run)(int argc, char **argv);
} programs[] = {
    {"serve", "serve --url URL [options]     load on an OpenAI server, live", bench_serve_main},
    {"record", "record --log FILE             a live server's arrivals as a trace",
     bench_record_main},
    {"device", "device MODEL [options]        a device with nothing around it", bench_device_main},
    {"fit", "fit --model MODEL             a device as a file for `inferd simulate`",
     bench_fit_main},
    {"limits", "limits                        a GPU's read, copy and product rates",
     bench_cuda_main},
    {"kernels", "kernels [options]             a GPU's kernels, as shares of those",
     bench_cuda_main},
    {"decode", "decode [options]              steps of made-up models on a GPU", bench_cuda_main},
    {"prefill", "prefill [options]             time to the first token on a GPU", bench_cuda_main},
    {"breakdown", "breakdown [options]           where a step's time goes on a GPU",
     bench_cuda_main},
    {"graphs", "graphs [options]              steps with graphs and without, by batch size",
     bench_cuda_main},
    {"load", "load --model MODEL            a model's files to a GPU, beside disk and bus",
     bench_cuda_main},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

int cli_bench(int argc, char **argv)
{
    bool help = argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    FILE *to = help ? stdout : stderr;

    for (int i = 0; argc >= 2 && i < PROGRAMS; i++)
        if (strcmp(argv[1], programs[i].name) == 0) return programs[i].run(argc - 1, argv + 1);
    if (argc >= 2 && !help) fprintf(to, "inferd: there is no benchmark '%.40s'\n", argv[1]);
    fprintf(to, "usage (--help of each lists its options):\n");
    for (int i = 0; i < PROGRAMS; i++)
        fprintf(to, "  inferd bench %s\n", programs[i].usage);
    return help ? 0 : 2;
}
