/* cuda_bench.h - `inferd bench limits|kernels|decode|breakdown|graphs|prefill|load` on a CUDA device.
 *
 *   limits   read, copy and bf16 product rates of this device in this run
 *   kernels  each kernel over the shapes of well-known models, cold (rotated buffers), in a graph: µs, bytes or flop, share
 *            of the limits
 *   decode   whole steps of made-up models: ms per step and tokens/s for a batch at a context
 *   breakdown  the same, and where a step's time goes by kind of stage
 *   graphs   steps replayed as graphs and launched one by one, by batch size, with the same kernels
 *   load     a model's files to the device, beside the rates of the disk (or page cache) and of the bus
 *   prefill  time to the first token of one prompt on an idle device: median, sigma
 * Every subcommand measures the read rate first, so that shares belong to the same run. One line of JSON per result on
 * standard output, a table on standard error. */
#pragma once

/* argv[0] is the subcommand; cuda_bench_options.h reads the rest. Returns 0; 1 where a model or device failed, or the run does not fit the
 * model; 2 for wrong options (--help lists them). */
int bench_cuda_main(int argc, char **argv);
