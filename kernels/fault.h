/* fault.h - kernels that go wrong on purpose, so that tests see what the host makes of it (device/device_fault.h). */
#pragma once

#include "common/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stops at a trap: a sticky error, after which the context answers no call. */
cudaError_t fault_trap(const struct kernel_context *ctx);
/* Spins for `seconds`, bounded so that a forgotten test gives the GPU back. */
cudaError_t fault_spin(const struct kernel_context *ctx, uint32_t seconds);

#ifdef __cplusplus
}
#endif
