/* fuzz_safetensors.c - no header leads outside the file; what is taken covers the data without overlap. */
#include <stdint.h>
#include <stdlib.h>

#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tensor_list tensors = {0};
    struct error err;
    uint64_t header = 0, sum = 0;
    enum status st = safetensors_parse(slice_of(data, size), "fuzz", &tensors, &err);

    for (uint32_t i = 0; !st && i < tensors.count; i++) {
        const struct weight_view *view = &tensors.views[i];
        const uint8_t *from = view->data;
        if (from < data || view->bytes > (uint64_t)(data + size - from)) abort();
        if (safetensors_entry_offset(slice_of(data, size), view->name) >= size) abort();
        sum += view->bytes;
    }
    if (!st) memcpy(&header, data, sizeof header);
    if (!st && sum + header + 8 != size) abort();
    tensor_list_fini(&tensors);
    return 0;
}
