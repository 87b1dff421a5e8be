/* test_host_memory.c - the memory that control groups leave, of either version and at any level, is what may be planned with.
 * Method: trees of /proc and /sys written under the build folder; what they must give is the kernel's documentation
 * (cgroup-v2.rst, cgroup-v1/memory.rst). */
#include "fake_system.h"
#include "planner/planner.h"

#define V2 "sys/fs/cgroup/"
#define V1 "sys/fs/cgroup/memory/"

static void write_v2(const char *folder, const char *max, const char *current, const char *stat)
{
    char name[128];

    snprintf(name, sizeof name, V2 "%smemory.max", folder);
    write_file(name, max);
    snprintf(name, sizeof name, V2 "%smemory.current", folder);
    write_file(name, current);
    snprintf(name, sizeof name, V2 "%smemory.stat", folder);
    write_file(name, stat);
}

/* As under systemd with MemoryMax=: the group's files are not at the mount but in the unit's folder. */
TEST(the_units_own_limit_and_those_above_count)
{
    make_root("0::/system.slice/inferd.service\n");
    EXPECT_EQ(planner_cgroup_left(root), UINT64_MAX);
    write_v2("system.slice/inferd.service/", "max\n", "1000\n", "inactive_file 0\n");
    EXPECT_EQ(planner_cgroup_left(root), UINT64_MAX);
    write_v2("system.slice/inferd.service/", "5000\n", "1000\n",
             "anon 7\nactive_file 5\ninactive_file 300\n");
    EXPECT_EQ(planner_cgroup_left(root), 4300); /* its page cache is given back */
    write_v2("system.slice/", "9000\n", "8000\n", "inactive_file 0\n");
    EXPECT_EQ(planner_cgroup_left(root), 1000); /* neighbours have used what the slice has */
    write_v2("system.slice/", "9000\n", "9999\n", "inactive_file 0\n");
    EXPECT_EQ(planner_cgroup_left(root), 0);
    remove_root();
}

TEST(a_container_that_sees_only_its_own_mount_is_limited)
{
    make_root("0::/docker/0123abc\n");
    write_v2("", "6000\n", "500\n", "");
    EXPECT_EQ(planner_cgroup_left(root), 5500);
    remove_root();
}

TEST(version_one_limits_count)
{
    make_root("12:cpuset:/a\n7:memory:/docker/x\n0::/\n");
    write_file(V1 "memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    write_file(V1 "memory.usage_in_bytes", "12000\n");
    write_file(V1 "docker/x/memory.limit_in_bytes", "8000\n");
    write_file(V1 "docker/x/memory.usage_in_bytes", "2000\n");
    write_file(V1 "docker/x/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    EXPECT_EQ(planner_cgroup_left(root), 6500);
    remove_root();
}

TEST(files_of_nonsense_limit_nothing)
{
    make_root("0::/x\n");
    write_v2("x/", "-5\n", "0\n", "");
    EXPECT_EQ(planner_cgroup_left(root), UINT64_MAX);
    write_v2("x/", "", "", "");
    EXPECT_EQ(planner_cgroup_left(root), UINT64_MAX);
    write_v2("x/", "100\n", "90\n", "inactive_file 18446744073709551615\n");
    EXPECT_EQ(planner_cgroup_left(root), 100);
    remove_root();
    EXPECT_EQ(planner_cgroup_left("/no/such/folder"), UINT64_MAX);
    EXPECT_TRUE(planner_host_available() > 0);
}
