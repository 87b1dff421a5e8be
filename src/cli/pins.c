#include "cli/pins.h"

#include <stdlib.h>

#include <jansson.h>

#include "base/clock.h"

static enum status encode(const struct chat *chat, const char *system, const char *user,
                          struct token_list *out, struct error *err)
{
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", system,
                                 "role", "user", "content", user);
    struct chat_request request = {
        .messages = messages, .add_generation_prompt = true, .now = clock_wall_s()};
    enum status st;

    if (!messages) return error_set(err, STATUS_INVALID, "--pin-prompt is not UTF-8 text");
    st = chat_encode(chat, &request, out, NULL, err);
    json_decref(messages);
    return st;
}

/* What conversations have in common that differ from the user's first letter on. */
static enum status make_pin(const struct chat *chat, const char *text, struct engine_pin *out,
                            struct error *err)
{
    struct token_list a = {0}, b = {0};
    uint32_t alike = 0;
    enum status st = encode(chat, text, "A", &a, err);

    if (!st) st = encode(chat, text, "b", &b, err);
    while (!st && alike < a.count && alike < b.count && a.ids[alike] == b.ids[alike])
        alike++;
    token_list_fini(&b);
    if (st) {
        token_list_fini(&a);
        return st;
    }
    *out = (struct engine_pin){a.ids, alike}; /* takes the ids */
    return STATUS_OK;
}

enum status pins_make(const struct config *config, struct loaded *l, struct error *err)
{
    uint32_t count = (uint32_t)config->pin_prompt.count;
    enum status st = STATUS_OK;

    if (count == 0) return STATUS_OK;
    l->pins = calloc(count, sizeof *l->pins);
    if (!l->pins) return error_set(err, STATUS_NOMEM, "no memory for --pin-prompt");
    for (; l->pin_count < count && !st; l->pin_count += !st)
        st = make_pin(l->chat, config->pin_prompt.items[l->pin_count], &l->pins[l->pin_count], err);
    return st;
}

void pins_end(struct loaded *l)
{
    for (uint32_t i = 0; i < l->pin_count; i++)
        free((void *)(uintptr_t)l->pins[i].ids);
    free(l->pins);
    l->pins = NULL;
    l->pin_count = 0;
}
