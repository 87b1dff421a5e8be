/* smollm2.h - SmolLM2-135M-Instruct Q4_1 and its reference texts (golden/smollm2), for tests of whole runs.
 *
 * Add ${PROJECT_SOURCE_DIR}/tests/smollm2.c to the test's sources. */
#pragma once

#include <jansson.h>
#include <stdint.h>

/* The model's file: INFERD_SMOLLM2, else where tests/run.sh puts it. NULL, and said so: it is not there. */
const char *smollm2_path(void);
/* A .json.xz file below tests/golden, to be freed with json_decref(). One that cannot be read fails the test. */
json_t *smollm2_json(const char *relative);
/* The ids of an array; how many. More than max fail the test. */
uint32_t smollm2_ids(const json_t *array, int32_t *out, uint32_t max);

/* Of a row of logits: log of the sum of exp(), and the place of the largest (the first of equals). */
double log_total(const float *row, uint32_t n);
uint32_t argmax(const float *row, uint32_t n);
