/* trace_context.h - W3C Trace Context: who called us, within which trace. Source: https://www.w3.org/TR/trace-context/ */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TRACE_STATE_MAX = 512 };

struct trace_context {
    bool has_parent;                 /* the caller sent a valid traceparent */
    bool parent_sampled;             /* its flag */
    uint8_t trace_id[16];            /* the caller's, or a fresh one; all zero: none */
    uint8_t parent_id[8];            /* the caller's span */
    uint8_t span_id[8];              /* ours */
    char state[TRACE_STATE_MAX + 1]; /* tracestate, handed on as it came; "" without */
};

/* Reads the two headers (NULL: absent). A traceparent that is none leaves has_parent false, and tracestate is then ignored, as it is
 * where it is too long or has characters that it may not. Makes no ids. */
void trace_context_read(const char *traceparent, const char *tracestate, struct trace_context *out);
/* Makes what is missing: a trace id where there is no parent, a span id. */
void trace_context_begin(struct trace_context *context);
/* 32 lowercase hex digits and a NUL; "" where there is no trace id. */
void trace_context_id(const struct trace_context *context, char out[33]);
/* Whether a trace of this id belongs to the share that is kept. The same id gives the same answer everywhere: it is the lower 63 bits
 * of the id that decide, as in other implementations of TraceIdRatioBased. */
bool trace_id_in_ratio(const uint8_t trace_id[16], double ratio);
