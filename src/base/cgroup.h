/* cgroup.h - the folders of the control groups whose limits this process has.
 *
 * A limit holds for a group and all below it, so whoever looks for one looks at the process's own group and at every one
 * above it, the mount included: in a container without a namespace of its own the group's path is the host's, and only the
 * mount itself is there. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Calls `visit` for each of these folders, the process's own group first; whether a folder is there, or has the file that is
 * looked for, the visitor finds out. controller: "cpu", "memory"; version 1 has a mount for it (v2 false), version 2 one for
 * all. root stands before /proc and /sys ("": this system; tests have a folder). */
void cgroup_each(const char *root, const char *controller,
                 void (*visit)(void *ctx, const char *folder, bool v2), void *ctx);

/* The first numbers of folder/name; returns how many there are, 0 to 2. "max" is none. */
int cgroup_numbers(const char *folder, const char *name, long long *a, long long *b);
/* The number behind `key` and blanks at the start of a line of folder/name. */
bool cgroup_keyed_number(const char *folder, const char *name, const char *key, uint64_t *out);
