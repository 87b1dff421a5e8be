/* prefill_wgmma.h - the sm_90a variant behind prefill_attention (attention.h), which picks it. */
#pragma once

#include "attention.h"

bool prefill_wgmma_fits(const struct kernel_context *ctx, uint32_t head_dim);
cudaError_t prefill_wgmma(const struct kernel_context *ctx, const struct attention_args *args,
                          const struct prefill_tile *tiles, uint32_t tile_count);
