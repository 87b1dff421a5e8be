/* cuda_bench_options.h - what the GPU's benchmarks are asked for: read and checked with no GPU and no CUDA, so in every build.
 *
 * Each subcommand has options of its own and refuses the others'. Where a model is named it is opened as a server would open it
 * (its config.json), so that a run past its context is refused before a device is asked for. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum cuda_bench {
    CUDA_BENCH_LIMITS,
    CUDA_BENCH_KERNELS,
    CUDA_BENCH_DECODE,
    CUDA_BENCH_BREAKDOWN,
    CUDA_BENCH_GRAPHS,
    CUDA_BENCH_PREFILL,
    CUDA_BENCH_LOAD,
};

enum {
    CUDA_BENCH_ROWS_MAX = 1024,  /* --batch, and each of --batches */
    CUDA_BENCH_BATCHES_MAX = 32, /* of them */
    CUDA_BENCH_REPEATS_MAX = 200,
    CUDA_BENCH_SETS =
        5, /* decode: times that --steps steps are timed, each behind the one before */
    CUDA_BENCH_WARM_UP = 8 /* graphs: steps before the timed ones, from the same context */
};

struct cuda_bench_options {
    enum cuda_bench what;
    const char *name; /* of the subcommand */
    const char *
        model; /* folder with config.json; load: or a GGUF file. Borrowed from argv, as the texts below */
    uint32_t batch, context, prompt, steps, repeats, rows_max;
    uint32_t limit;      /* of a sequence's tokens, as a server has it; 0: what the run needs */
    uint32_t idle_ms;    /* prefill: without work in front of each prompt */
    const char *batches; /* graphs: "1,8,64" */
    uint32_t batch_list[CUDA_BENCH_BATCHES_MAX],
        batch_count; /* the same as numbers, in that order */
    bool eager, f16, cold;
    bool chain; /* all layers in one launch where the device can; else a launch for each part */
    const char *only; /* kernels: those whose name contains it; NULL: all */
};

/* Reads argv, whose [0] is the subcommand. Returns -1 to go on, else the exit status: 0 after --help, which may stand anywhere; 2
 * for wrong options; 1 for a model that is not there or has no room for the run. Each was told in a sentence. */
int cuda_bench_options(int argc, char **argv, struct cuda_bench_options *out);

/* Tokens of the run's longest sequence; 0 where there is none. */
uint64_t cuda_bench_tokens(const struct cuda_bench_options *o);
/* Whether they are within a model's context, and --limit too. Error: STATUS_LIMIT, with what would be right. */
enum status cuda_bench_fits(const struct cuda_bench_options *o, uint32_t context_tokens,
                            struct error *err);
