/* chat_probe.c - a handful of small conversations through the template, and what came of them.
 *
 * A form counts as handled when the render succeeds and the probe's words stand in the output as they should: a part's
 * text not as a piece of a printed list, a call's arguments neither as Python's repr nor encoded twice. */
#include "text/chat_probe.h"

#include <stdlib.h>
#include <string.h>

#define WORD_A    "probe-alpha"
#define WORD_B    "probe-omega"
#define ARGUMENTS "{\"" WORD_A "\": \"" WORD_B "\"}"

static const struct template_limits probe_limits = {
    .steps_max = 1000 * 1000, .memory_max = 16 << 20, .output_max = 1 << 20, .depth_max = 128};

enum chat_role chat_role_of(const char *role)
{
    if (!role) return ROLE_USER;
    if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0) return ROLE_SYSTEM;
    if (strcmp(role, "assistant") == 0) return ROLE_ASSISTANT;
    return strcmp(role, "tool") == 0 ? ROLE_TOOL : ROLE_USER;
}

struct probe {
    const struct template *t;
    const json_t *variables;
};

/* The rendered text of the conversation (JSON), NUL-terminated; NULL when the template refuses it. Takes messages. */
static char *render(const struct probe *p, json_t *messages)
{
    json_t *context = json_copy((json_t *)p->variables);
    struct buf out;
    struct error err;
    char *text = NULL;

    json_object_set_new(context, "messages", messages);
    json_object_set_new(context, "tools", json_null());
    json_object_set_new(context, "documents", json_null());
    json_object_set_new(context, "add_generation_prompt", json_true());
    buf_init(&out, 0);
    if (!template_render(p->t, context, 0, &probe_limits, &out, NULL, &err))
        text = strdup(buf_cstr(&out));
    buf_fini(&out);
    json_decref(context);
    return text;
}

static json_t *message(const char *role, json_t *content)
{
    return json_pack("{s:s, s:o}", "role", role, "content", content);
}

/* An assistant's message with one call, whose content is null or empty. */
static json_t *calling(json_t *arguments, bool null_content)
{
    return json_pack("{s:s, s:o, s:[{s:s, s:s, s:{s:s, s:o}}]}", "role", "assistant", "content",
                     null_content ? json_null() : json_string(""), "tool_calls", "id", "abcdefgh1",
                     "type", "function", "function", "name", "probe_function", "arguments",
                     arguments);
}

static json_t *result(json_t *content)
{
    return json_pack("{s:s, s:s, s:s, s:o}", "role", "tool", "tool_call_id", "abcdefgh1", "name",
                     "probe_function", "content", content);
}

/* A conversation in which the message of `role` has that content. Takes content. */
static json_t *conversation(enum chat_role role, json_t *content, int variant)
{
    json_t *hello = message("user", json_string("hello"));

    switch (role) {
    case ROLE_SYSTEM: return json_pack("[o,o]", message("system", content), hello);
    case ROLE_ASSISTANT:
        return json_pack("[o,o,o]", hello, message("assistant", content),
                         message("user", json_string("more")));
    case ROLE_TOOL: /* the call before it in a form that the template takes */
        return json_pack("[o,o,o]", hello,
                         calling(variant & 1 ? json_string("{}") : json_object(), variant & 2),
                         result(content));
    default: json_decref(hello); return json_pack("[o]", message("user", content));
    }
}

static json_t *parts(void)
{
    return json_pack("[{s:s, s:s}, {s:s, s:s}]", "type", "text", "text", WORD_A, "type", "text",
                     "text", WORD_B);
}

/* The word stands in the text, and not in quotes. */
static bool stands_free(const char *text, const char *word)
{
    const char *at = strstr(text, word);

    return at && (at == text || !strchr("'\"", at[-1]));
}

static bool renders_parts(const struct probe *p, enum chat_role role)
{
    bool good = false;

    for (int variant = 0; variant < (role == ROLE_TOOL ? 4 : 1) && !good; variant++) {
        char *text = render(p, conversation(role, parts(), variant));
        good = text && stands_free(text, WORD_A) && stands_free(text, WORD_B);
        free(text);
    }
    return good;
}

static bool renders_string(const struct probe *p, enum chat_role role)
{
    bool good = false;

    for (int variant = 0; variant < (role == ROLE_TOOL ? 4 : 1) && !good; variant++) {
        char *text = render(p, conversation(role, json_string(WORD_A), variant));
        good = text && strstr(text, WORD_A);
        free(text);
    }
    return good;
}

enum outcome { REFUSED, RENDERED, GOOD };

/* What the template makes of a call's arguments in one of the two forms. */
static enum outcome arguments_outcome(const struct probe *p, bool object)
{
    enum outcome best = REFUSED;

    for (int null_content = 0; null_content < 2; null_content++) {
        json_t *arguments = object ? json_pack("{s:s}", WORD_A, WORD_B) : json_string(ARGUMENTS);
        char *text =
            render(p, json_pack("[o,o,o]", message("user", json_string("hello")),
                                calling(arguments, null_content), result(json_string("done"))));
        enum outcome now = text ? RENDERED : REFUSED;
        if (text && object && strstr(text, WORD_A) && strstr(text, WORD_B) &&
            !strstr(text, "'" WORD_A "'"))
            now = GOOD;
        if (text && !object && strstr(text, ARGUMENTS)) now = GOOD;
        if (now > best) best = now;
        free(text);
    }
    return best;
}

static bool mentions(struct slice source, const char *word)
{
    return memmem(source.ptr, source.len, word, strlen(word)) != NULL;
}

static bool renders_developer(const struct probe *p)
{
    char *text = render(p, json_pack("[o,o]", message("developer", json_string(WORD_A)),
                                     message("user", json_string("hello"))));
    bool good = text && strstr(text, WORD_A);

    free(text);
    return good;
}

/* Whether a call whose message has no content renders, and without the word that null is printed as. */
static bool renders_call(const struct probe *p, bool object, bool null_content)
{
    json_t *arguments = object ? json_pack("{s:s}", WORD_A, WORD_B) : json_string(ARGUMENTS);
    char *text =
        render(p, json_pack("[o,o,o]", message("user", json_string("hello")),
                            calling(arguments, null_content), result(json_string("done"))));
    bool good = text && !strstr(text, "None");

    free(text);
    return good;
}

void chat_probe(const struct template *t, struct slice source, const json_t *variables,
                struct chat_forms *out)
{
    struct probe p = {t, variables};

    for (int role = 0; role < ROLE_COUNT; role++) {
        out->walks_lists[role] = renders_parts(&p, (enum chat_role)role);
        out->only_lists[role] = out->walks_lists[role] && !renders_string(&p, (enum chat_role)role);
    }
    /* where both forms do, the object: the model saw the template's own writing of it */
    out->arguments_as_object = arguments_outcome(&p, true) >= arguments_outcome(&p, false);
    out->empty_for_null = !renders_call(&p, out->arguments_as_object, true) &&
                          renders_call(&p, out->arguments_as_object, false);
    out->knows_developer = mentions(source, "developer") && renders_developer(&p);
}
