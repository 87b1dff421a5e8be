#include "api/messages.h"

#include "api/params.h"
#include "base/clock.h"
#include "text/chat.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLE_UNKNOWN };

static enum role role_of(const json_t *role)
{
    static const struct {
        const char *name;
        enum role role;
    } roles[] = {{"system", ROLE_SYSTEM},
                 {"developer", ROLE_SYSTEM},
                 {"user", ROLE_USER},
                 {"assistant", ROLE_ASSISTANT},
                 {"tool", ROLE_TOOL}};

    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (params_is_word(role, roles[i].name)) return roles[i].role;
    return ROLE_UNKNOWN;
}

static bool refuse_type(struct api_fault *fault, const char *param, const char *wanted,
                        const json_t *value)
{
    if (!value || json_is_null(value))
        return api_refuse(fault, 400, "missing_required_parameter", param,
                          "%s is missing; it must be %s.", param, wanted);
    return api_refuse(fault, 400, "invalid_type", param, "%s must be %s, not %s.", param, wanted,
                      params_type_name(value));
}

/* An element of an array that must be an object: null is no missing one there. */
static bool refuse_element(struct api_fault *fault, const char *param, const json_t *value)
{
    return api_refuse(fault, 400, "invalid_type", param, "%s must be an object, not %s.", param,
                      params_type_name(value));
}

/* A string member of `object`, required. */
static bool check_string(const json_t *object, const char *name, const char *path,
                         struct api_fault *fault)
{
    const json_t *value = json_object_get(object, name);
    char param[PARAM_PATH];

    if (json_is_string(value)) return true;
    params_path(param, "%s.%s", path, name);
    return refuse_type(fault, param, "a string", value);
}

static bool check_part(json_t *part, enum role role, const char *path, struct api_fault *fault)
{
    char param[PARAM_PATH];

    if (!json_is_object(part)) return refuse_element(fault, path, part);
    if (!check_string(part, "type", path, fault)) return false;
    const json_t *type = json_object_get(part, "type");

    if (params_is_word(type, "text")) return check_string(part, "text", path, fault);
    if (params_is_word(type, "refusal") && role == ROLE_ASSISTANT) {
        if (!check_string(part, "refusal", path, fault)) return false;
        /* templates know text parts only */
        json_object_set(part, "text", json_object_get(part, "refusal"));
        json_object_del(part, "refusal");
        json_object_set_new(part, "type", json_string("text"));
        return true;
    }
    params_path(param, "%s.type", path);
    return api_refuse(fault, 400, "invalid_value", param,
                      "A content part of type '%.40s' is not accepted here: this model reads text.",
                      json_string_value(type));
}

static bool check_content(json_t *message, enum role role, const char *path,
                          struct api_fault *fault)
{
    json_t *content = json_object_get(message, "content"), *part;
    char param[PARAM_PATH], part_path[PARAM_PATH];
    size_t i;

    params_path(param, "%s.content", path);
    if (json_is_string(content)) return true;
    if (!json_is_array(content))
        return refuse_type(fault, param, "a string or an array of text parts", content);
    if (json_array_size(content) == 0)
        return api_refuse(fault, 400, "invalid_value", param, "%s must not be an empty array.",
                          param);
    json_array_foreach(content, i, part)
    {
        params_path(part_path, "%s[%zu]", param, i);
        if (!check_part(part, role, part_path, fault)) return false;
    }
    return true;
}

static bool check_tool_call(const json_t *call, const char *path, struct api_fault *fault)
{
    char function[PARAM_PATH], param[PARAM_PATH];

    if (!json_is_object(call)) return refuse_element(fault, path, call);
    if (!check_string(call, "id", path, fault) || !check_string(call, "type", path, fault))
        return false;
    params_path(param, "%s.type", path);
    if (!params_is_word(json_object_get(call, "type"), "function"))
        return api_refuse(fault, 400, "invalid_value", param, "%s must be \"function\".", param);
    params_path(function, "%s.function", path);
    const json_t *value = json_object_get(call, "function");

    if (!json_is_object(value)) return refuse_type(fault, function, "an object", value);
    return check_string(value, "name", function, fault) &&
           check_string(value, "arguments", function, fault);
}

/* *has: there is at least one. An empty or null list is taken out, so that templates do not see it. */
static bool check_tool_calls(json_t *message, const char *path, bool *has, struct api_fault *fault)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *call;
    char param[PARAM_PATH], call_path[PARAM_PATH];
    size_t i;

    *has = false;
    if (!calls) return true;
    params_path(param, "%s.tool_calls", path);
    if (!json_is_null(calls) && !json_is_array(calls))
        return refuse_type(fault, param, "an array", calls);
    json_array_foreach(calls, i, call)
    {
        params_path(call_path, "%s[%zu]", param, i);
        if (!check_tool_call(call, call_path, fault)) return false;
        *has = true;
    }
    if (!*has) json_object_del(message, "tool_calls");
    return true;
}

static bool check_message(json_t *message, size_t index, struct api_fault *fault)
{
    char path[PARAM_PATH], param[PARAM_PATH];
    bool has_calls = false;

    params_path(path, "messages[%zu]", index);
    if (!json_is_object(message)) return refuse_element(fault, path, message);
    if (!check_string(message, "role", path, fault)) return false;
    const char *name = json_string_value(json_object_get(message, "role"));
    enum role role = role_of(json_object_get(message, "role"));

    if (role == ROLE_UNKNOWN) {
        params_path(param, "%s.role", path);
        return api_refuse(fault, 400, "invalid_value", param,
                          "%s must be system, developer, user, assistant or tool, not '%.40s'.",
                          param, name);
    }
    if (params_field(message, "name") && !check_string(message, "name", path, fault)) return false;
    if (role == ROLE_TOOL && !check_string(message, "tool_call_id", path, fault)) return false;
    if (role == ROLE_ASSISTANT && !check_tool_calls(message, path, &has_calls, fault)) return false;
    if (has_calls && !params_field(message, "content")) {
        json_object_set_new(message, "content", json_null()); /* templates ask `is none` */
        return true;
    }
    return check_content(message, role, path, fault);
}

static bool read_list(const json_t *body, struct messages *out, struct api_fault *fault)
{
    const json_t *list = params_field(body, "messages");
    json_t *message;
    size_t i;

    if (!json_is_array(list)) return refuse_type(fault, "messages", "an array of messages", list);
    if (json_array_size(list) == 0)
        return api_refuse(fault, 400, "invalid_value", "messages",
                          "messages must have at least one message.");
    out->list = json_incref(
        (json_t *)(uintptr_t)list); /* the tree is this request's own: edited in place */
    json_array_foreach(out->list, i, message) if (!check_message(message, i, fault)) return false;
    return true;
}

static bool read_flags(const json_t *body, struct messages *out, struct api_fault *fault)
{
    bool add = false, given = params_field(body, "add_generation_prompt") != NULL;

    if (!params_bool(body, "continue_final_message", &out->continue_final, fault) ||
        !params_bool(body, "add_generation_prompt", &add, fault) ||
        !params_bool(body, "add_special_tokens", &out->add_special, fault))
        return false;
    out->add_generation_prompt = given ? add : !out->continue_final;
    if (out->continue_final && out->add_generation_prompt)
        return api_refuse(fault, 400, "invalid_value", "add_generation_prompt",
                          "add_generation_prompt and continue_final_message cannot both be true.");
    if (!out->continue_final) return true;
    const json_t *last = json_array_get(out->list, json_array_size(out->list) - 1);

    if (role_of(json_object_get(last, "role")) != ROLE_ASSISTANT ||
        json_is_null(json_object_get(last, "content")))
        return api_refuse(fault, 400, "invalid_value", "continue_final_message",
                          "continue_final_message needs a last message of the assistant with "
                          "text.");
    return true;
}

static bool read_template_values(const json_t *body, struct messages *out, struct api_fault *fault)
{
    const json_t *effort = params_field(body, "reasoning_effort"), *document;
    char param[PARAM_PATH];
    size_t i;

    out->kwargs = params_field(body, "chat_template_kwargs");
    if (out->kwargs && !json_is_object(out->kwargs))
        return refuse_type(fault, "chat_template_kwargs", "an object", out->kwargs);
    out->documents = params_field(body, "documents");
    if (out->documents && !json_is_array(out->documents))
        return refuse_type(fault, "documents", "an array of objects", out->documents);
    json_array_foreach(out->documents, i, document)
    {
        params_path(param, "documents[%zu]", i);
        if (!json_is_object(document)) return refuse_element(fault, param, document);
    }
    if (effort) {
        out->extra = json_object();
        json_object_set(out->extra, "reasoning_effort", (json_t *)(uintptr_t)effort);
    }
    return true;
}

bool messages_read(const json_t *body, bool add_special, struct messages *out,
                   struct api_fault *fault)
{
    *out = (struct messages){.add_special = add_special};
    return read_list(body, out, fault) && read_flags(body, out, fault) &&
           read_template_values(body, out, fault);
}

void messages_fini(struct messages *messages)
{
    json_decref(messages->list);
    json_decref(messages->extra);
    *messages = (struct messages){0};
}

bool messages_encode(const struct api_model *model, struct messages *messages,
                     struct token_list *ids, struct api_fault *fault)
{
    struct chat_request request = {.messages = messages->list,
                                   .tools = messages->tools,
                                   .documents = messages->documents,
                                   .kwargs = messages->kwargs,
                                   .extra = messages->extra,
                                   .add_generation_prompt = messages->add_generation_prompt,
                                   .continue_final_message = messages->continue_final,
                                   .add_special_tokens = messages->add_special,
                                   .trust_content = model->trust_content,
                                   .now = clock_wall_s(),
                                   .rendered_ns = &messages->rendered_ns};
    struct error err = {0};
    enum status st = chat_encode(model->chat, &request, ids, NULL, &err);

    if (!st) return true;
    if (st == STATUS_NOMEM) {
        api_submit_fault(st, &err, API_CHAT, 1, fault);
        return false;
    }
    return api_refuse(fault, 400, "invalid_value", "messages",
                      "The chat template refused the conversation: %.200s", err.message);
}
