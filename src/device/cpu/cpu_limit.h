/* cpu_limit.h - which processors this process may use, and how many of them at a time.
 *
 * Three bounds: the affinity mask, the CPU limit of the process's control group and of every group above it (version 2:
 * cpu.max; version 1: cpu.cfs_quota_us), and a list that the operator gives. A limit of 2.5 processors counts as 2: a
 * third thread would be throttled with the others waiting for it. Thread: any. */
#pragma once

#include <stdint.h>

#include "base/status.h"

enum { CPU_LIST_MAX = 1024 };

struct cpu_list {
    uint32_t count;
    uint16_t ids[CPU_LIST_MAX]; /* ascending, each once */
};

/* Whether a text has the form "0-3,8", on whatever machine. Errors: STATUS_INVALID, saying where it is wrong. */
enum status cpu_list_check(const char *text, struct error *err);
/* "0-3,8": Errors: STATUS_INVALID (form, a processor that the affinity mask does not have), naming it. */
enum status cpu_list_parse(const char *text, struct cpu_list *out, struct error *err);
/* Processors that this process may use at a time, at least 1. */
uint32_t cpu_limit_processors(void);
/* The control groups' share of it: whole processors, at least 1; UINT32_MAX where nothing is limited. `root` stands before
 * /proc and /sys ("": this system; tests have a folder). */
uint32_t cpu_limit_cgroup(const char *root);
/* Binds the calling thread to processor list->ids[thread % count]. Errors: STATUS_IO. */
enum status cpu_list_bind(const struct cpu_list *list, uint32_t thread, struct error *err);
