#include "device/plan.h"

#include <assert.h>
#include <stddef.h>

uint32_t plan_group_blocks(const struct plan_kv_group *group, uint64_t tokens, uint32_t rows)
{
    uint64_t size = group->block_tokens, all = (tokens + size - 1) / size;
    uint64_t seen = group->window ? (uint64_t)group->window - 1 + rows : tokens;
    uint64_t most = (seen + size - 2) / size + 1; /* its first token may be the last of a block */

    assert(all <= UINT32_MAX);
    return (uint32_t)(!group->window || all < most ? all : most);
}

uint32_t plan_last_attention(const struct plan *plan)
{
    bool head = false;

    for (uint32_t i = plan->stage_count; i-- > 0;) {
        head = head || plan->stages[i].kind == STAGE_HEAD;
        if (plan->stages[i].kind == STAGE_ATTN) return head ? i : plan->stage_count;
    }
    assert(!head);
    return plan->stage_count;
}

const char *stage_kind_name(enum stage_kind kind)
{
    static const char *const names[] = {
        [STAGE_EMBED] = "embed",       [STAGE_ATTN_IN] = "attn_in", [STAGE_ATTN] = "attn",
        [STAGE_ATTN_OUT] = "attn_out", [STAGE_FFN_IN] = "ffn_in",   [STAGE_FFN_OUT] = "ffn_out",
        [STAGE_HEAD] = "head",         [STAGE_SAMPLE] = "sample",
    };

    assert((size_t)kind < sizeof names / sizeof *names);
    return names[kind];
}
