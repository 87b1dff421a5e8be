/* chat.c - finds the model's template and token variables, shapes each conversation for it, renders, tokenises. */
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json_guard.h"
#include "formats/weights.h"
#include "text/chat_probe.h"

struct chat {
    const struct tokenizer *tok; /* borrowed */
    struct template *template;   /* NULL: none, or one that does not compile */
    char *source;                /* owned; NULL when the model has none */
    size_t source_len;
    json_t *variables; /* bos_token and its kin: only those that the model has */
    struct chat_forms forms;
    char tag[64];       /* put behind a message that is to be continued; ends with a space */
    struct error fault; /* why renders fail; status OK: they do not */
};

/* The line feed is an expression: one behind a statement would be trimmed. */
const char chat_plain_template[] =
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}"
    "{% elif message.content %}{% for part in message.content %}{{ part.text }}{% endfor %}"
    "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/* --- opening --- */
static enum status find_template(struct weights *weights, struct slice *out, struct error *err)
{
    const json_t *config, *given, *entry;
    enum status st;
    size_t i;

    if (weights_kind(weights) == WEIGHTS_GGUF)
        return weights_meta_str(weights, "tokenizer.chat_template", out);
    st = weights_text(weights, "chat_template.jinja", out, err);
    if (st != STATUS_NOT_FOUND) return st;
    st = weights_json(weights, "tokenizer_config.json", &config, err);
    if (st) return st;
    given = json_object_get(config, "chat_template");
    json_array_foreach((json_t *)given, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (!name || strcmp(name, "default") != 0) continue;
        given = json_object_get(entry, "template");
        break;
    }
    if (!json_is_string(given)) return STATUS_NOT_FOUND;
    *out = slice_of(json_string_value(given), json_string_length(given));
    return STATUS_OK;
}

static void set_text(json_t *variables, const char *name, struct slice text)
{
    if (text.len) json_object_set_new(variables, name, json_stringn(text.ptr, text.len));
}

/* A token of tokenizer_config.json: a string, or an AddedToken object. */
static struct slice token_text(const json_t *value)
{
    if (json_is_object(value)) value = json_object_get(value, "content");
    return slice_of(json_string_value(value), json_string_length(value));
}

static const struct special {
    const char *name;
    int32_t (*id)(const struct tokenizer *tok);
} specials[] = {
    {"bos_token", tokenizer_bos}, {"eos_token", tokenizer_eos}, {"pad_token", tokenizer_pad},
    {"unk_token", tokenizer_unk}, {"sep_token", NULL},          {"cls_token", NULL},
    {"mask_token", NULL},
};

/* The variables that transformers gives from special_tokens_map: the files' word, else the tokenizer's. */
static void find_variables(struct chat *chat, struct weights *weights)
{
    const json_t *config = NULL, *map = NULL, *value;

    if (weights_json(weights, "tokenizer_config.json", &config, NULL)) config = NULL;
    if (weights_json(weights, "special_tokens_map.json", &map, NULL)) map = NULL;
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        const struct special *s = &specials[i];
        value = json_object_get(config, s->name);
        if (!value) value = json_object_get(map, s->name);
        if (value)
            set_text(chat->variables, s->name, token_text(value));
        else if (s->id && s->id(chat->tok) >= 0)
            set_text(chat->variables, s->name, tokenizer_token_bytes(chat->tok, s->id(chat->tok)));
    }
    value = json_object_get(config, "additional_special_tokens");
    if (json_array_size(value))
        json_object_set(chat->variables, "additional_special_tokens", (json_t *)value);
}

static enum status compile(struct slice source, struct template **out, struct error *err)
{
    struct error why = {0};

    if (!template_compile(source, out, &why)) return STATUS_OK;
    return error_set(err, STATUS_INVALID, "the chat template cannot be used: %s", why.message);
}

enum status chat_check_template(struct slice source, struct error *err)
{
    struct template *template = NULL;
    enum status st = compile(source, &template, err);

    template_free(template);
    return st;
}

/* Compiles the source; a fault is kept for the renders. */
static void set_template(struct chat *chat, struct slice source)
{
    chat->source = malloc(source.len + 1);
    if (!chat->source) {
        error_set(&chat->fault, STATUS_NOMEM, "no memory for the chat template");
        return;
    }
    if (source.len) memcpy(chat->source, source.ptr, source.len);
    chat->source_len = source.len;
    compile(source, &chat->template, &chat->fault);
}

enum status chat_open(struct weights *weights, const struct tokenizer *tok, struct slice override,
                      struct chat **out, struct error *err)
{
    struct chat *chat = calloc(1, sizeof *chat);
    struct slice source = override;
    enum status st = STATUS_OK;

    if (chat) chat->variables = json_object();
    if (!chat || !chat->variables) {
        chat_close(chat);
        return error_set(err, STATUS_NOMEM, "no memory for the chat template");
    }
    chat->tok = tok;
    snprintf(chat->tag, sizeof chat->tag, "CONTINUE_FINAL_MESSAGE_TAG_%016llx ",
             (unsigned long long)hash_secret());
    if (!override.ptr) st = find_template(weights, &source, err);
    if (st == STATUS_NOT_FOUND) {
        error_set(&chat->fault, STATUS_NOT_FOUND,
                  "the model has no chat template; give one with --chat-template, or use "
                  "/v1/completions");
        *out = chat;
        return STATUS_OK;
    }
    if (!st) set_template(chat, source);
    if (!st && chat->fault.status && (override.ptr || chat->fault.status == STATUS_NOMEM))
        st = error_set(err, chat->fault.status, "%s", chat->fault.message);
    if (st) {
        chat_close(chat);
        return st;
    }
    find_variables(chat, weights);
    if (chat->template)
        chat_probe(chat->template, chat_template_source(chat), chat->variables, &chat->forms);
    *out = chat;
    return STATUS_OK;
}

void chat_close(struct chat *chat)
{
    if (!chat) return;
    template_free(chat->template);
    json_decref(chat->variables);
    free(chat->source);
    free(chat);
}

struct slice chat_template_source(const struct chat *chat)
{
    return slice_of(chat->source, chat->source_len);
}

/* --- shaping a conversation --- */
/* The text of a part: of a refusal its words. */
static const json_t *part_text(const json_t *part)
{
    const json_t *text = json_object_get(part, "text");

    return text ? text : json_object_get(part, "refusal");
}

/* All parts as text parts, new. */
static json_t *text_parts(const json_t *content)
{
    json_t *list = json_array(), *part;
    size_t i;

    json_array_foreach((json_t *)content, i, part)
    {
        if (json_object_get(part, "text") || !json_object_get(part, "refusal"))
            json_array_append(list, part);
        else
            json_array_append_new(list,
                                  json_pack("{s:s, s:O}", "type", "text", "text", part_text(part)));
    }
    return list;
}

/* The texts of the parts, joined with one line feed, new. */
static json_t *joined_parts(const json_t *content)
{
    struct buf text;
    json_t *joined, *part;
    size_t i;

    buf_init(&text, 0);
    json_array_foreach((json_t *)content, i, part)
    {
        const json_t *value = part_text(part);
        if (i) buf_append_char(&text, '\n');
        buf_append(&text, json_string_value(value), json_string_length(value));
    }
    joined = buf_status(&text) ? NULL : json_stringn(text.len ? text.ptr : "", text.len);
    buf_fini(&text);
    return joined;
}

static json_t *shaped_content(const struct chat *chat, enum chat_role role, const json_t *content)
{
    if (json_is_array(content))
        return chat->forms.walks_lists[role] ? text_parts(content) : joined_parts(content);
    if (json_is_null(content) && chat->forms.empty_for_null) return json_string("");
    if (json_is_string(content) && chat->forms.only_lists[role])
        return json_pack("[{s:s, s:O}]", "type", "text", "text", content);
    return json_incref((json_t *)content);
}

enum {
    ARGUMENTS_DEPTH_MAX = 256,
    /* Of all arguments of a conversation as objects: 16 times their text as for a body (api/api_open.c), and a floor, since a
     * short text of tiny values may take more than that. Each string has the share of its length, and what any short one
     * needs. */
    ARGUMENTS_MEMORY_FACTOR = 16,
    ARGUMENTS_MEMORY_FLOOR = 64 << 20,
    ARGUMENTS_MEMORY_SHORT = 4 << 10,
};

static const json_t *arguments_of(const json_t *call)
{
    return json_object_get(json_object_get(call, "function"), "arguments");
}

/* Arguments as an object, new; NULL: they are none, or one beyond the limits. all_bytes: of the conversation's arguments. */
static json_t *parsed_arguments(const json_t *given, uint64_t all_bytes)
{
    struct slice text = slice_of(json_string_value(given), json_string_length(given));
    double share = (double)text.len / (double)(all_bytes ? all_bytes : 1);
    struct json_limits limits = {.depth_max = ARGUMENTS_DEPTH_MAX,
                                 .memory_max = ARGUMENTS_MEMORY_FACTOR * (uint64_t)text.len +
                                               (uint64_t)(share * ARGUMENTS_MEMORY_FLOOR) +
                                               ARGUMENTS_MEMORY_SHORT,
                                 .unique_names = true};
    json_t *object = NULL;

    if (json_guard_parse(text, &limits, &object, NULL)) return NULL;
    if (json_is_object(object)) return object;
    json_decref(object);
    return NULL;
}

/* The calls with their arguments as objects, new; a string that is not an object of JSON stays what it is. */
static json_t *shaped_calls(const json_t *calls, uint64_t all_bytes)
{
    json_t *list = json_deep_copy(calls), *call;
    size_t i;

    json_array_foreach(list, i, call)
    {
        const json_t *given = arguments_of(call);
        json_t *object = json_is_string(given) ? parsed_arguments(given, all_bytes) : NULL;
        if (object) json_object_set_new(json_object_get(call, "function"), "arguments", object);
    }
    return list;
}

static json_t *shaped_message(const struct chat *chat, const json_t *message,
                              uint64_t arguments_bytes)
{
    json_t *shaped = json_copy((json_t *)message), *content, *calls;
    const char *name = json_string_value(json_object_get(message, "role"));

    if (!shaped) return NULL;
    if (name && strcmp(name, "developer") == 0 && !chat->forms.knows_developer)
        json_object_set_new(shaped, "role", json_string("system"));
    content = json_object_get(message, "content");
    if (content)
        json_object_set_new(shaped, "content", shaped_content(chat, chat_role_of(name), content));
    calls = json_object_get(message, "tool_calls");
    if (json_is_array(calls) && chat->forms.arguments_as_object)
        json_object_set_new(shaped, "tool_calls", shaped_calls(calls, arguments_bytes));
    return shaped;
}

/* Puts the tag behind the text of the last message; appends that text to *final. */
static enum status tag_final(const struct chat *chat, json_t *messages, struct buf *final,
                             struct error *err)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1), *content, *text;
    size_t parts;
    struct buf tagged;

    content = json_object_get(last, "content");
    parts = json_array_size(content);
    text = parts ? json_object_get(json_array_get(content, parts - 1), "text") : content;
    if (!json_is_string(text))
        return error_set(err, STATUS_INVALID,
                         "continue_final_message needs a last message with text to continue");
    buf_append(final, json_string_value(text), json_string_length(text));
    buf_init(&tagged, 0);
    buf_append_slice(&tagged, buf_slice(final));
    buf_append_str(&tagged, chat->tag);
    json_t *value = buf_status(&tagged) ? NULL : json_stringn(tagged.ptr, tagged.len);
    buf_fini(&tagged);
    if (!value) return error_set(err, STATUS_NOMEM, "no memory for the conversation");
    if (parts) { /* the part is shared with the request: a new one takes its place */
        json_t *part = json_copy(json_array_get(content, parts - 1));
        json_object_set_new(part, "text", value);
        json_array_set_new(content, parts - 1, part);
    } else {
        json_object_set_new(last, "content", value);
    }
    return STATUS_OK;
}

static json_t *shaped_messages(const struct chat *chat, const json_t *messages)
{
    json_t *shaped = json_array(), *message, *call;
    uint64_t arguments_bytes = 0;
    size_t i, j;

    json_array_foreach((json_t *)messages, i, message)
        json_array_foreach(json_object_get(message, "tool_calls"), j, call) arguments_bytes +=
        json_string_length(arguments_of(call));
    json_array_foreach((json_t *)messages, i, message)
        json_array_append_new(shaped, shaped_message(chat, message, arguments_bytes));
    return shaped;
}

static json_t *or_null(const json_t *value)
{
    return value ? json_incref((json_t *)value) : json_null();
}

/* What the template sees. Takes messages. Later members win, so that nothing a client names replaces these. */
static json_t *make_context(const struct chat *chat, const struct chat_request *request,
                            json_t *messages)
{
    json_t *context = json_copy(chat->variables);

    if (request->extra) json_object_update(context, (json_t *)request->extra);
    if (request->kwargs) json_object_update(context, (json_t *)request->kwargs);
    json_object_set_new(context, "messages", messages);
    json_object_set_new(context, "tools", or_null(request->tools));
    json_object_set_new(context, "documents", or_null(request->documents));
    json_object_set_new(context, "add_generation_prompt",
                        json_boolean(request->add_generation_prompt));
    return context;
}

/* --- rendering --- */
static enum status render(const struct chat *chat, const struct chat_request *request,
                          json_t *context, struct buf *text, struct template_marks *marks,
                          struct error *err)
{
    struct error fault = {0};

    switch (template_render(chat->template, context, request->now, &template_limits_default, text,
                            marks, &fault)) {
    case TEMPLATE_OK: return STATUS_OK;
    case TEMPLATE_RAISE: return error_set(err, STATUS_INVALID, "%s", fault.message);
    case TEMPLATE_LIMIT:
        return error_set(err, STATUS_LIMIT, "the chat template was stopped: %s", fault.message);
    default: return error_set(err, STATUS_INVALID, "the chat template failed: %s", fault.message);
    }
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct slice stripped(struct slice s)
{
    while (s.len && is_space(s.ptr[0])) {
        s.ptr++;
        s.len--;
    }
    while (s.len && is_space(s.ptr[s.len - 1]))
        s.len--;
    return s;
}

/* Cuts the text where the tag stands, as transformers does: where the template trimmed the tag's last space, what
 * white space the message had at its end is gone as well. */
static enum status cut_at_tag(const struct chat *chat, struct slice final, struct buf *text,
                              struct error *err)
{
    size_t tag = strlen(chat->tag) - 1, at = text->len;
    struct slice want = stripped(final);
    bool found = false;

    if (at >= tag)
        for (at = text->len - tag + 1; at > 0 && !found;)
            found = memcmp(text->ptr + --at, chat->tag, tag) == 0;
    if (!found || (want.len && !memmem(text->ptr, text->len, want.ptr, want.len)))
        return error_set(err, STATUS_INVALID,
                         "continue_final_message is set, but the chat template leaves out the "
                         "final message or a part of it");
    if (at + tag < text->len && text->ptr[at + tag] == ' ') {
        text->len = at;
        return STATUS_OK;
    }
    while (at > 0 && is_space(text->ptr[at - 1]))
        at--;
    text->len = at;
    return STATUS_OK;
}

static void clip_marks(struct template_marks *marks, size_t len)
{
    while (marks->count && marks->ranges[marks->count - 1].begin >= len)
        marks->count--;
    if (marks->count && marks->ranges[marks->count - 1].end > len)
        marks->ranges[marks->count - 1].end = len;
}

static enum status render_request(const struct chat *chat, const struct chat_request *request,
                                  struct buf *text, struct template_marks *marks, struct error *err)
{
    json_t *messages = shaped_messages(chat, request->messages), *context;
    struct buf final;
    enum status st = STATUS_OK;

    buf_init(&final, 0);
    if (request->continue_final_message) st = tag_final(chat, messages, &final, err);
    if (st) {
        json_decref(messages);
        buf_fini(&final);
        return st;
    }
    context = make_context(chat, request, messages);
    st = render(chat, request, context, text, marks, err);
    if (!st && request->continue_final_message) {
        st = cut_at_tag(chat, buf_slice(&final), text, err);
        clip_marks(marks, text->len);
    }
    buf_fini(&final);
    json_decref(context);
    return st;
}

/* --- tokenising --- */
static bool starts_with_bos(const struct chat *chat, struct slice text)
{
    int32_t bos = tokenizer_bos(chat->tok);

    return bos >= 0 && slice_starts(text, tokenizer_token_bytes(chat->tok, bos)) &&
           tokenizer_token_bytes(chat->tok, bos).len > 0;
}

static enum status tokenise(const struct chat *chat, const struct chat_request *request,
                            struct slice text, const struct template_marks *marks,
                            struct token_list *out)
{
    unsigned flags =
        TOKENIZE_PARSE_SPECIAL | (request->add_special_tokens ? TOKENIZE_ADD_SPECIAL : 0);
    size_t from = out->count;
    int32_t bos = tokenizer_bos(chat->tok);
    enum status st = tokenizer_encode(chat->tok, text, flags, marks->ranges,
                                      request->trust_content ? 0 : marks->count, out);

    if (st || !request->add_special_tokens || !starts_with_bos(chat, text)) return st;
    if (out->count - from >= 2 && out->ids[from] == bos && out->ids[from + 1] == bos) {
        memmove(out->ids + from, out->ids + from + 1, (out->count - from - 1) * sizeof *out->ids);
        out->count--;
    }
    return STATUS_OK;
}

enum status chat_encode(const struct chat *chat, const struct chat_request *request,
                        struct token_list *out, struct buf *text, struct error *err)
{
    struct template_marks marks = {0};
    struct buf rendered;
    enum status st;

    if (!chat->template) return error_set(err, chat->fault.status, "%s", chat->fault.message);
    buf_init(&rendered, 0);
    st = render_request(chat, request, &rendered, &marks, err);
    if (!st && request->rendered_ns) *request->rendered_ns = clock_mono_ns();
    if (!st) {
        st = tokenise(chat, request, buf_slice(&rendered), &marks, out);
        if (st) error_set(err, st, "no memory to tokenise the conversation");
    }
    if (!st && text) buf_append_slice(text, buf_slice(&rendered));
    template_marks_fini(&marks);
    buf_fini(&rendered);
    return st;
}
