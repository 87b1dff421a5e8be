/* config_private.h - the option table as an array, for the files of this folder. */
#pragma once

#include <stddef.h>

#include "config/config.h"

enum option_type { OPT_STRING, OPT_STRINGS, OPT_UINT, OPT_BYTES, OPT_REAL, OPT_BOOL, OPT_CHOICE };

struct option {
    const char *field; /* with underscores */
    enum option_type type;
    const char *def;
    double low, high;
    const char *unit; /* words of a CHOICE */
    const char *alias;
    const char *group;
    const char *sentence;
    size_t offset; /* in struct config */
};

extern const struct option config_options[];
extern const uint32_t config_option_count;

/* What to say of an option that vLLM or llama-server has and we have otherwise or not: static, or NULL. */
const char *config_hint(const char *name);

/* "max_model_len" -> "max-model-len" in `out`. */
const char *option_flag(const struct option *option, char out[static 64]);
