/* gguf_value.c - reading the values that gguf.c has located. */
#include <assert.h>

#include "base/log.h"
#include "base/utf8.h"
#include "formats/gguf.h"

const struct gguf_value *gguf_find(const struct gguf *gguf, struct slice key)
{
    uint32_t number = name_table_find(&gguf->keys, key);

    return number == NAME_NONE ? NULL : &gguf->values[number];
}

static const unsigned char *element(const struct gguf_value *value, uint64_t index)
{
    assert(index < value->count);
    return value->data + index * gguf_type_bytes(value->type);
}

/* An integer element as sign and 64 bits; bools and floats are none. */
static enum status integer(const struct gguf_value *value, uint64_t index, bool *negative,
                           uint64_t *out)
{
    const unsigned char *p = element(value, index);
    unsigned width = gguf_type_bytes(value->type), free_bits = 64 - 8 * width;
    uint64_t bits = 0;

    switch (value->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        memcpy(&bits, p, width);
        *negative = false;
        break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        memcpy(&bits, p, width);
        bits = (uint64_t)((int64_t)(bits << free_bits) >> free_bits);
        *negative = (int64_t)bits < 0;
        break;
    default: return STATUS_INVALID;
    }
    *out = bits;
    return STATUS_OK;
}

enum status gguf_u64(const struct gguf_value *value, uint64_t index, uint64_t *out)
{
    bool negative;
    uint64_t bits;
    enum status st = integer(value, index, &negative, &bits);

    if (st || negative) return STATUS_INVALID;
    *out = bits;
    return STATUS_OK;
}

enum status gguf_i64(const struct gguf_value *value, uint64_t index, int64_t *out)
{
    bool negative;
    uint64_t bits;
    enum status st = integer(value, index, &negative, &bits);

    if (st || (!negative && bits > INT64_MAX)) return STATUS_INVALID;
    *out = (int64_t)bits;
    return STATUS_OK;
}

enum status gguf_f64(const struct gguf_value *value, uint64_t index, double *out)
{
    const unsigned char *p = element(value, index);
    bool negative;
    uint64_t bits;
    float single;

    if (value->type == GGUF_F64) {
        memcpy(out, p, sizeof *out);
        return STATUS_OK;
    }
    if (value->type == GGUF_F32) {
        memcpy(&single, p, sizeof single);
        *out = (double)single;
        return STATUS_OK;
    }
    if (integer(value, index, &negative, &bits)) return STATUS_INVALID;
    *out = negative ? (double)(int64_t)bits : (double)bits;
    return STATUS_OK;
}

enum status gguf_bool(const struct gguf_value *value, uint64_t index, bool *out)
{
    const unsigned char *p = element(value, index);

    if (value->type != GGUF_BOOL) return STATUS_INVALID;
    if (*p > 1) return STATUS_CORRUPT;
    *out = *p != 0;
    return STATUS_OK;
}

enum status gguf_str(const struct gguf_value *value, uint64_t index, struct slice *out)
{
    const unsigned char *p;
    uint64_t len;

    assert(index < value->count);
    if (value->type != GGUF_STRING) return STATUS_INVALID;
    p = value->data + (value->index ? value->index[index] : 0);
    memcpy(&len, p, sizeof len);
    *out = slice_of(p + sizeof len, len);
    return utf8_valid(*out) ? STATUS_OK : STATUS_CORRUPT;
}

static void element_text(const struct gguf_value *value, uint64_t index, struct buf *out)
{
    struct slice text = {0};
    char quoted[96];
    bool flag, negative;
    uint64_t bits;
    double real;

    if (value->type == GGUF_STRING) {
        if (gguf_str(value, index, &text)) text = SLICE("(not UTF-8)");
        buf_append_str(out, log_quote(text, quoted, sizeof quoted));
    } else if (value->type == GGUF_BOOL) {
        buf_append_str(out, gguf_bool(value, index, &flag) ? "?" : flag ? "true" : "false");
    } else if (!integer(value, index, &negative, &bits)) {
        if (negative)
            buf_printf(out, "%lld", (long long)bits);
        else
            buf_printf(out, "%llu", (unsigned long long)bits);
    } else if (!gguf_f64(value, index, &real)) {
        buf_printf(out, "%.9g", real);
    }
}

void gguf_value_text(const struct gguf_value *value, struct buf *out)
{
    enum { SHOWN_MAX = 4 };

    if (value->is_array) buf_printf(out, "[%llu]", (unsigned long long)value->count);
    for (uint64_t i = 0; i < value->count && i < SHOWN_MAX; i++) {
        if (value->is_array) buf_append_str(out, i ? ", " : " ");
        element_text(value, i, out);
    }
    if (value->count > SHOWN_MAX) buf_append_str(out, ", ...");
}
