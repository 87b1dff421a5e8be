/* otlp_encode.h - requests as spans in the bytes of an OTLP ExportTraceServiceRequest (proto/otlp_trace.proto).
 *
 * A request is one span of kind SERVER, "chat MODEL" or "text_completion MODEL", a child of the caller's where there is one; each stage of
 * its ledger is a child of that, one behind the other, so that they cover it without a gap. Attributes: OpenTelemetry's
 * semantic conventions for generative AI (gen_ai.*), HTTP (http.*, url.path, client.address) and errors (error.type); vLLM's gen_ai.latency.*
 * beside them, for what reads its traces; our own as inferd.*. No text of prompts or answers. Pure. */
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "observe/request_record.h"

struct otlp_resource {
    const char *service_name, *service_version, *instance_id;
    const char *attributes; /* "name=value,name=value", values percent-encoded; NULL: none */
};

/* Appends the message. *spans: how many it has. Errors: STATUS_NOMEM, and what `out` gives. */
enum status otlp_encode(const struct otlp_resource *resource, const struct request_record *records,
                        uint32_t count, struct buf *out, uint32_t *spans);

/* Takes the next "name=value" off a comma-separated list, the value percent-decoded (W3C Baggage, as OTEL_* variables have it). False: the
 * list is at its end. Entries that are none are skipped. */
bool otlp_next_pair(const char **list, char *name, size_t name_size, char *value,
                    size_t value_size);
