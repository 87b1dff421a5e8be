#include "test.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TESTS_MAX = 256 };
static struct CMUnitTest tests[TESTS_MAX];
static size_t test_count;
static uint64_t seed, rand_state;

void test_register(const char *name, test_fn fn)
{
    if (test_count == TESTS_MAX) abort();
    tests[test_count++] = (struct CMUnitTest){name, fn, NULL, NULL, NULL};
}

uint64_t test_seed(void)
{
    return seed;
}

uint64_t test_rand(void)
{
    uint64_t z = (rand_state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t test_rand_below(uint32_t bound)
{
    return (uint32_t)(((test_rand() >> 32) * bound) >> 32);
}

double test_rand_unit(void)
{
    return (double)(test_rand() >> 11) * 0x1p-53;
}

int test_long(void)
{
    const char *value = getenv("INFERD_TEST_LONG");

    return value && strcmp(value, "0") != 0;
}

unsigned char *test_guarded_copy(const void *bytes, size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (len + page - 1) / page;
    unsigned char *base =
        mmap(NULL, (pages + 1) * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED || mprotect(base + pages * page, page, PROT_NONE)) abort();
    unsigned char *copy = base + pages * page - len;
    if (len) memcpy(copy, bytes, len);
    return copy;
}

void test_guarded_free(unsigned char *copy, size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (len + page - 1) / page;

    munmap(copy + len - pages * page, (pages + 1) * page);
}

const char *test_golden(const char *relative)
{
    static char path[4096];

    snprintf(path, sizeof path, "%s/tests/golden/%s", INFERD_SOURCE_DIR, relative);
    if (access(path, R_OK) == 0) return path;
    if (getenv("INFERD_GOLDEN")) {
        snprintf(path, sizeof path, "%s/%s", getenv("INFERD_GOLDEN"), relative);
        if (access(path, R_OK) == 0) return path;
    }
    snprintf(path, sizeof path, "%s/../shared/golden/%s", INFERD_SOURCE_DIR, relative);
    return access(path, R_OK) == 0 ? path : NULL;
}

int main(int argc, char **argv)
{
    const char *given = getenv("INFERD_TEST_SEED");
    int failed;

    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    rand_state = seed;
    if (argc > 1) {
        size_t kept = 0;
        for (size_t i = 0; i < test_count; i++)
            if (strstr(tests[i].name, argv[1])) tests[kept++] = tests[i];
        test_count = kept;
        if (!kept) {
            fprintf(stderr, "no test here has '%s' in its name\n", argv[1]);
            return 2;
        }
    }
    failed = _cmocka_run_group_tests(argv[0], tests, test_count, NULL, NULL);
    if (failed) fprintf(stderr, "repeat with INFERD_TEST_SEED=%llu\n", (unsigned long long)seed);
    return failed != 0;
}
