/* smollm2.c - see smollm2.h. */
#include "smollm2.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"

const char *smollm2_path(void)
{
    static char path[4096];
    const char *given = getenv("INFERD_SMOLLM2"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");

    if (given)
        snprintf(path, sizeof path, "%s", given);
    else if (cache && *cache)
        snprintf(path, sizeof path, "%s/inferd/models/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/inferd/models/SmolLM2-135M-Instruct.Q4_1.gguf",
                 home ? home : "");
    if (access(path, R_OK) == 0) return path;
    print_message("  skipped: %s is not there\n", path);
    return NULL;
}

json_t *smollm2_json(const char *relative)
{
    char command[4200];
    json_error_t error;
    const char *path = test_golden(relative);

    if (!path) fail_msg("golden file %s is not there", relative);
    snprintf(command, sizeof command, "xz -dc '%s'", path);
    FILE *pipe = popen(command, "r");
    json_t *root = pipe ? json_loadf(pipe, 0, &error) : NULL;
    if (pipe) pclose(pipe);
    if (!root) fail_msg("cannot read %s: %s", relative, error.text);
    return root;
}

uint32_t smollm2_ids(const json_t *array, int32_t *out, uint32_t max)
{
    size_t i;
    json_t *v;

    EXPECT_TRUE(json_array_size(array) <= max);
    json_array_foreach(array, i, v) out[i] = (int32_t)json_integer_value(v);
    return (uint32_t)json_array_size(array);
}

double log_total(const float *row, uint32_t n)
{
    double top = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        if ((double)row[i] > top) top = (double)row[i];
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)row[i] - top);
    return top + log(sum);
}

uint32_t argmax(const float *row, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}
