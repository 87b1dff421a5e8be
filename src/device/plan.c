#include "device/plan.h"

#include <assert.h>
#include <stddef.h>

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
