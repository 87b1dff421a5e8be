/* device_fault.h - faults on purpose: what a device does wrong, and at which step, so that tests see the whole way of a fault.
 *
 * Compiled in, off unless --inject-fault asks for one (docs/hacking.md). Every kind of device makes its own real fault:
 *   step@N   step N ends with STATUS_DEVICE; the device goes on     (CUDA: a call that the runtime refuses)
 *   lost@N   step N and all later ones end with STATUS_DEVICE_LOST  (CUDA: a kernel that traps)
 *   hang@N   step N never ends                                      (CUDA: a kernel that spins)
 *   alloc@N  memory is taken while step N runs: late_allocations counts it
 * N counts steps from 1, those on trial before READY included. */
#pragma once

#include <stdint.h>

#include "base/status.h"

enum fault_kind { FAULT_NONE, FAULT_STEP, FAULT_LOST, FAULT_HANG, FAULT_ALLOC };

struct device_fault {
    enum fault_kind kind;
    uint64_t at; /* seq_no of the step */
};

/* "lost@40"; NULL or "": none. Errors: STATUS_INVALID with what would be right. */
enum status device_fault_parse(const char *text, struct device_fault *out, struct error *err);

/* What goes wrong at step seq_no. */
static inline enum fault_kind device_fault_at(const struct device_fault *fault, uint64_t seq_no)
{
    return fault->at == seq_no ? fault->kind : FAULT_NONE;
}
