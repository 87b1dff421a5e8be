/* load.c - a model from its files to a running engine, with every limit worked out before anything large is taken. */
#include "cli/load.h"

#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/log.h"

enum {
    STEPS_INFLIGHT = 2, /* one on the device, one being planned ahead */
    LOGITS_ROWS_MIN =
        64, /* rows of logits a step can give, so that scoring a prompt goes in fair pieces */
};

/* "null:500" -> the number behind the colon; false when it is no plain number. */
static bool device_number(const char *text, size_t name_len, uint32_t *out)
{
    char *end;
    unsigned long value;

    if (!text[name_len]) return true; /* none given: keeps the default */
    if (text[name_len + 1] < '0' || text[name_len + 1] > '9') return false;
    value = strtoul(text + name_len + 1, &end, 10);
    *out = (uint32_t)value;
    return !*end && value <= 60000000;
}

static bool names_device(const char *text, const char *name)
{
    size_t len = strlen(name);

    return strncmp(text, name, len) == 0 && (!text[len] || text[len] == ':');
}

enum status load_device_options(const struct config *config, struct device_options *out,
                                struct error *err)
{
    const char *text = config->device ? config->device : "auto";
    uint32_t number = 0;
    bool right = true;

    *out = (struct device_options){
        .kind = DEVICE_CPU,
        .threads = (uint32_t)config->threads,
        .numerics = strcmp(config->cpu_numerics, "exact") == 0 ? CPU_EXACT : CPU_FAST,
        .isa = strcmp(config->cpu_isa, "auto") == 0 ? NULL : config->cpu_isa,
        .compute_dtype = strcmp(config->dtype, "float16") == 0 ? DTYPE_F16 : DTYPE_BF16,
        .enforce_eager = config->enforce_eager,
        .batch_invariant = config->batch_invariant,
    };
    if (names_device(text, "null")) {
        right = device_number(text, 4, &number);
        out->kind = DEVICE_NULL;
        out->null_step_us = number;
    } else if (names_device(text, "cuda")) {
        right = device_number(text, 4, &number) && number < 1024;
        out->kind = DEVICE_CUDA;
        out->ordinal = (int)number;
    } else {
        right = strcmp(text, "cpu") == 0 || strcmp(text, "auto") == 0;
    }
    if (!right)
        return error_set(err, STATUS_INVALID,
                         "--device is \"%s\"; it must be auto, cpu, cuda, cuda:N or null:STEP_US",
                         text);
    return STATUS_OK;
}
