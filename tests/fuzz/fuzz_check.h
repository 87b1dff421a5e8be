/* fuzz_check.h - what every request must hold that api makes of bytes, whichever front end they came through: the numbers that
 * engine/request.h and device/step.h promise. */
#pragma once

#include <math.h>
#include <stdlib.h>

#include "api/api.h"
#include "engine/request.h"

static inline void must(bool holds)
{
    if (!holds) abort();
}

static inline void check_request(const struct request *r, const struct api_model *model)
{
    const struct request_sampling *s = &r->sampling;

    must(r->prompt_count >= 1 && r->best_of >= 1 && request_choices(r) <= model->sequences_max);
    for (uint32_t p = 0; p < r->prompt_count; p++) {
        must(r->prompts[p].count >= 1 &&
             r->prompts[p].count + (uint64_t)r->max_tokens <= model->context_tokens);
        for (uint32_t i = 0; i < r->prompts[p].count; i++)
            must(r->prompts[p].ids[i] >= 0 && (uint32_t)r->prompts[p].ids[i] < model->vocab_size);
    }
    must(r->min_tokens <= r->max_tokens && r->top_logprobs <= 20 && r->ring);
    must(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1);
    must(s->min_p >= 0 && s->min_p <= 1 && s->repetition_penalty > 0 &&
         isfinite(s->repetition_penalty));
    must(r->stop_id_count <= model->stop_ids_max && s->bias_count <= model->bias_max);
    must(r->priority >= -100 && r->priority <= 100 && r->deadline_ns >= 0);
    for (uint32_t i = 0; i < s->bias_count; i++)
        must(s->biases[i].id >= 0 && (uint32_t)s->biases[i].id < model->vocab_size);
}
