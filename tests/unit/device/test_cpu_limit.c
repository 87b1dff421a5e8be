/* test_cpu_limit.c - a container's CPU limit, of either version and at any level, is seen; a list of processors is read
 * or refused by name.
 * Method: trees of /proc and /sys written under the build folder; what they must give is the kernel's documentation
 * (cgroup-v2.rst, sched-bwc.rst). */
#include "test.h"

#include <sched.h>

#include "device/cpu/cpu_limit.h"
#include "fake_system.h"

#define V2 "sys/fs/cgroup/"
#define V1 "sys/fs/cgroup/cpu,cpuacct/"

TEST(version_two_limits_count_at_every_level)
{
    make_root("0::/kubepods/pod1\n");
    EXPECT_EQ(cpu_limit_cgroup(root), UINT32_MAX); /* no file says anything */
    write_file(V2 "kubepods/pod1/cpu.max", "max 100000\n");
    EXPECT_EQ(cpu_limit_cgroup(root), UINT32_MAX);
    write_file(V2 "kubepods/cpu.max", "650000 100000\n");
    EXPECT_EQ(cpu_limit_cgroup(root), 6); /* the group above, whole processors */
    write_file(V2 "kubepods/pod1/cpu.max", "200000 100000\n");
    EXPECT_EQ(cpu_limit_cgroup(root), 2);
    write_file(V2 "kubepods/pod1/cpu.max", "50000 100000\n");
    EXPECT_EQ(cpu_limit_cgroup(root), 1); /* never none */
    remove_root();
}

TEST(a_container_that_sees_only_its_own_mount_is_limited)
{
    make_root("0::/docker/0123abc\n"); /* the host's path; only the mount's root is there */
    write_file(V2 "cpu.max", "300000 100000\n");
    EXPECT_EQ(cpu_limit_cgroup(root), 3);
    remove_root();
    make_root("0::/\n");
    write_file(V2 "cpu.max", "400000 100000\n");
    EXPECT_EQ(cpu_limit_cgroup(root), 4);
    remove_root();
}

TEST(version_one_limits_count)
{
    make_root("12:cpuset:/a\n7:cpu,cpuacct:/docker/x\n0::/\n");
    write_file("sys/fs/cgroup/cpuset/a/cpu.cfs_quota_us", "100000\n"); /* of no meaning there */
    write_file("sys/fs/cgroup/cpuset/a/cpu.cfs_period_us", "100000\n");
    write_file(V1 "docker/x/cpu.cfs_period_us", "50000\n");
    write_file(V1 "docker/x/cpu.cfs_quota_us", "-1\n");
    EXPECT_EQ(cpu_limit_cgroup(root), UINT32_MAX);
    write_file(V1 "docker/x/cpu.cfs_quota_us", "250000\n");
    EXPECT_EQ(cpu_limit_cgroup(root), 5);
    remove_root();
}

TEST(files_of_nonsense_limit_nothing)
{
    make_root("nothing\n0::\n5:cpu\n0::/x\n");
    write_file(V2 "x/cpu.max", "-5 100000\n");
    EXPECT_EQ(cpu_limit_cgroup(root), UINT32_MAX);
    write_file(V2 "x/cpu.max", "100000 0\n");
    EXPECT_EQ(cpu_limit_cgroup(root), UINT32_MAX);
    write_file(V2 "x/cpu.max", "");
    EXPECT_EQ(cpu_limit_cgroup(root), UINT32_MAX);
    remove_root();
    EXPECT_EQ(cpu_limit_cgroup("/no/such/folder"), UINT32_MAX);
    EXPECT_TRUE(cpu_limit_processors() >= 1);
}

TEST(lists_are_read_and_threads_bound)
{
    struct cpu_list list;
    struct error err;
    cpu_set_t kept, now;
    char text[64];
    uint32_t first = 0;

    EXPECT_EQ(sched_getaffinity(0, sizeof kept, &kept), 0);
    while (!CPU_ISSET(first, &kept))
        first++;
    snprintf(text, sizeof text, "%u,%u-%u", first, first, first);
    EXPECT_OK_ERR(cpu_list_parse(text, &list, &err), &err);
    EXPECT_EQ(list.count, 1);
    EXPECT_EQ(list.ids[0], first);
    EXPECT_OK_ERR(cpu_list_bind(&list, 7, &err), &err); /* more threads than processors: around */
    EXPECT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1);
    EXPECT_TRUE(CPU_ISSET(first, &now));
    EXPECT_EQ(sched_setaffinity(0, sizeof kept, &kept), 0);
}

TEST(wrong_lists_are_refused)
{
    static const char *const wrong[] = {"",   ",",    "0,",  "a",    "-1",         "3-1",
                                        "0-", "0 ,1", "0;1", "1024", "0-99999999", "0x1"};
    struct cpu_list list;
    struct error err;
    cpu_set_t set;
    char text[16];

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (cpu_list_parse(wrong[i], &list, &err) != STATUS_INVALID)
            fail_msg("\"%s\" was taken", wrong[i]);
        EXPECT_TRUE(strstr(err.message, "CPU set") != NULL);
    }
    EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    if (CPU_ISSET(CPU_LIST_MAX - 1, &set)) return;
    snprintf(text, sizeof text, "%d", CPU_LIST_MAX - 1);
    EXPECT_EQ(cpu_list_parse(text, &list, &err), STATUS_INVALID);
    EXPECT_TRUE(strstr(err.message, "may not use") != NULL);
}
