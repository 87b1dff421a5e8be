#include "engine/stage_times.h"

struct stage_ledger stage_ledger(const struct stage_times *t, int64_t now_ns)
{
    const int64_t ends_ns[STAGES] = {t->opened_ns,      t->parsed_ns,     t->rendered_ns,
                                     t->tokenized_ns,   t->submitted_ns,  t->scheduled_ns,
                                     t->first_token_ns, t->last_token_ns, now_ns};
    struct stage_ledger ledger = {.total_ns = now_ns - t->received_ns};
    int64_t at_ns = t->received_ns;

    for (int s = 0; s < STAGES; s++) {
        if (ends_ns[s] <= at_ns) continue; /* never reached */
        ledger.ns[s] = ends_ns[s] - at_ns;
        at_ns = ends_ns[s];
    }
    return ledger;
}

const char *stage_name(enum request_stage stage)
{
    static const char *const names[STAGES] = {"accept", "parse",   "template", "tokenize", "submit",
                                              "queue",  "prefill", "decode",   "deliver"};

    return names[stage];
}
