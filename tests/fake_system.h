/* fake_system.h - a tree of /proc and /sys under the build folder, for what asks the system for its limits. */
#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include "test.h"

static char root[512];

static void write_file(const char *name, const char *text)
{
    char path[1024];

    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) fail_msg("cannot write %s", path);
}

static void make_root(const char *groups)
{
    snprintf(root, sizeof root, "%s/limit-XXXXXX", INFERD_BINARY_DIR);
    if (!mkdtemp(root)) fail_msg("no temporary folder");
    write_file("proc/self/cgroup", groups);
}

static void remove_root(void)
{
    char command[600];

    snprintf(command, sizeof command, "rm -r '%s'", root);
    EXPECT_EQ(system(command), 0);
}
