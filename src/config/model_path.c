/* model_path.c - a model argument as a path: a file, a folder, or an id in the local hub cache; where inferd's own cache is. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file_map.h"
#include "config/config.h"

/* The hub cache's folder, as huggingface_hub finds it. */
static void hub_folder(struct buf *out)
{
    const char *hub = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"),
               *xdg = getenv("XDG_CACHE_HOME");

    buf_clear(out);
    if (hub && *hub)
        buf_append_str(out, hub);
    else if (home && *home)
        buf_printf(out, "%s/hub", home);
    else if (xdg && *xdg)
        buf_printf(out, "%s/huggingface/hub", xdg);
    else
        buf_printf(out, "%s/.cache/huggingface/hub", getenv("HOME") ? getenv("HOME") : "");
}

char *config_cache_folder(void)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int printed = -1;

    if (xdg && *xdg == '/')
        printed = asprintf(&path, "%s/inferd", xdg);
    else if (home && *home)
        printed = asprintf(&path, "%s/.cache/inferd", home);
    return printed < 0 ? NULL : path;
}

/* org/name -> HUB/models--org--name */
static void append_repo(struct buf *out, const char *id)
{
    buf_append_str(out, "/models--");
    for (; *id; id++) {
        if (*id == '/')
            buf_append_str(out, "--");
        else
            buf_append_char(out, *id);
    }
}

/* Appends the snapshot's path: the commit that refs/main names, else the only one there is. Returns how many could be
 * meant: 0 none, 1 it, 2 several. */
static int append_snapshot(struct buf *repo)
{
    struct buf ref;
    char *text = NULL, *name = NULL;
    uint64_t len;
    int found = 0;

    buf_init(&ref, 0);
    buf_printf(&ref, "%s/refs/main", buf_cstr(repo));
    if (!file_read(buf_cstr(&ref), 256, &text, &len, NULL)) {
        text[strcspn(text, "\r\n")] = '\0';
        buf_printf(repo, "/snapshots/%s", text);
        found = access(buf_cstr(repo), R_OK) == 0;
    } else {
        buf_append_str(repo, "/snapshots");
        DIR *dir = opendir(buf_cstr(repo));
        struct dirent *entry;
        while (dir && found < 2 && (entry = readdir(dir)))
            if (entry->d_name[0] != '.' && !found++) name = strdup(entry->d_name);
        if (dir) closedir(dir);
        if (name) buf_printf(repo, "/%s", name);
    }
    free(name);
    free(text);
    buf_fini(&ref);
    return found;
}

enum status config_resolve_model(const char *model, char **out, struct error *err)
{
    struct buf path;
    enum status st;
    int found;

    if (access(model, F_OK) == 0) {
        *out = strdup(model);
        return *out ? STATUS_OK : error_set(err, STATUS_NOMEM, "no memory for a path");
    }
    buf_init(&path, 0);
    hub_folder(&path);
    append_repo(&path, model);
    found = *model != '/' && *model != '.' && !strstr(model, "..") ? append_snapshot(&path) : 0;
    if (found == 1) {
        *out = strdup(buf_cstr(&path));
        st = *out ? STATUS_OK : error_set(err, STATUS_NOMEM, "no memory for a path");
    } else if (found) {
        st = error_set(err, STATUS_INVALID,
                       "%s has several snapshots in the local hub cache and no refs/main that "
                       "names one; give the "
                       "folder of one, as in %s",
                       model, buf_cstr(&path));
    } else {
        hub_folder(&path);
        st = error_set(err, STATUS_NOT_FOUND,
                       "%s is neither a file, nor a folder, nor a model in the local hub cache %s",
                       model, buf_cstr(&path));
    }
    buf_fini(&path);
    return st;
}
