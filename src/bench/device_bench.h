/* device_bench.h - `inferd bench device`: how fast a device turns a prompt into its first token, and a token into the next.
 *
 * Drives the device as the engine does (steps, two halves), with nothing around it: no scheduler, no text, no HTTP. */
#pragma once

/* argv: MODEL and options (--help lists them). Prints one JSON object on standard output; 0, or 2 for wrong options, or 1
 * for a model or device that failed (the sentence is on standard error). */
int bench_device_main(int argc, char **argv);
