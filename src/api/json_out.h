/* json_out.h - JSON text appended to a buf: what a chunk of an answer is made of, without a tree in between. */
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"

/* The characters of a JSON string, without quotes. `text` is valid UTF-8. */
void json_out_escaped(struct buf *out, struct slice text);
/* The same with quotes around it. */
void json_out_string(struct buf *out, struct slice text);
void json_out_u64(struct buf *out, uint64_t value);
/* A log probability: at most 0, 8 decimals; not finite, or below -9999: -9999.0. */
void json_out_logprob(struct buf *out, float value);
/* [1,2,3] */
void json_out_ids(struct buf *out, const int32_t *ids, size_t count);
