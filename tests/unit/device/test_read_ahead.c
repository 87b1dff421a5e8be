/* test_read_ahead.c - every listed page is brought in, in order and never too far ahead of the reader.
 * Method: a file whose pages are dropped from this process's tables; MADV_POPULATE_READ must put them back, which
 * /proc/self/pagemap shows; a reader that stands still holds it back at its bound. */
#include "device/read_ahead.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

enum { BYTES = 40 << 20, PIECE = 4 << 20 };

static char *map_file(void)
{
    char name[] = "/tmp/inferd-ahead-XXXXXX";
    int fd = mkstemp(name);
    char *at;

    EXPECT_TRUE(fd >= 0);
    unlink(name);
    for (int i = 0; i < BYTES / 4096; i++) {
        char page[4096] = {(char)i};
        EXPECT_EQ(write(fd, page, sizeof page), sizeof page);
    }
    at = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    EXPECT_TRUE(at != MAP_FAILED);
    close(fd);
    return at;
}

/* Pages of [at, at + bytes) that this process's tables hold. */
static uint32_t present(const char *at, uint64_t bytes)
{
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    uint32_t count = 0;

    if (fd < 0) skip();
    for (uint64_t i = 0; i < bytes; i += 4096) {
        uint64_t entry = 0;
        off_t place = (off_t)(((uintptr_t)at + i) / 4096 * sizeof entry);
        EXPECT_EQ(pread(fd, &entry, sizeof entry, place), sizeof entry);
        count += entry >> 63;
    }
    close(fd);
    return count;
}

static void wait_done(const struct read_ahead *ra, uint64_t bytes)
{
    for (int i = 0; i < 10000 && read_ahead_done(ra) < bytes; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    EXPECT_EQ(read_ahead_done(ra), bytes);
}

TEST(all_listed_pages_are_brought_in_and_no_others)
{
    char *at = map_file();
    struct read_ahead *ra;
    struct error err;
    uint64_t listed = 0;

    EXPECT_OK_ERR(read_ahead_create(&ra, &err), &err);
    for (uint64_t i = 0; i + (1 << 20) <= BYTES / 2;
         i += 2 << 20) { /* every second MiB of a half */
        EXPECT_OK(read_ahead_add(ra, at + i, 1 << 20, &err));
        listed += 1 << 20;
    }
    EXPECT_OK(read_ahead_add(ra, at + BYTES / 2, 10 << 20, &err)); /* and neighbours */
    EXPECT_OK(read_ahead_add(ra, at + BYTES / 2 + (10 << 20), 5 << 20, &err));
    listed += 15 << 20;
    read_ahead_start(ra, 3, UINT64_MAX / 2);
    wait_done(ra, listed);
    read_ahead_end(ra);
    for (uint64_t i = 0; i + (1 << 20) <= BYTES / 2; i += 2 << 20)
        EXPECT_EQ(present(at + i, 1 << 20), 256);
    EXPECT_EQ(present(at + BYTES / 2, 15 << 20), 15 * 256);
    EXPECT_EQ(present(at + BYTES - (4 << 20), 4 << 20), 0);
    munmap(at, BYTES);
}

TEST(it_stays_within_its_bound_of_a_reader_that_stands_still)
{
    char *at = map_file();
    struct read_ahead *ra;
    struct error err;

    EXPECT_OK_ERR(read_ahead_create(&ra, &err), &err);
    EXPECT_OK(read_ahead_add(ra, at, BYTES, &err));
    read_ahead_start(ra, 2, 8 << 20);
    wait_done(ra, 8 << 20); /* whole pieces: two of them */
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    EXPECT_EQ(read_ahead_done(ra), 8 << 20);
    read_ahead_reached(ra, 1);
    wait_done(ra, 12 << 20);
    read_ahead_reached(ra, BYTES);
    wait_done(ra, BYTES);
    read_ahead_end(ra);
    munmap(at, BYTES);
}

TEST(it_can_end_at_any_time)
{
    char *at = map_file();
    struct error err;

    for (uint32_t i = 0; i < 20; i++) {
        struct read_ahead *ra;
        EXPECT_OK_ERR(read_ahead_create(&ra, &err), &err);
        if (i) EXPECT_OK(read_ahead_add(ra, at + test_rand_below(BYTES / 2), BYTES / 2, &err));
        if (i != 1) read_ahead_start(ra, test_rand_below(5), test_rand_below(BYTES) + 1);
        read_ahead_end(ra);
    }
    read_ahead_end(NULL);
    munmap(at, BYTES);
}
