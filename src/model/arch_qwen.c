/* arch_qwen.c - Qwen2 and 2.5 (biases on q, k and v), Qwen3 (norms of q and k instead). */
#include "model/arch.h"

const struct arch arch_qwen2 = {
    .name = "qwen2",
    .hf_type = "qwen2",
    .hf_class = "Qwen2ForCausalLM",
    .in_gguf = true,
    .qkv_bias = true,
    .window = ARCH_WINDOW_LAYERS,
    .gguf_pairing = ROPE_HALVES,
    .hf_names = arch_hf_names,
    .gguf_names = arch_gguf_names,
};

const struct arch arch_qwen3 = {
    .name = "qwen3",
    .hf_type = "qwen3",
    .hf_class = "Qwen3ForCausalLM",
    .in_gguf = true,
    .bias_keys = true,
    .qk_norm = true,
    .window = ARCH_WINDOW_LAYERS,
    .gguf_pairing = ROPE_HALVES,
    .hf_names = arch_hf_names,
    .gguf_names = arch_gguf_names,
};
