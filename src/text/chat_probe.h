/* chat_probe.h - which forms of a conversation a chat template handles, found out by rendering a probe of each.
 * Private to chat.c. */
#pragma once

#include <stdbool.h>

#include <jansson.h>

#include "text/template.h"

enum chat_role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLE_COUNT };

struct chat_forms {
    bool walks_lists
        [ROLE_COUNT]; /* content that is a list of parts reaches the output part by part */
    bool only_lists[ROLE_COUNT]; /* and content that is a string does not */
    bool arguments_as_object;    /* of an earlier tool call; else the string */
    bool knows_developer;
    bool empty_for_null; /* a calling message's content must be "" where it is null */
};

/* The role of a message; developer counts as system, an unknown one as user. */
enum chat_role chat_role_of(const char *role);
/* variables: what every render sees (token texts): borrowed. */
void chat_probe(const struct template *t, struct slice source, const json_t *variables,
                struct chat_forms *out);
