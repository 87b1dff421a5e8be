#include "observe/request_record.h"

#include <string.h>

#include "base/buf.h"
#include "base/log.h"

bool request_record_is_fault(const struct request_record *r)
{
    if (r->status >= 500) return true;
    return r->status < 400 &&
           strcmp(r->outcome, "error") == 0; /* a stream that ended in an error event */
}

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

/* What every line has. */
static void put_head(const struct request_record *r, struct buf *keys)
{
    char trace_id[33];

    if (r->id[0]) buf_printf(keys, "id=%s ", r->id);
    buf_printf(keys, "request_id=\"%s\" route=%s status=%u outcome=%s ", r->request_id, r->route,
               r->status, r->outcome);
    if (r->code[0]) buf_printf(keys, "code=%s ", r->code);
    if (r->client[0]) buf_printf(keys, "client=\"%s\" ", r->client);
    trace_context_id(&r->trace, trace_id);
    if (trace_id[0]) buf_printf(keys, "trace_id=\"%s\" ", trace_id);
}

static void put_tokens(const struct request_record *r, struct buf *keys)
{
    const struct stage_times *t = &r->times;
    uint32_t steps = t->prefill_chunks + t->decode_steps;

    buf_printf(keys,
               "stream=%s prompt_tokens=%u cached_tokens=%u completion_tokens=%u choices=%u "
               "ttft_ms=%.1f ",
               r->streamed ? "true" : "false", t->prompt_tokens, t->cached_tokens,
               r->completion_tokens, r->choices, ms(r->first_token_ns));
    buf_printf(keys,
               "queued_for=%s prefill_chunks=%u decode_steps=%u mean_batch=%.1f preemptions=%u ",
               t->queued_for ? t->queued_for : "none", t->prefill_chunks, t->decode_steps,
               steps ? (double)t->batch_rows_sum / steps : 0.0, t->preemptions);
    buf_printf(keys, "detokenize_ms=%.2f stall_ms=%.1f ", ms(t->detokenize_ns), ms(t->stall_ns));
}

void request_record_log(const struct request_record *r)
{
    struct buf keys;

    if (!log_enabled(LOG_INFO)) return;
    buf_init(&keys, LOG_LINE_MAX);
    put_head(r, &keys);
    if (r->submitted) {
        put_tokens(r, &keys);
        for (int s = 0; s < STAGES; s++)
            buf_printf(&keys, "%s_ms=%.2f ", stage_name((enum request_stage)s),
                       ms(r->ledger.ns[s]));
    }
    buf_printf(&keys, "total_ms=%.2f", ms(r->ledger.total_ns));
    log_info(r->submitted ? "request done" : "request refused", "%s", buf_cstr(&keys));
    buf_fini(&keys);
}
