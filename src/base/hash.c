#include "base/hash.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"

uint64_t hash_bytes(const void *bytes, size_t len, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h = hash_mix64(seed ^ 0x9e3779b97f4a7c15u ^ len), word;

    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&word, p, 8);
        h = hash_mix64(h ^ word) + 0x9e3779b97f4a7c15u;
    }
    if (len) {
        word = 0;
        memcpy(&word, p, len);
        h = hash_mix64(h ^ word);
    }
    return hash_mix64(h);
}

static uint64_t secret;

static void draw_secret(void)
{
    if (getrandom(&secret, sizeof secret, 0) != sizeof secret)
        secret = hash_mix64((uint64_t)clock_mono_ns() ^ (uint64_t)(uintptr_t)&secret);
}

uint64_t hash_secret(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, draw_secret);
    return secret;
}

void hash_philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}
