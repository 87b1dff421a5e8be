/* cuda_driver.h - the GPUs that the driver has, or what is wrong with it, in a sentence.
 *
 * The runtime says "driver version is insufficient" also where there is no driver at all. Thread: any. */
#pragma once

#include "base/status.h"

/* How many GPUs the process sees, at least one. Errors: STATUS_UNSUPPORTED, as below. Where the build has CUDA only. */
enum status cuda_driver_count(int *count, struct error *err);

/* The sentence for no GPU, plain C and always built. driver, runtime: the newest CUDA that the driver knows and the one that this
 * program was built with, as CUDA writes them (13010 is 13.1); driver 0: none is installed. said: the runtime's own words, for
 * what the versions do not explain. Returns STATUS_UNSUPPORTED. */
enum status cuda_driver_fault(int driver, int runtime, const char *said, struct error *err);
