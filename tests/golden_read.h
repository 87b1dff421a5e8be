/* golden_read.h - reference values for tests: tensors of expected.safetensors, and .npy arrays.
 *
 * `path` is relative to tests/golden, as for test_golden(). A missing file or tensor fails the test. Results
 * are malloc'ed; the caller frees them. Needs inferd_formats; add ${PROJECT_SOURCE_DIR}/tests/golden_read.c
 * to the test's sources. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A tensor as floats (F32, F16, BF16, F8), and as 64-bit integers (any integer type). */
float *golden_tensor(const char *path, const char *name, size_t *count);
int64_t *golden_tensor_i64(const char *path, const char *name, size_t *count);
/* The same of integers that are token ids, with room for one more. */
int32_t *golden_ids(const char *path, const char *name, size_t *count);
/* Whether the tensor is there. */
int golden_has(const char *path, const char *name);

/* An array of a .npy file in the machine's byte order: '<f4', '|u1', '<u2' ... */
struct npy {
    char kind;           /* 'f', 'i', 'u' or 'b' */
    unsigned item_bytes; /* 1, 2, 4, 8 */
    unsigned dim_count;
    size_t dims[8];
    size_t count;
    void *data; /* owned */
};
void npy_read(const char *path, struct npy *out);
void npy_free(struct npy *npy);
