/* paged_decode_bulk.h - the sm_90a variant behind paged_decode (attention.h), which picks it. */
#pragma once

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t paged_decode_bulk(const struct kernel_context *ctx, const struct attention_args *args,
                              const struct decode_scratch *scratch);

#ifdef __cplusplus
}
#endif
