/* arch_mistral.c - Mistral: llama with a sliding window over all layers. Its GGUF files call themselves llama. */
#include "model/arch.h"

const struct arch arch_mistral = {
    .name = "mistral",
    .hf_type = "mistral",
    .hf_class = "MistralForCausalLM",
    .window = ARCH_WINDOW_ALL,
    .hf_names = arch_hf_names,
    .gguf_names = arch_gguf_names,
};
