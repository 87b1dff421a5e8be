/* arch.h - what tells one architecture from another, as data: an entry per family, no code.
 *
 * A family is a row in arch_llama.c, arch_qwen.c, arch_mistral.c or arch_gemma.c. model_config.c reads a config by it, weight_table.c finds
 * tensors by its names, model_plan.c makes the stages. Thread: any; all static. */
#pragma once

#include <stdbool.h>

#include "device/plan.h"

enum tensor_id {
    TENSOR_EMBED,
    TENSOR_FINAL_NORM,
    TENSOR_HEAD,
    TENSOR_ROPE_FACTORS, /* GGUF: divisors of the inverse frequencies */
    TENSOR_ATTN_NORM,    /* from here on, one a layer */
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_Q_BIAS,
    TENSOR_K_BIAS,
    TENSOR_V_BIAS,
    TENSOR_Q_NORM,
    TENSOR_K_NORM,
    TENSOR_O,
    TENSOR_O_BIAS,
    TENSOR_ATTN_POST_NORM, /* of the output, before it joins the residual stream */
    TENSOR_FFN_NORM,
    TENSOR_GATE,
    TENSOR_UP,
    TENSOR_GATE_BIAS,
    TENSOR_UP_BIAS,
    TENSOR_DOWN,
    TENSOR_DOWN_BIAS,
    TENSOR_FFN_POST_NORM,
    TENSOR_COUNT
};

enum arch_window {
    ARCH_WINDOW_NONE, /* the key sliding_window is refused unless null */
    ARCH_WINDOW_ALL,  /* all layers, where sliding_window is set */
    ARCH_WINDOW_LAYERS, /* with use_sliding_window: layers from max_window_layers on, or as layer_types says */
    ARCH_WINDOW_PATTERN /* all but each n-th layer, or as layer_types says; those turn by rope_local */
};

struct arch {
    const char *name;     /* for messages, and general.architecture of GGUF */
    const char *hf_type;  /* model_type */
    const char *hf_class; /* the one class of `architectures` that this is */
    bool in_gguf;         /* GGUF files name it */
    bool qkv_bias;        /* always there, whatever attention_bias says */
    bool bias_keys;       /* attention_bias (q, k, v and o) and mlp_bias count */
    bool qk_norm;         /* RMS norm of each head of q and k before the rotation */
    bool post_norms;      /* what attention and feed-forward give is normed before it is added */
    bool hf_gain_offset;  /* norm gains stored minus one (GGUF's converter adds it) */
    bool embed_scaled;    /* embeddings times the root of the hidden size */
    bool tied;            /* where tie_word_embeddings is absent */
    enum activation act;
    double theta;                         /* where the config has none */
    uint32_t window_tokens, window_every; /* ARCH_WINDOW_PATTERN: where the config has none */
    enum arch_window window;
    enum rope_pairing gguf_pairing; /* how GGUF orders the rows of Q and K */
    const char *const *hf_names;    /* [TENSOR_COUNT]; %u is the layer; NULL: no such tensor */
    const char *const *gguf_names;  /* [TENSOR_COUNT] */
};

extern const struct arch arch_llama, arch_mistral, arch_qwen2, arch_qwen3, arch_gemma3;
/* All of them, NULL at the end. */
extern const struct arch *const arch_all[];

/* The names of most families. */
extern const char *const arch_hf_names[TENSOR_COUNT];
extern const char *const arch_gguf_names[TENSOR_COUNT];
