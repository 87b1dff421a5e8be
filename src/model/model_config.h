/* model_config.h - what a model's config says, whatever file it stood in.
 *
 * Read from a Hugging Face config.json (both forms of rope settings, dtype and torch_dtype) or from GGUF metadata. An
 * architecture that is not in arch.h, and a key that would change the numbers and is not handled, is refused by name; a
 * key that nobody knows is logged. Owned by the model. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "formats/weights.h"
#include "model/arch.h"

enum { MODEL_LAYERS_MAX = 1024 };

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope_config {
    enum rope_scaling scaling;
    double theta;
    double factor;                 /* linear, llama3, yarn */
    double low_freq, high_freq;    /* llama3 */
    double original_context;       /* llama3, yarn */
    double beta_fast, beta_slow;   /* yarn */
    double attention_factor;       /* yarn; 0: from mscale or factor */
    double mscale, mscale_all_dim; /* yarn; 0: not given */
    bool truncate;                 /* yarn: whole correction dimensions (default) */
};

struct model_config {
    const struct arch *arch;
    bool gguf;
    uint32_t hidden, layers, heads, kv_heads, head_dim, ffn;
    uint32_t
        vocab_rows; /* as stored, padding included; 0 in GGUF without the key: from the tensor */
    uint32_t vocab_tokens;   /* GGUF: of its tokenizer; else 0: the caller knows */
    uint32_t context_tokens; /* positions it was made for, scaling included */
    double norm_eps;
    bool tied; /* embedding and head share a table (Hugging Face; GGUF: where there is no head) */
    bool qkv_bias, out_bias, mlp_bias; /* Hugging Face; GGUF: where the tensors are there */
    uint32_t *windows;                 /* [layers]; 0: none */
    struct rope_config rope;
    bool has_rope_local; /* layers with a window turn by it instead */
    struct rope_config rope_local;
    double query_scalar; /* scores are divided by its root; head_dim in most */
    enum rope_pairing pairing;
    enum dtype dtype; /* of dummies, as the config names it */
};

/* windows is allocated in `arena`. Errors: STATUS_UNSUPPORTED (what, by name), STATUS_INVALID (value), STATUS_NOT_FOUND (no
 * config), STATUS_CORRUPT, STATUS_NOMEM. */
enum status model_config_read(struct weights *weights, struct arena *arena,
                              struct model_config *out, struct error *err);

/* --- shared by config_hf.c and config_gguf.c --- */
enum status config_read_hf(struct weights *weights, struct arena *arena, struct model_config *out,
                           struct error *err);
enum status config_read_gguf(struct weights *weights, struct arena *arena, struct model_config *out,
                             struct error *err);
/* Whether a key that nobody knows sounds as if it changed the numbers. */
bool config_key_sounds_grave(const char *key);
/* [dim/2] inverse frequencies and the factor of cos and sin. Source: transformers modeling_rope_utils.py. */
void rope_frequencies(const struct rope_config *rope, uint32_t dim, float *inv_freq, float *scale);
