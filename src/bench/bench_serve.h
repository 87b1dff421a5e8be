/* bench_serve.h - `inferd bench serve` and `inferd bench record`: load on an OpenAI server, and a live server's arrivals as a trace.
 *
 * A run has three parts, told apart in what it prints: the first request after the start (cold), a warm-up of --warmup seconds whose
 * figures are thrown away, and the measured requests (warm). */
#pragma once

/* argv as main's; exit status 0, 1 (nothing could be measured, or every request failed), 2 wrong usage. */
int bench_serve_main(int argc, char **argv);
int bench_record_main(int argc, char **argv);
