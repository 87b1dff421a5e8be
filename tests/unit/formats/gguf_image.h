/* gguf_image.h - writes GGUF files field by field, so that a test can put any fault into one. */
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "formats/gguf.h"

static inline void put_u32(struct buf *b, uint32_t x)
{
    buf_append(b, &x, sizeof x);
}

static inline void put_u64(struct buf *b, uint64_t x)
{
    buf_append(b, &x, sizeof x);
}

static inline void put_slice(struct buf *b, struct slice s)
{
    put_u64(b, s.len);
    buf_append_slice(b, s);
}

static inline void put_str(struct buf *b, const char *s)
{
    put_slice(b, slice_str(s));
}

static inline void put_header(struct buf *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    buf_append(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, keys);
}

/* A key with a scalar of `bytes` bytes. */
static inline void put_scalar(struct buf *b, const char *key, uint32_t type, const void *value,
                              size_t bytes)
{
    put_str(b, key);
    put_u32(b, type);
    buf_append(b, value, bytes);
}

static inline void put_key_u32(struct buf *b, const char *key, uint32_t value)
{
    put_scalar(b, key, GGUF_U32, &value, sizeof value);
}

static inline void put_key_u16(struct buf *b, const char *key, uint16_t value)
{
    put_scalar(b, key, GGUF_U16, &value, sizeof value);
}

static inline void put_key_str(struct buf *b, const char *key, const char *value)
{
    put_str(b, key);
    put_u32(b, GGUF_STRING);
    put_str(b, value);
}

static inline void put_array(struct buf *b, const char *key, uint32_t type, uint64_t count)
{
    put_str(b, key);
    put_u32(b, GGUF_ARRAY);
    put_u32(b, type);
    put_u64(b, count);
}

static inline void put_tensor(struct buf *b, const char *name, uint32_t type, uint32_t dim_count,
                              const uint64_t *dims, uint64_t offset)
{
    put_str(b, name);
    put_u32(b, dim_count);
    for (uint32_t i = 0; i < dim_count; i++)
        put_u64(b, dims[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

static inline void put_1d(struct buf *b, const char *name, uint32_t type, uint64_t cols,
                          uint64_t offset)
{
    put_tensor(b, name, type, 1, &cols, offset);
}

/* Zeros up to a multiple of `alignment`, then `bytes` counting bytes. */
static inline void put_data(struct buf *b, size_t alignment, size_t bytes)
{
    while (b->len % alignment)
        buf_append_char(b, '\0');
    for (size_t i = 0; i < bytes; i++)
        buf_append_char(b, (char)(unsigned char)i);
}
