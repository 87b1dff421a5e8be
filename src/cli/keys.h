/* keys.h - the API keys of a run: the option's, those of --api-key-file, and those of the credential "api-keys" that the
 * service manager holds for us ($CREDENTIALS_DIRECTORY). One key a line; blank lines and lines with # are passed over. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "config/config.h"

struct keys {
    const char **items; /* [count]; point into the config or `texts` */
    uint32_t count;
    char *texts[2]; /* owned: the files, wiped at the end */
    uint64_t text_bytes[2];
};

/* credentials: folder, "" for none. Errors: what reading gives, STATUS_INVALID (a file without a key, an empty key). */
enum status keys_read(const struct config *config, const char *credentials, struct keys *out,
                      struct error *err);
void keys_fini(struct keys *keys); /* idempotent */
