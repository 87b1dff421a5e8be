/* model_config.c - a config from either kind of file, with the checks that both need; rope frequencies. */
#include "model/model_config.h"

#include <math.h>
#include <string.h>

bool config_key_sounds_grave(const char *key)
{
    static const char *const words[] = {
        "scal", "multiplier", "cap",      "factor", "rope",   "rotary", "window", "expert",
        "lora", "clip",       "clamp",    "alibi",  "quant",  "norm",   "bias",   "mup",
        "sink", "pattern",    "residual", "moe",    "sparse", "conv",   "ssm"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(key, words[i])) return true;
    return false;
}

static enum status check_rope(const struct rope_config *r, struct error *err)
{
    if (!(r->theta > 0) || !isfinite(r->theta))
        return error_set(err, STATUS_INVALID, "rope theta is %g; above 0 is right", r->theta);
    if (r->scaling == ROPE_PLAIN) return STATUS_OK;
    if (!(r->factor >= 1) || !isfinite(r->factor))
        return error_set(err, STATUS_INVALID, "rope scaling factor is %g; at least 1 is right",
                         r->factor);
    if (r->scaling == ROPE_LINEAR) return STATUS_OK;
    if (!(r->original_context >= 1) || !isfinite(r->original_context))
        return error_set(err, STATUS_INVALID,
                         "rope original_max_position_embeddings is %g; at least 1 is right",
                         r->original_context);
    if (r->scaling == ROPE_LLAMA3 && !(r->high_freq > r->low_freq && r->low_freq > 0))
        return error_set(err, STATUS_INVALID,
                         "rope low_freq_factor %g and high_freq_factor %g; 0 < low < high is right",
                         r->low_freq, r->high_freq);
    if (r->scaling == ROPE_YARN && !(r->beta_fast >= r->beta_slow && r->beta_slow > 0))
        return error_set(err, STATUS_INVALID,
                         "rope beta_fast %g and beta_slow %g; 0 < slow <= fast is right",
                         r->beta_fast, r->beta_slow);
    return STATUS_OK;
}

static enum status check_config(const struct model_config *c, struct error *err)
{
    enum status st = STATUS_OK;

    if (c->head_dim < 8 || c->head_dim > 512 || c->head_dim % 8)
        st = error_set(err, STATUS_UNSUPPORTED,
                       "head_dim is %u; a multiple of 8 from 8 to 512 is right", c->head_dim);
    if (!st && c->heads % c->kv_heads)
        st = error_set(err, STATUS_INVALID, "%u attention heads cannot share %u KV heads evenly",
                       c->heads, c->kv_heads);
    if (!st && !(c->norm_eps >= 0 && c->norm_eps < 1))
        st = error_set(err, STATUS_INVALID, "the norm epsilon is %g; 0 to 1 is right", c->norm_eps);
    if (!st && !(c->query_scalar > 0 && isfinite(c->query_scalar)))
        st = error_set(err, STATUS_INVALID, "query_pre_attn_scalar is %g; above 0 is right",
                       c->query_scalar);
    if (!st) st = check_rope(&c->rope, err);
    return st || !c->has_rope_local ? st : check_rope(&c->rope_local, err);
}

enum status model_config_read(struct weights *weights, struct arena *arena,
                              struct model_config *out, struct error *err)
{
    enum status st;

    *out = (struct model_config){.dtype = DTYPE_F32};
    out->gguf = weights_kind(weights) == WEIGHTS_GGUF;
    st = out->gguf ? config_read_gguf(weights, arena, out, err)
                   : config_read_hf(weights, arena, out, err);
    if (st) return st;
    st = check_config(out, err);
    if (st) error_prefix(err, "%s", weights_path(weights));
    return st;
}

/* --- rope --- */

static double yarn_dimension(double rotations, uint32_t dim, const struct rope_config *r)
{
    return dim * log(r->original_context / (rotations * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention(const struct rope_config *r)
{
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    return yarn_mscale(r->factor, 1);
}

static void yarn(const struct rope_config *r, uint32_t dim, float *inv_freq)
{
    double low = yarn_dimension(r->beta_fast, dim, r), high = yarn_dimension(r->beta_slow, dim, r);

    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    for (uint32_t i = 0; i < dim / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        inv_freq[i] =
            (float)((double)inv_freq[i] / r->factor * ramp + (double)inv_freq[i] * (1 - ramp));
    }
}

static void llama3(const struct rope_config *r, uint32_t dim, float *inv_freq)
{
    for (uint32_t i = 0; i < dim / 2; i++) {
        double f = (double)inv_freq[i], waves = r->original_context * f / (2 * M_PI);
        double smooth = (waves - r->low_freq) / (r->high_freq - r->low_freq);
        if (waves < r->low_freq)
            inv_freq[i] = (float)(f / r->factor);
        else if (waves <= r->high_freq)
            inv_freq[i] = (float)((1 - smooth) * f / r->factor + smooth * f);
    }
}

void rope_frequencies(const struct rope_config *rope, uint32_t dim, float *inv_freq, float *scale)
{
    *scale = 1;
    for (uint32_t i = 0; i < dim / 2; i++) /* float32 steps, as the reference takes them */
        inv_freq[i] = 1.0f / (float)pow(rope->theta, (double)((float)(2 * i) / (float)dim));
    switch (rope->scaling) {
    case ROPE_PLAIN: break;
    case ROPE_LINEAR:
        for (uint32_t i = 0; i < dim / 2; i++)
            inv_freq[i] /= (float)rope->factor;
        break;
    case ROPE_LLAMA3: llama3(rope, dim, inv_freq); break;
    case ROPE_YARN:
        yarn(rope, dim, inv_freq);
        *scale = (float)yarn_attention(rope);
        break;
    }
}
