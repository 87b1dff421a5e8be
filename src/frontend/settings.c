#include "frontend/call.h"

#include <stdlib.h>
#include <string.h>

static bool copy_keys(struct settings *s, const struct frontend_options *options)
{
    char *at;

    for (uint32_t i = 0; i < options->api_key_count; i++)
        s->text_bytes += strlen(options->api_keys[i]) + 1;
    s->text = malloc(s->text_bytes + 1);
    s->keys = calloc(options->api_key_count + 1, sizeof *s->keys);
    if (!s->text || !s->keys) return false;
    at = s->text;
    for (uint32_t i = 0; i < options->api_key_count; i++) {
        size_t size = strlen(options->api_keys[i]) + 1;

        s->keys[i] = memcpy(at, options->api_keys[i], size);
        at += size;
    }
    s->o.api_keys = s->keys;
    return true;
}

struct settings *settings_create(const struct frontend_options *options)
{
    struct settings *s = calloc(1, sizeof *s);

    if (!s) return NULL;
    atomic_init(&s->refs, 1);
    s->o = *options;
    if (copy_keys(s, options)) return s;
    settings_unref(s);
    return NULL;
}

void settings_ref(struct settings *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void settings_unref(struct settings *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    if (s->text) explicit_bzero(s->text, s->text_bytes);
    free(s->text);
    free(s->keys);
    free(s);
}

void settings_follow(struct frontend *f, struct settings **held)
{
    if (atomic_load(&f->settings_newest) == *held) return;
    pthread_mutex_lock(&f->lock);
    settings_unref(*held);
    *held = f->settings_now;
    settings_ref(*held);
    pthread_mutex_unlock(&f->lock);
}
