/* arch_llama.c - Llama 2 and 3.x, SmolLM2, DeepSeek-Coder and all that share their shape. */
#include "model/arch.h"

const struct arch arch_llama = {
    .name = "llama",
    .hf_type = "llama",
    .hf_class = "LlamaForCausalLM",
    .in_gguf = true,
    .bias_keys = true,
    .window = ARCH_WINDOW_NONE,
    .gguf_pairing = ROPE_NEIGHBOURS, /* its converter permutes the rows of Q and K */
    .hf_names = arch_hf_names,
    .gguf_names = arch_gguf_names,
};
