/* settings.h - what may change while the daemon serves: keys, limits, time-outs. Private to frontend/.
 *
 * A struct settings is whole and never changes; a reload puts another one in its place. An I/O thread holds a reference
 * and looks once a turn whether there is a newer one, so that within a turn it sees one state only, without a lock.
 * Thread: create and unref from any. */
#pragma once

#include <stdatomic.h>

#include "frontend/frontend.h"

struct settings {
    _Atomic uint32_t refs;
    struct frontend_options o; /* the reloadable members; api_keys point into `text` */
    const char **keys;         /* owned */
    char *text;                /* owned; wiped at the end */
    size_t text_bytes;
};

/* Copies keys and all; one reference. NULL: no memory. */
struct settings *settings_create(const struct frontend_options *options);
void settings_ref(struct settings *settings);
/* Exchanges *held for the newest of the front end, where there is a newer one. */
void settings_follow(struct frontend *frontend, struct settings **held);
void settings_unref(struct settings *settings); /* takes NULL */
