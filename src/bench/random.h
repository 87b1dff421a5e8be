/* random.h - seeded draws for load and traces: equal on every machine for a seed. */
#pragma once

#include <math.h>
#include <stdint.h>

#include "base/hash.h"

struct random_state {
    uint64_t state;
};

static inline uint64_t random_next(struct random_state *r)
{
    return hash_mix64(r->state +=
                      0x9e3779b97f4a7c15u); /* a Weyl sequence, mixed: splitmix64's idea */
}

/* Uniform in (0, 1). */
static inline double random_unit(struct random_state *r)
{
    return ((double)(random_next(r) >> 11) + 0.5) * 0x1p-53;
}

/* Uniform in low..high, both included. */
static inline uint32_t random_between(struct random_state *r, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(random_unit(r) * ((double)high - low + 1));
}

static inline double random_normal(struct random_state *r)
{
    return sqrt(-2 * log(random_unit(r))) * cos(6.283185307179586 * random_unit(r));
}

/* Gamma with this shape and mean 1. Source: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; a
 * shape below 1 by the boost of their section 6. */
static inline double random_gamma(struct random_state *r, double shape)
{
    double boost = 1, d, c, x, v;

    if (shape == 1) return -log(random_unit(r));
    if (shape < 1) boost = pow(random_unit(r), 1 / shape);
    d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
    c = 1 / sqrt(9 * d);
    do {
        do {
            x = random_normal(r);
            v = 1 + c * x;
        } while (v <= 0);
        v = v * v * v;
    } while (log(random_unit(r)) >= 0.5 * x * x + d - d * v + d * log(v));
    return d * v * boost / shape;
}
