/* proto_out.h - Responses as bytes: each a field `responses` of a Batch, appended to a buf. */
#pragma once

#include "base/buf.h"
#include "base/slice.h"

#include <inferd.pb-c.h>
#include <stdint.h>

/* Appends the Response; a buf without room becomes failed. */
void proto_out(const Inferd__V1__Response *response, struct buf *out);
/* ids are borrowed during the call. */
void proto_out_ids(uint64_t id, const int32_t *ids, size_t count, uint32_t context_tokens,
                   struct buf *out);
void proto_out_text(uint64_t id, struct slice text, struct buf *out);

static inline ProtobufCBinaryData proto_bytes(struct slice text)
{
    return (ProtobufCBinaryData){text.len, (uint8_t *)(uintptr_t)text.ptr};
}
static inline char *proto_string(const char *text) /* protobuf-c's strings are not const */
{
    return (char *)(uintptr_t)(text ? text : "");
}
