/* fuzz_gguf.c - no GGUF directory leads outside the file, and every value in it can be asked for. */
#include <stdint.h>
#include <stdlib.h>

#include "formats/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Asks for elements by every type; whatever is given back is read. */
static void read_value(const struct gguf_value *value)
{
    uint64_t u, sum = 0;
    int64_t i;
    double f;
    bool b;
    struct slice s;

    for (uint64_t at = 0; at < value->count && at < 64; at++) {
        if (!gguf_u64(value, at, &u) && gguf_i64(value, at, &i) == STATUS_OK && (uint64_t)i != u)
            abort();
        if (!gguf_f64(value, at, &f) && value->type == GGUF_STRING) abort();
        (void)gguf_bool(value, at, &b);
        if (gguf_str(value, at, &s)) continue;
        for (size_t k = 0; k < s.len; k++)
            sum += (unsigned char)s.ptr[k];
    }
    if (sum == UINT64_MAX) abort(); /* keeps the reads */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf gguf;
    struct tensor_list tensors = {0};
    struct error err;
    struct buf text;
    enum status st = gguf_parse(slice_of(data, size), "fuzz", &gguf, &tensors, &err);

    buf_init(&text, 0);
    for (uint32_t i = 0; !st && i < gguf.keys.count; i++) {
        read_value(&gguf.values[i]);
        gguf_value_text(&gguf.values[i], &text);
        if (gguf_find(&gguf, gguf.keys.names[i]) != &gguf.values[i]) abort();
    }
    for (uint32_t i = 0; !st && i < tensors.count; i++) {
        const uint8_t *from = tensors.views[i].data;
        if (from < data || tensors.views[i].bytes > (uint64_t)(data + size - from)) abort();
    }
    buf_fini(&text);
    gguf_fini(&gguf);
    tensor_list_fini(&tensors);
    return 0;
}
