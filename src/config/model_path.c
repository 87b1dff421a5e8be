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

/* The commit that refs/main names, else the only snapshot. */
static bool append_snapshot(struct buf *repo)
{
    struct buf ref;
    char *text = NULL;
    uint64_t len;
    bool found = false;

    buf_init(&ref, 0);
    buf_printf(&ref, "%s/refs/main", buf_cstr(repo));
    if (!file_read(buf_cstr(&ref), 256, &text, &len, NULL)) {
        text[strcspn(text, "\r\n")] = '\0';
        buf_printf(repo, "/snapshots/%s", text);
        found = access(buf_cstr(repo), R_OK) == 0;
        free(text);
    } else {
        buf_append_str(repo, "/snapshots");
        DIR *dir = opendir(buf_cstr(repo));
        struct dirent *entry;
        while (dir && !found && (entry = readdir(dir)))
            if (entry->d_name[0] != '.') {
                buf_printf(repo, "/%s", entry->d_name);
                found = true;
            }
        if (dir) closedir(dir);
    }
    buf_fini(&ref);
    return found;
}

enum status config_resolve_model(const char *model, char **out, struct error *err)
{
    struct buf path;
    enum status st;

    if (access(model, F_OK) == 0) {
        *out = strdup(model);
        return *out ? STATUS_OK : error_set(err, STATUS_NOMEM, "no memory for a path");
    }
    buf_init(&path, 0);
    hub_folder(&path);
    append_repo(&path, model);
    if (*model != '/' && *model != '.' && !strstr(model, "..") && append_snapshot(&path)) {
        *out = strdup(buf_cstr(&path));
        st = *out ? STATUS_OK : error_set(err, STATUS_NOMEM, "no memory for a path");
    } else {
        hub_folder(&path);
        st = error_set(err, STATUS_NOT_FOUND,
                       "%s is neither a file, nor a folder, nor a model in the local hub cache %s",
                       model, buf_cstr(&path));
    }
    buf_fini(&path);
    return st;
}
