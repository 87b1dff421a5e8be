/* hash.h - short non-cryptographic hashes and the counter-based random bits of the sampler.
 * Source: MurmurHash3's 64-bit finaliser (Appleby, public domain); Philox4x32-10 (Salmon et al.,
 * "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), known-answer vectors in its tests. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A bijection of 64-bit words that spreads every bit. */
static inline uint64_t hash_mix64(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

/* Hash of a run of bytes; equal on every machine. Not for adversarial keys: see hash_secret(). */
uint64_t hash_bytes(const void *bytes, size_t len, uint64_t seed);

/* A seed drawn once per process from the system: for tables whose keys come from clients. */
uint64_t hash_secret(void);

/* Philox4x32-10: four 32-bit words for (key, counter). The sampler's draw for a sequence with seed s
 * at position p is philox4x32({s}, {p, stream}), independent of slot, batch and step. */
void hash_philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);
