/* gemm_cache.h - which algorithm a library product uses, kept on disk so that it is measured once per machine and not at
 * every start: plain C, always built.
 *
 * One text file per key in the cache folder, products-<hash of the key>.txt:
 *   inferd products 1
 *   <key: device, driver, library, number type, workspace>
 *   <N> <K> <ldx> <ldy> <y is float32> <rows> <16 hex digits> x 8
 *   ...
 *   sum <hash of all lines above>
 * How the medium products are cut is kept here too (cuda_medium.c): rows is 0 there, which no product of the library has.
 * A file that is cut, changed or of another key counts as empty, with one line in the log; it is written whole and renamed into
 * place. Not being able to write costs a line in the log and the time at the next start, nothing else.
 * Thread: one. Memory: the entries, grown as they come. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct gemm_cache;

enum {
    GEMM_ALGORITHM_WORDS = 8
}; /* cublasLtMatmulAlgo_t, which its library may write and read back */
struct gemm_choice {
    uint32_t N, K;
    uint64_t ldx, ldy;
    bool y_float;
    uint32_t rows; /* of the bucket */
    uint64_t algorithm[GEMM_ALGORITHM_WORDS];
};

/* folder is made where it is missing; NULL: nothing is kept. Never fails: at worst the cache is empty; NULL without memory. */
struct gemm_cache *gemm_cache_open(const char *folder, const char *key);
/* True and choice->algorithm filled where the rest of it is known. Takes NULL. */
bool gemm_cache_find(const struct gemm_cache *cache, struct gemm_choice *choice);
void gemm_cache_add(struct gemm_cache *cache, const struct gemm_choice *choice); /* takes NULL */
/* Writes what was added since opening, if anything was, and frees. Takes NULL. */
void gemm_cache_close(struct gemm_cache *cache);
