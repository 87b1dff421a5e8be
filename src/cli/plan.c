/* plan.c - `inferd plan MODEL`: the memory that `inferd serve` would take with the same options, from headers alone.
 *
 * No weights are read and no tokenizer is opened (it changes no byte). A GPU is asked only for the size of its memory, and only
 * where --gpu-memory does not tell it. Exit status: 0 it fits, 1 it does not (or the model cannot be read), 2 wrong usage. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/shown.h"
#include "cli/check.h"
#include "cli/cli.h"
#include "cli/load.h"

struct subject {
    char *path;
    struct weights *weights;
    struct model *model;
    bool weights_present;
};

static bool names_cpu(const struct config *config, const struct device_options *options)
{
    return options->kind == DEVICE_NULL || (config->device && strcmp(config->device, "cpu") == 0);
}

/* Which device, and the bytes it has. */
static enum status choose_device(const struct config *config, struct device_options *options,
                                 uint64_t *device_bytes, struct error *err)
{
    struct device *device = NULL;
    enum status st;

    *device_bytes = 0;
    if (config->gpu_memory) options->kind = DEVICE_CUDA;
    if (config->gpu_memory || names_cpu(config, options))
        return load_check_dtype(config, options, err);
    st = load_open_device(config, options, &device, err);
    if (st && options->kind != DEVICE_CUDA) return st;
    if (st)
        return error_prefix(err,
                            "the GPU's memory is not known (--gpu-memory 141GB would tell it)");
    *device_bytes = device_memory_bytes(device);
    device_close(device);
    return STATUS_OK;
}

static bool has_config_only(const char *path)
{
    struct buf config;
    bool has;

    buf_init(&config, 0);
    buf_printf(&config, "%s/config.json", path);
    has = access(buf_cstr(&config), R_OK) == 0;
    buf_fini(&config);
    return has;
}

/* A folder without weight files is planned from its config. */
static enum status open_subject(const struct config *config, const struct device_options *device,
                                struct subject *s, struct error *err)
{
    struct model_options options = load_model_options(config, device);
    enum status st = config_resolve_model(config->model, &s->path, err);

    if (st) return st;
    s->weights_present = !options.dummy;
    st = weights_open(s->path, options.dummy ? WEIGHTS_CONFIG_ONLY : 0, &s->weights, err);
    if (st == STATUS_NOT_FOUND && has_config_only(s->path)) {
        s->weights_present = false;
        options.dummy = true;
        st = weights_open(s->path, WEIGHTS_CONFIG_ONLY, &s->weights, err);
    }
    return st ? st : model_open(s->weights, &options, &s->model, err);
}

static void close_subject(struct subject *s)
{
    model_close(s->model);
    weights_close(s->weights);
    free(s->path);
}

static enum status show(const struct config *config, const struct subject *s,
                        const struct planner_options *options, const struct planner_fit *fit,
                        uint64_t available, const char *refused, struct error *err)
{
    static const char *const kinds[] = {"cpu", "cuda", "null"};
    const struct plan *plan = model_plan(s->model);
    char path[4 * PATH_MAX], description[1024],
        why[2048]; /* JSON is UTF-8, and the page may be a terminal */
    struct planner_subject subject = {
        .path = shown(slice_str(s->path), path, sizeof path),
        .description =
            shown(slice_str(model_description(s->model)), description, sizeof description),
        .device = kinds[options->device.kind],
        .parameters = model_parameters(s->model),
        .weights_present = s->weights_present,
        .host_available = available,
        .refused = refused ? shown(slice_str(refused), why, sizeof why) : NULL,
    };

    if (!config->json) {
        planner_print(&subject, options, plan, fit, stdout);
        return STATUS_OK;
    }
    json_t *page = planner_json(&subject, options, plan, fit);
    if (!page) return error_set(err, STATUS_NOMEM, "no memory for the plan's JSON");
    json_dumpf(page, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6) | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(page);
    return STATUS_OK;
}

/* It takes no memory worth planning, but serve would not start with a wrong one. */
static enum status check_template(const struct config *config, struct error *err)
{
    struct slice source;
    enum status st = load_chat_template(config, &source, err);

    free((char *)(uintptr_t)source.ptr);
    return st;
}

static enum status make_plan(const struct config *config, struct error *err)
{
    struct device_options device;
    struct planner_options options;
    struct planner_fit fit;
    struct subject s = {0};
    struct error why;
    uint64_t device_bytes, available = planner_host_available();
    enum status st = load_device_options(config, &device, err), fits, told;

    if (!st) st = check_template(config, err);
    if (!st) st = choose_device(config, &device, &device_bytes, err);
    if (!st) st = open_subject(config, &device, &s, err);
    if (!st) {
        load_planner_options(config, &device, device_bytes, &options);
        fits = planner_fit(&options, model_plan(s.model), &fit, &why);
        if (!fits) fits = planner_check_host(&fit, device.kind, available, &why);
        told = show(config, &s, &options, &fit, available, fits ? why.message : NULL, err);
        st = told ? told : fits;
        if (fits && !told) *err = why;
    }
    close_subject(&s);
    return st;
}

static const char usage[] =
    "usage: inferd plan MODEL [any option of serve] [--gpu-memory 141GB] [--json]\n";

int cli_plan(int argc, char **argv)
{
    struct config config;
    struct error err;
    enum status st;

    if (check_parse(argc, argv, &config)) return 2;
    int wrong = check_one_model(&config, "plan", usage);

    if (wrong >= 0) {
        config_fini(&config);
        return wrong;
    }
    st = make_plan(&config, &err);
    config_fini(&config);
    return st ? cli_fail(&err) : 0;
}
