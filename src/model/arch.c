#include "model/arch.h"

#include <stddef.h>

const struct arch *const arch_all[] = {&arch_llama, &arch_mistral, &arch_qwen2,
                                       &arch_qwen3, &arch_gemma3,  NULL};

const char *const arch_hf_names[TENSOR_COUNT] = {
    [TENSOR_EMBED] = "model.embed_tokens.weight",
    [TENSOR_FINAL_NORM] = "model.norm.weight",
    [TENSOR_HEAD] = "lm_head.weight",
    [TENSOR_ATTN_NORM] = "model.layers.%u.input_layernorm.weight",
    [TENSOR_Q] = "model.layers.%u.self_attn.q_proj.weight",
    [TENSOR_K] = "model.layers.%u.self_attn.k_proj.weight",
    [TENSOR_V] = "model.layers.%u.self_attn.v_proj.weight",
    [TENSOR_Q_BIAS] = "model.layers.%u.self_attn.q_proj.bias",
    [TENSOR_K_BIAS] = "model.layers.%u.self_attn.k_proj.bias",
    [TENSOR_V_BIAS] = "model.layers.%u.self_attn.v_proj.bias",
    [TENSOR_Q_NORM] = "model.layers.%u.self_attn.q_norm.weight",
    [TENSOR_K_NORM] = "model.layers.%u.self_attn.k_norm.weight",
    [TENSOR_O] = "model.layers.%u.self_attn.o_proj.weight",
    [TENSOR_O_BIAS] = "model.layers.%u.self_attn.o_proj.bias",
    [TENSOR_FFN_NORM] = "model.layers.%u.post_attention_layernorm.weight",
    [TENSOR_GATE] = "model.layers.%u.mlp.gate_proj.weight",
    [TENSOR_UP] = "model.layers.%u.mlp.up_proj.weight",
    [TENSOR_GATE_BIAS] = "model.layers.%u.mlp.gate_proj.bias",
    [TENSOR_UP_BIAS] = "model.layers.%u.mlp.up_proj.bias",
    [TENSOR_DOWN] = "model.layers.%u.mlp.down_proj.weight",
    [TENSOR_DOWN_BIAS] = "model.layers.%u.mlp.down_proj.bias",
};

const char *const arch_gguf_names[TENSOR_COUNT] = {
    [TENSOR_EMBED] = "token_embd.weight",
    [TENSOR_FINAL_NORM] = "output_norm.weight",
    [TENSOR_HEAD] = "output.weight",
    [TENSOR_ROPE_FACTORS] = "rope_freqs.weight",
    [TENSOR_ATTN_NORM] = "blk.%u.attn_norm.weight",
    [TENSOR_Q] = "blk.%u.attn_q.weight",
    [TENSOR_K] = "blk.%u.attn_k.weight",
    [TENSOR_V] = "blk.%u.attn_v.weight",
    [TENSOR_Q_BIAS] = "blk.%u.attn_q.bias",
    [TENSOR_K_BIAS] = "blk.%u.attn_k.bias",
    [TENSOR_V_BIAS] = "blk.%u.attn_v.bias",
    [TENSOR_Q_NORM] = "blk.%u.attn_q_norm.weight",
    [TENSOR_K_NORM] = "blk.%u.attn_k_norm.weight",
    [TENSOR_O] = "blk.%u.attn_output.weight",
    [TENSOR_O_BIAS] = "blk.%u.attn_output.bias",
    [TENSOR_FFN_NORM] = "blk.%u.ffn_norm.weight",
    [TENSOR_GATE] = "blk.%u.ffn_gate.weight",
    [TENSOR_UP] = "blk.%u.ffn_up.weight",
    [TENSOR_GATE_BIAS] = "blk.%u.ffn_gate.bias",
    [TENSOR_UP_BIAS] = "blk.%u.ffn_up.bias",
    [TENSOR_DOWN] = "blk.%u.ffn_down.weight",
    [TENSOR_DOWN_BIAS] = "blk.%u.ffn_down.bias",
};
