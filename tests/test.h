/* test.h - a thin skin over cmocka.
 *
 *     TEST(alloc_takes_all_or_nothing)
 *     {
 *         EXPECT_EQ(f(2), 4);
 *     }
 *
 * A TEST registers itself; test_main.c runs all of a program, or those whose name contains argv[1].
 * test_rand() is seeded from INFERD_TEST_SEED or the clock; a failing program prints its seed. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

typedef void (*test_fn)(void **state);
void test_register(const char *name, test_fn fn);

#define TEST(name)                                                 \
    static void test_##name(void **state);                         \
    __attribute__((constructor)) static void register_##name(void) \
    {                                                              \
        test_register(#name, test_##name);                         \
    }                                                              \
    static void test_##name(__attribute__((unused)) void **state)

#define EXPECT_TRUE(cond)                                                        \
    do {                                                                         \
        if (!(cond)) fail_msg("%s:%d: not true: %s", __FILE__, __LINE__, #cond); \
    } while (0)
#define EXPECT_EQ(a, b)                                                                            \
    do {                                                                                           \
        long long a_ = (long long)(a), b_ = (long long)(b);                                        \
        if (a_ != b_)                                                                              \
            fail_msg("%s:%d: %s is %lld; expected %s = %lld", __FILE__, __LINE__, #a, a_, #b, b_); \
    } while (0)
#define EXPECT_OK(call)                                                                        \
    do {                                                                                       \
        enum status st_ = (call);                                                              \
        if (st_) fail_msg("%s:%d: %s gave '%s'", __FILE__, __LINE__, #call, status_name(st_)); \
    } while (0)
/* The same for calls that fill `err`: prints its sentence. */
#define EXPECT_OK_ERR(call, err)                                                             \
    do {                                                                                     \
        enum status st_ = (call);                                                            \
        if (st_)                                                                             \
            fail_msg("%s:%d: %s gave '%s': %s", __FILE__, __LINE__, #call, status_name(st_), \
                     (err)->message);                                                        \
    } while (0)
#define EXPECT_STR(a, b)                                                                      \
    do {                                                                                      \
        const char *a_ = (a), *b_ = (b);                                                      \
        if (strcmp(a_, b_) != 0)                                                              \
            fail_msg("%s:%d: %s is \"%s\"; expected \"%s\"", __FILE__, __LINE__, #a, a_, b_); \
    } while (0)
#define EXPECT_NEAR(a, b, tolerance)                                                             \
    do {                                                                                         \
        double a_ = (a), b_ = (b), t_ = (tolerance);                                             \
        if (!(a_ - b_ <= t_ && b_ - a_ <= t_))                                                   \
            fail_msg("%s:%d: %s is %.9g; expected %.9g within %.3g", __FILE__, __LINE__, #a, a_, \
                     b_, t_);                                                                    \
    } while (0)

uint64_t test_seed(void);                 /* the seed of this run */
uint64_t test_rand(void);                 /* next 64 random bits (splitmix64) */
uint32_t test_rand_below(uint32_t bound); /* uniform in 0..bound-1 */
double test_rand_unit(void);              /* uniform in [0, 1) */
int test_long(void);                      /* whether INFERD_TEST_LONG asks for the full counts */

/* A copy of len bytes that ends exactly at an unmapped page: a read past the end is a fault. */
unsigned char *test_guarded_copy(const void *bytes, size_t len);
void test_guarded_free(unsigned char *copy, size_t len);

/* Path of a file below tests/golden, or below the full golden folder when it is found: the one that INFERD_GOLDEN
 * names, or the one beside the checkout (../shared/golden); NULL when it is in neither. Static storage, valid until the next call. */
const char *test_golden(const char *relative);
