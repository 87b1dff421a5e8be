/* fuzz_json_guard.c - no text crashes the JSON reader, and building agrees with checking.
 * What comes out prints to JSON that reads to an equal value. */
#include <stdint.h>
#include <stdlib.h>

#include "base/json_guard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_limits limits = {.depth_max = 32, .values_max = 10000, .memory_max = 1 << 20};
    struct error err;
    struct slice text = slice_of(data, size);
    json_t *value = NULL, *again = NULL;
    enum status checked = json_guard_check(text, &limits, &err),
                st = json_guard_parse(text, &limits, &value, &err);
    char *printed;

    if (checked != st || !st != !!value) abort();
    if (st) return 0;
    printed = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    limits.values_max = limits.memory_max = 0;
    if (!printed || json_guard_parse(slice_str(printed), &limits, &again, &err)) abort();
    if (!json_equal(value, again)) abort();
    free(printed);
    json_decref(again);
    json_decref(value);
    return 0;
}
