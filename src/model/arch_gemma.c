/* arch_gemma.c - Gemma 3, the text model: norms on both sides of attention and feed-forward, GELU, scaled embeddings, five
 * layers with a window for each that sees all, with a rotation of their own.
 * Source: transformers modeling_gemma3.py and configuration_gemma3.py (defaults), llama.cpp's gemma3 (GGUF). */
#include "model/arch.h"

static const char *const hf_names[TENSOR_COUNT] = {
    [TENSOR_EMBED] = "model.embed_tokens.weight",
    [TENSOR_FINAL_NORM] = "model.norm.weight",
    [TENSOR_HEAD] = "lm_head.weight",
    [TENSOR_ATTN_NORM] = "model.layers.%u.input_layernorm.weight",
    [TENSOR_Q] = "model.layers.%u.self_attn.q_proj.weight",
    [TENSOR_K] = "model.layers.%u.self_attn.k_proj.weight",
    [TENSOR_V] = "model.layers.%u.self_attn.v_proj.weight",
    [TENSOR_Q_NORM] = "model.layers.%u.self_attn.q_norm.weight",
    [TENSOR_K_NORM] = "model.layers.%u.self_attn.k_norm.weight",
    [TENSOR_O] = "model.layers.%u.self_attn.o_proj.weight",
    [TENSOR_ATTN_POST_NORM] = "model.layers.%u.post_attention_layernorm.weight",
    [TENSOR_FFN_NORM] = "model.layers.%u.pre_feedforward_layernorm.weight",
    [TENSOR_GATE] = "model.layers.%u.mlp.gate_proj.weight",
    [TENSOR_UP] = "model.layers.%u.mlp.up_proj.weight",
    [TENSOR_DOWN] = "model.layers.%u.mlp.down_proj.weight",
    [TENSOR_FFN_POST_NORM] = "model.layers.%u.post_feedforward_layernorm.weight",
};

static const char *const gguf_names[TENSOR_COUNT] = {
    [TENSOR_EMBED] = "token_embd.weight",
    [TENSOR_FINAL_NORM] = "output_norm.weight",
    [TENSOR_HEAD] = "output.weight",
    [TENSOR_ATTN_NORM] = "blk.%u.attn_norm.weight",
    [TENSOR_Q] = "blk.%u.attn_q.weight",
    [TENSOR_K] = "blk.%u.attn_k.weight",
    [TENSOR_V] = "blk.%u.attn_v.weight",
    [TENSOR_Q_NORM] = "blk.%u.attn_q_norm.weight",
    [TENSOR_K_NORM] = "blk.%u.attn_k_norm.weight",
    [TENSOR_O] = "blk.%u.attn_output.weight",
    [TENSOR_ATTN_POST_NORM] = "blk.%u.post_attention_norm.weight",
    [TENSOR_FFN_NORM] = "blk.%u.ffn_norm.weight",
    [TENSOR_GATE] = "blk.%u.ffn_gate.weight",
    [TENSOR_UP] = "blk.%u.ffn_up.weight",
    [TENSOR_DOWN] = "blk.%u.ffn_down.weight",
    [TENSOR_FFN_POST_NORM] = "blk.%u.post_ffw_norm.weight",
};

const struct arch arch_gemma3 = {
    .name = "gemma3",
    .hf_type = "gemma3_text",
    .hf_class = "Gemma3ForCausalLM",
    .in_gguf = true,
    .qk_norm = true,
    .post_norms = true,
    .hf_gain_offset = true,
    .embed_scaled = true,
    .tied = true,
    .act = ACT_GELU_TANH,
    .theta = 1e6,
    .window = ARCH_WINDOW_PATTERN,
    .window_tokens = 4096,
    .window_every = 6,
    .gguf_pairing = ROPE_HALVES,
    .hf_names = hf_names,
    .gguf_names = gguf_names,
};
