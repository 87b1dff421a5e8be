/* inspect.c - `inferd inspect MODEL`: what a model is, or the reason why it would not load. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/shown.h"
#include "cli/check.h"
#include "cli/cli.h"
#include "cli/load.h"
#include "config/config.h"
#include "formats/weights.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum { NAME_BYTES = 256, VALUE_BYTES = 101 }; /* of what is shown of a file's words in a line */

static void print_key(void *ctx, const char *key, const char *value_text)
{
    char name[NAME_BYTES], value[VALUE_BYTES];

    (void)ctx;
    printf("  %-44s %s\n", shown(slice_str(key), name, sizeof name),
           shown(slice_str(value_text), value, sizeof value));
}

static void print_line(const char *what, const char *text)
{
    fputs(what, stdout);
    shown_put(slice_str(text), false, stdout);
    putchar('\n');
}

/* How many tensors and bytes there are of each dtype. */
static void print_dtypes(const struct weights *w)
{
    uint64_t bytes[DTYPE_COUNT] = {0};
    uint32_t counts[DTYPE_COUNT] = {0};

    for (uint32_t i = 0; i < weights_count(w); i++) {
        const struct weight_view *view = weights_at(w, i);
        bytes[view->dtype] += view->bytes;
        counts[view->dtype]++;
    }
    printf("weights: %u tensor%s, %.1f MB\n", weights_count(w), plural(weights_count(w)),
           (double)weights_bytes(w) / 1e6);
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (counts[d])
            printf("  %-8s %5u tensor%-2s %12.1f MB\n", dtype_info((enum dtype)d)->name, counts[d],
                   plural(counts[d]), (double)bytes[d] / 1e6);
}

static void print_tensors(const struct weights *w)
{
    printf("tensors:\n");
    for (uint32_t i = 0; i < weights_count(w); i++) {
        const struct weight_view *view = weights_at(w, i);
        char shape[96], name[NAME_BYTES];
        int n = 0;
        for (uint32_t d = 0; d < view->dim_count; d++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%llu", d ? " x " : "",
                          (unsigned long long)view->dims[d]);
        printf("  %-52s %-6s %s\n", shown(slice_str(view->name), name, sizeof name),
               dtype_info(view->dtype)->name, shape);
    }
}

static void print_template(const struct chat *chat)
{
    struct slice source = chat_template_source(chat);

    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hello");
    struct chat_request request = {.messages = messages, .add_generation_prompt = true};
    struct token_list ids = {0};
    struct error err = {0};

    if (!source.ptr)
        printf("chat template: none\n");
    else
        printf("chat template: %zu byte%s\n", source.len, plural(source.len));
    shown_put(source, true, stdout);
    if (source.ptr) putchar('\n');
    if (source.ptr && messages && chat_encode(chat, &request, &ids, NULL, &err))
        print_line("one message of a user does not pass through it: ", err.message);
    token_list_fini(&ids);
    json_decref(messages);
}

static enum status inspect(const struct config *config, struct error *err)
{
    struct weights *weights = NULL;
    struct tokenizer *tokenizer = NULL;
    struct model *model = NULL;
    struct chat *chat = NULL;
    char *path = NULL;
    struct slice template = {0};
    enum status st = load_chat_template(config, &template, err);

    if (!st) st = config_resolve_model(config->model, &path, err);
    if (!st) st = weights_open(path, 0, &weights, err);
    if (!st) st = model_open(weights, NULL, &model, err);
    if (!st) {
        shown_put(slice_str(path), false, stdout);
        puts(weights_kind(weights) == WEIGHTS_GGUF ? ": GGUF" : ": Hugging Face folder");
        print_line("model: ", model_description(model));
        print_dtypes(weights);
        st = tokenizer_open(weights, &tokenizer, err);
    }
    if (!st) {
        print_line("tokenizer: ", tokenizer_description(tokenizer));
        st = chat_open(weights, tokenizer, template, &chat, err);
    }
    if (!st) {
        if (weights_kind(weights) == WEIGHTS_GGUF) {
            printf("metadata:\n");
            weights_meta_each(weights, print_key, NULL);
        }
        print_tensors(weights);
        print_template(chat);
    }
    free((char *)(uintptr_t) template.ptr);
    chat_close(chat);
    tokenizer_close(tokenizer);
    model_close(model);
    weights_close(weights);
    free(path);
    return st;
}

static const char usage[] = "usage: inferd inspect MODEL [--chat-template FILE]\n";

int cli_inspect(int argc, char **argv)
{
    struct config config;
    struct error err;
    enum status st;

    if (check_parse(argc, argv, &config)) return 2;
    int wrong = check_one_model(&config, "inspect", usage);

    if (wrong >= 0) {
        config_fini(&config);
        return wrong;
    }
    st = inspect(&config, &err);
    config_fini(&config);
    return st ? cli_fail(&err) : 0;
}
