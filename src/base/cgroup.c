#include "base/cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 1024 };

static FILE *open_in(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);

    return length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
}

int cgroup_numbers(const char *folder, const char *name, long long *a, long long *b)
{
    FILE *f = open_in(folder, name);
    int count = f ? fscanf(f, "%lld %lld", a, b) : 0;

    if (f) fclose(f);
    return count < 0 ? 0 : count;
}

bool cgroup_keyed_number(const char *folder, const char *name, const char *key, uint64_t *out)
{
    FILE *f = open_in(folder, name);
    size_t len = strlen(key);
    char line[256];
    bool found = false;

    while (f && !found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, len) != 0 || line[len] != ' ') continue;
        const char *at = line + len + strspn(line + len, " ");
        found = *at >= '0' && *at <= '9';
        if (found) *out = strtoull(at, NULL, 10);
    }
    if (f) fclose(f);
    return found;
}

static void visit_upwards(const char *mount, const char *group, bool v2,
                          void (*visit)(void *ctx, const char *folder, bool v2), void *ctx)
{
    char path[PATH_BYTES];
    size_t base = strlen(mount);
    int length = snprintf(path, sizeof path, "%s%s", mount, group);
    char *slash;

    if (length < 0 || (size_t)length >= sizeof path) return;
    for (;;) {
        visit(ctx, path, v2);
        if (!(slash = strrchr(path + base, '/'))) return;
        *slash = '\0';
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, len) == 0 && (at[len] == ',' || !at[len])) return true;
    return false;
}

void cgroup_each(const char *root, const char *controller,
                 void (*visit)(void *ctx, const char *folder, bool v2), void *ctx)
{
    char line[PATH_BYTES], mount[PATH_BYTES];
    FILE *f = open_in(root, "proc/self/cgroup");

    while (f && fgets(line, sizeof line, f)) { /* number:controllers:/path */
        char *controllers = strchr(line, ':'), *group, *end;
        if (!controllers || !(group = strchr(controllers + 1, ':'))) continue;
        *controllers++ = '\0', *group++ = '\0';
        if ((end = strchr(group, '\n'))) *end = '\0';
        bool v2 = !*controllers;
        if (!v2 && !has_word(controllers, controller)) continue;
        int length =
            snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, v2 ? "" : "/", controllers);
        if (length >= 0 && (size_t)length < sizeof mount)
            visit_upwards(mount, group, v2, visit, ctx);
    }
    if (f) fclose(f);
}
