#include "device/device_fault.h"

#include <stdlib.h>
#include <string.h>

enum status device_fault_parse(const char *text, struct device_fault *out, struct error *err)
{
    static const char *const names[] = {
        [FAULT_STEP] = "step@",
        [FAULT_LOST] = "lost@",
        [FAULT_HANG] = "hang@",
        [FAULT_ALLOC] = "alloc@",
    };
    char *end;

    *out = (struct device_fault){FAULT_NONE, 0};
    if (!text || !*text) return STATUS_OK;
    for (int kind = FAULT_STEP; kind <= FAULT_ALLOC; kind++) {
        size_t length = strlen(names[kind]);
        if (strncmp(text, names[kind], length) != 0) continue;
        const char *number = text + length;
        out->at = strtoull(number, &end, 10);
        if (*number >= '1' && *number <= '9' && !*end) {
            out->kind = (enum fault_kind)kind;
            return STATUS_OK;
        }
    }
    *out = (struct device_fault){FAULT_NONE, 0};
    return error_set(err, STATUS_INVALID,
                     "--inject-fault is \"%.60s\"; it must be step@N, lost@N, hang@N or alloc@N, N "
                     "the number of a step from 1 on",
                     text);
}
