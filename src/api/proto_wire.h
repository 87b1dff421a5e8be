/* proto_wire.h - protobuf's wire format, as far as the outer fields of a message need it. Pure.
 *
 * A walk gives each field's number and value; strings and messages are borrowed slices. Malformed input (a varint that
 * never ends, a length past the end, a group, field number 0) ends the walk with WIRE_BAD. */
#pragma once

#include <stdint.h>

#include "base/slice.h"

struct wire {
    const unsigned char *at, *end;
};
enum wire_step { WIRE_FIELD, WIRE_END, WIRE_BAD };
struct wire_field {
    uint32_t number;
    bool is_bytes;
    uint64_t value;     /* of a number (fixed ones as their bits) */
    struct slice bytes; /* is_bytes */
};

static inline struct wire wire_of(struct slice message)
{
    const unsigned char *at = (const unsigned char *)message.ptr;

    return (struct wire){at, message.len ? at + message.len : at};
}

static inline bool wire_varint(struct wire *wire, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && wire->at < wire->end; shift += 7) {
        unsigned char byte = *wire->at++;

        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

static inline bool wire_take(struct wire *wire, uint64_t len, struct slice *out)
{
    if (len > (uint64_t)(wire->end - wire->at)) return false;
    *out = slice_of(wire->at, (size_t)len);
    wire->at += len;
    return true;
}

static inline enum wire_step wire_next(struct wire *wire, struct wire_field *out)
{
    uint64_t tag, len;

    *out = (struct wire_field){0};
    if (wire->at == wire->end) return WIRE_END;
    if (!wire_varint(wire, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff) return WIRE_BAD;
    out->number = (uint32_t)(tag >> 3);
    switch (tag & 7) {
    case 0: return wire_varint(wire, &out->value) ? WIRE_FIELD : WIRE_BAD;
    case 1:
    case 5:
        if (!wire_take(wire, (tag & 7) == 1 ? 8 : 4, &out->bytes)) return WIRE_BAD;
        memcpy(&out->value, out->bytes.ptr, out->bytes.len);
        return WIRE_FIELD;
    case 2:
        out->is_bytes = true;
        return wire_varint(wire, &len) && wire_take(wire, len, &out->bytes) ? WIRE_FIELD : WIRE_BAD;
    default: return WIRE_BAD;
    }
}
