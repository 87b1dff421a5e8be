/* test_cuda_driver.c - who has no GPU is told why, and what would be right.
 *
 * Method: the versions of no driver, an old one, one that is new enough; the whole sentence. */
#include "test.h"

#include "device/cuda/cuda_driver.h"

static void expect(int driver, int runtime, const char *sentence)
{
    struct error err;

    EXPECT_EQ(cuda_driver_fault(driver, runtime, "all CUDA-capable devices are busy", &err),
              STATUS_UNSUPPORTED);
    EXPECT_EQ(err.status, STATUS_UNSUPPORTED);
    EXPECT_STR(err.message, sentence);
}

TEST(no_driver_is_not_an_old_one)
{
    expect(0, 13010, "no NVIDIA driver: one for CUDA 13 or newer is right");
    expect(0, 12040, "no NVIDIA driver: one for CUDA 12 or newer is right");
}

TEST(of_an_old_driver_both_versions_are_told)
{
    expect(12040, 13010,
           "the NVIDIA driver is for CUDA 12.4 and this program for CUDA 13.1: a driver for CUDA "
           "13 or newer is right");
}

TEST(where_the_driver_is_right_the_runtimes_words_are_told)
{
    expect(
        13000, 13010,
        "no CUDA device: all CUDA-capable devices are busy (the NVIDIA driver is for CUDA 13.0)");
    expect(
        14020, 13010,
        "no CUDA device: all CUDA-capable devices are busy (the NVIDIA driver is for CUDA 14.2)");
}
