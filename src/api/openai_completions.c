#include "api/openai_completions.h"

#include <stdlib.h>

static bool no_memory(struct api_fault *fault)
{
    api_submit_fault(STATUS_NOMEM, NULL, API_COMPLETIONS, 1, fault);
    return false;
}

static bool refuse_empty(struct api_fault *fault, const char *param)
{
    return api_refuse(fault, 400, "invalid_value", param, "%s must not be empty.", param);
}

static bool make_room(struct prompts *out, size_t count, struct api_fault *fault)
{
    out->lists = calloc(count, sizeof *out->lists);
    out->texts = calloc(count, sizeof *out->texts);
    return (out->lists && out->texts) || no_memory(fault);
}

static bool read_text(const struct api_model *model, const json_t *value, bool add_special,
                      const char *param, struct prompts *out, struct api_fault *fault)
{
    struct slice text = slice_of(json_string_value(value), json_string_length(value));
    struct token_list *list = &out->lists[out->count];
    unsigned flags = TOKENIZE_PARSE_SPECIAL | (add_special ? TOKENIZE_ADD_SPECIAL : 0);

    if (!text.len) return refuse_empty(fault, param);
    out->texts[out->count++] = value;
    if (tokenizer_encode(model->tokenizer, text, flags, NULL, 0, list)) return no_memory(fault);
    return list->count || refuse_empty(fault, param);
}

static bool read_ids(const struct api_model *model, const json_t *array, const char *param,
                     struct prompts *out, struct api_fault *fault)
{
    struct token_list *list = &out->lists[out->count++];
    const json_t *item;
    char path[PARAM_PATH];
    size_t i;

    if (json_array_size(array) == 0) return refuse_empty(fault, param);
    list->ids = malloc(json_array_size(array) * sizeof *list->ids);
    if (!list->ids) return no_memory(fault);
    list->cap = json_array_size(array);
    json_array_foreach(array, i, item)
    {
        int64_t id;

        if (json_is_number(item) && params_integral(item, &id) && id >= 0 &&
            id < model->vocab_size) { /* the common case, without a path */
            list->ids[list->count++] = (int32_t)id;
            continue;
        }
        params_path(path, "%s[%zu]", param, i);
        return params_token_id(model, item, path, &list->ids[0], fault);
    }
    return true;
}

static bool refuse_form(struct api_fault *fault, const char *param, const json_t *value)
{
    return api_refuse(fault, 400, "invalid_type", param,
                      "prompt must be a string, an array of strings, an array of token ids or an "
                      "array of arrays of token ids; here is %s.",
                      params_type_name(value));
}

static bool read_many(const struct api_model *model, const json_t *array, bool add_special,
                      struct prompts *out, struct api_fault *fault)
{
    bool texts = json_is_string(json_array_get(array, 0));
    const json_t *item;
    char param[PARAM_PATH];
    size_t i;

    if (json_array_size(array) > model->sequences_max)
        return api_refuse(fault, 400, "invalid_value", "prompt",
                          "prompt may have at most %u prompt%s; it has %zu.", model->sequences_max,
                          plural(model->sequences_max), json_array_size(array));
    if (!make_room(out, json_array_size(array), fault)) return false;
    json_array_foreach(array, i, item)
    {
        params_path(param, "prompt[%zu]", i);
        if (texts ? !json_is_string(item) : !json_is_array(item))
            return refuse_form(fault, param, item);
        if (texts ? !read_text(model, item, add_special, param, out, fault)
                  : !read_ids(model, item, param, out, fault))
            return false;
    }
    return true;
}

bool prompts_read(const struct api_model *model, const json_t *body, bool add_special,
                  struct prompts *out, struct api_fault *fault)
{
    const json_t *prompt = params_field(body, "prompt"), *first = json_array_get(prompt, 0);

    *out = (struct prompts){0};
    if (!prompt)
        return api_refuse(fault, 400, "missing_required_parameter", "prompt", "prompt is missing.");
    if (json_is_string(prompt))
        return make_room(out, 1, fault) &&
               read_text(model, prompt, add_special, "prompt", out, fault);
    if (!json_is_array(prompt)) return refuse_form(fault, "prompt", prompt);
    if (!first) return refuse_empty(fault, "prompt");
    if (json_is_number(first))
        return make_room(out, 1, fault) && read_ids(model, prompt, "prompt", out, fault);
    if (json_is_string(first) || json_is_array(first))
        return read_many(model, prompt, add_special, out, fault);
    return refuse_form(fault, "prompt[0]", first);
}

static bool take_list(const struct api_model *model, const struct open_ids *ids, size_t number,
                      struct prompts *out, struct api_fault *fault)
{
    struct token_list *list = &out->lists[out->count++];
    char path[PARAM_PATH];

    params_path(path, "prompt_ids[%zu]", number);
    if (!ids->count) return refuse_empty(fault, path);
    list->ids = malloc(ids->count * sizeof *list->ids);
    if (!list->ids) return no_memory(fault);
    list->cap = ids->count;
    for (size_t i = 0; i < ids->count; i++) {
        if (ids->ids[i] < 0 || (uint32_t)ids->ids[i] >= model->vocab_size)
            return api_refuse(fault, 400, "invalid_value", path,
                              "A token id must be from 0 to %u, not %d.", model->vocab_size - 1,
                              ids->ids[i]);
        list->ids[list->count++] = ids->ids[i];
    }
    return true;
}

bool prompts_take(const struct api_model *model, const struct open_ids *lists, size_t count,
                  struct prompts *out, struct api_fault *fault)
{
    *out = (struct prompts){0};
    if (count > model->sequences_max)
        return api_refuse(fault, 400, "invalid_value", "prompt_ids",
                          "prompt_ids may have at most %u prompt%s; it has %zu.",
                          model->sequences_max, plural(model->sequences_max), count);
    if (!make_room(out, count, fault)) return false;
    for (size_t i = 0; i < count; i++)
        if (!take_list(model, &lists[i], i, out, fault)) return false;
    return true;
}

void prompts_fini(struct prompts *prompts)
{
    for (uint32_t i = 0; prompts->lists && i < prompts->count; i++)
        token_list_fini(&prompts->lists[i]);
    free(prompts->lists);
    free(prompts->texts);
    *prompts = (struct prompts){0};
}
