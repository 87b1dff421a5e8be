#include "cli/observe_setup.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

void observe_setup_form(const char *format)
{
    bool journal = config_stderr_is_journal();

    log_set_format(format && strcmp(format, "json") == 0 ? LOG_JSON : LOG_TEXT);
    log_set_priorities(journal);
    log_set_timestamps(!journal);
}

void observe_setup_log(const struct config *c)
{
    observe_setup_form(c->log_format);
    log_set_level_named(c->log_level);
    log_set_timestamps(c->log_timestamps &&
                       (!config_stderr_is_journal() || config_given(c, "log_timestamps")));
}

/* name=value,name=value; a name is a token of HTTP, a value what percent-encoding leaves. */
static bool is_list_of_pairs(const char *text)
{
    static const char names[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

    for (;;) {
        text += strspn(text, " \t");
        size_t name = strspn(text, names);
        const char *equals = text + name + strspn(text + name, " \t");

        if (!name || *equals != '=') return false;
        text = equals + 1 + strcspn(equals + 1, ",\r\n");
        if (!*text) return true;
        if (*text++ != ',') return false;
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);

    return a >= b && strcmp(text + a - b, end) == 0;
}

enum { URL_BYTES = 1024 };

/* Where traces go; false: nowhere. */
static bool traces_url(const struct config *c, char url[URL_BYTES])
{
    static const char path[] = "/v1/traces";
    const char *base = c->otlp_endpoint;

    if (c->otlp_traces_endpoint && *c->otlp_traces_endpoint) {
        snprintf(url, URL_BYTES, "%s", c->otlp_traces_endpoint);
        return true;
    }
    if (!base || !*base) return false;
    snprintf(url, URL_BYTES, "%.*s%s", (int)(strlen(base) - ends_with(base, "/")), base,
             ends_with(base, path) ? "" : path);
    return true;
}

enum status observe_check(const struct config *c, struct error *err)
{
    char url[URL_BYTES];

    if (c->otlp_headers && !is_list_of_pairs(c->otlp_headers))
        return error_set(err, STATUS_INVALID,
                         "--otlp-headers must be name=value, with commas between several");
    if (c->otlp_resource_attributes && !is_list_of_pairs(c->otlp_resource_attributes))
        return error_set(
            err, STATUS_INVALID,
            "--otlp-resource-attributes must be name=value, with commas between several");
    if (traces_url(c, url)) return tracer_check_url(url, err);
    return STATUS_OK;
}

enum status observe_open_tracer(const struct config *c, struct tracer **out, struct error *err)
{
    char url[URL_BYTES];

    *out = NULL;
    if (!traces_url(c, url)) return STATUS_OK;
    const struct tracer_options options = {
        .url = url,
        .headers = c->otlp_headers,
        .service_name = c->otlp_service_name,
        .service_version = INFERD_VERSION,
        .resource_attributes = c->otlp_resource_attributes,
        .ratio = c->otlp_sample_ratio,
    };
    enum status st = tracer_create(&options, out, err);

    if (!st) log_info("tracing", "url=%s ratio=%g", tracer_shown_url(*out), c->otlp_sample_ratio);
    return st;
}

static const char *kv_format_name(const struct loaded *l)
{
    static const char *const names[] = {
        [KV_F32] = "float32", [KV_F16] = "float16", [KV_BF16] = "bfloat16", [KV_FP8] = "fp8"};

    if (l->device_options.kind == DEVICE_NULL) return "none";
    if (l->device_options.kind == DEVICE_CPU) /* it decides for itself */
        return names[l->device_options.numerics == CPU_EXACT ? KV_F32 : KV_F16];
    return names[l->plan->groups[0].format];
}

void observe_describe(const struct config *c, const struct loaded *l, const char *name,
                      struct metrics_model *out)
{
    const struct plan_kv_group *group = &l->plan->groups[0];

    *out = (struct metrics_model){
        .name = name,
        .description = model_description(l->model),
        .device = device_description(l->device),
        .context_tokens = l->limits.context_tokens,
        .block_tokens = group->block_tokens,
        .kv_tokens = load_kv_tokens(l),
        .kv_format = kv_format_name(l),
        .prefix_caching = c->enable_prefix_caching,
        .memory_utilization = l->device_options.kind == DEVICE_CUDA ? c->gpu_memory_utilization : 0,
        .version = INFERD_VERSION,
    };
}
