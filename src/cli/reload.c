#include "cli/reload.h"

#include <string.h>

#include "api/json_out.h"
#include "base/log.h"
#include "cli/keys.h"

static const char *const reloadable[] = {
    "api_key",
    "api_key_file",
    "cors",
    "max_body_bytes",
    "header_timeout_s",
    "body_timeout_s",
    "idle_timeout_s",
    "shutdown_timeout_s",
    "drain_grace_s",
    "max_prompt_tokens",
    "max_n",
    "max_stop_strings",
    "max_logit_bias",
    "max_connections_per_address",
    "log_level",
};

static bool is_reloadable(const char *name)
{
    for (size_t i = 0; i < sizeof reloadable / sizeof *reloadable; i++)
        if (strcmp(reloadable[i], name) == 0) return true;
    return false;
}

void reload_init(struct reload *r, int argc, char **argv, const struct config *first,
                 const char *credentials)
{
    *r = (struct reload){.argc = argc, .argv = argv, .credentials = credentials, .first = first};
    pthread_mutex_init(&r->lock, NULL);
}

void reload_fini(struct reload *r)
{
    if (r->has_now) config_fini(&r->now);
    r->has_now = false;
    pthread_mutex_destroy(&r->lock);
}

static const struct config *in_force(const struct reload *r)
{
    return r->has_now ? &r->now : r->first;
}

void reload_drain_times(struct reload *r, uint64_t *grace_s, uint64_t *shutdown_s)
{
    pthread_mutex_lock(&r->lock);
    *grace_s = in_force(r)->drain_grace_s;
    *shutdown_s = in_force(r)->shutdown_timeout_s;
    pthread_mutex_unlock(&r->lock);
}

void reload_fill(const struct config *c, struct frontend_options *out)
{
    out->cors = c->cors;
    out->body_bytes_max = c->max_body_bytes;
    out->address_connections_max = (uint32_t)c->max_connections_per_address;
    out->header_timeout_s = (uint32_t)c->header_timeout_s;
    out->body_timeout_s = (uint32_t)c->body_timeout_s;
    out->idle_timeout_s = (uint32_t)c->idle_timeout_s;
    out->client_stall_s = (uint32_t)c->client_stall_timeout_s;
    out->limits = (struct api_limits){.prompt_tokens = (uint32_t)c->max_prompt_tokens,
                                      .choices = (uint32_t)c->max_n,
                                      .stop_strings = (uint32_t)c->max_stop_strings,
                                      .biases = (uint32_t)c->max_logit_bias};
}

static void put_name(const char *name, uint32_t *count, struct buf *out)
{
    if ((*count)++) buf_append_char(out, ',');
    json_out_string(out, slice_str(name));
}

/* The names of the options that differ and are (or are not) reloadable, as JSON strings. */
static uint32_t list_changes(const struct config *old, const struct config *new, bool which,
                             struct buf *out)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < config_count(); i++) {
        if (is_reloadable(config_name(i)) != which || config_same(old, new, i)) continue;
        put_name(config_name(i), &count, out);
        if (!which)
            log_warn("option not reloaded", "option=%s why=\"it takes a restart\"", config_name(i));
    }
    return count;
}

static enum status apply(struct reload *r, struct frontend *frontend, const struct config *fresh,
                         bool *other_zmq_key, struct error *err)
{
    struct frontend_options options = {0};
    struct keys keys;
    enum status st = keys_read(fresh, r->credentials, &keys, err);

    if (st) return st;
    reload_fill(fresh, &options);
    options.client_stall_s = (uint32_t)r->first->client_stall_timeout_s; /* the engine has it too */
    options.api_keys = keys.items;
    options.api_key_count = keys.count;
    if (r->had_keys && !keys.count)
        st = error_set(err, STATUS_INVALID,
                       "no API key is left; a reload does not open a server that had one");
    if (!st && frontend) st = frontend_reload(frontend, &options, other_zmq_key, err);
    if (!st) r->had_keys = keys.count > 0;
    if (!st) log_info("keys", "count=%u", keys.count);
    keys_fini(&keys);
    return st;
}

static void put_error(const struct error *err, struct buf *report)
{
    struct api_fault fault;
    char quoted[1024];

    log_error("reload refused", "reason=%s kept=\"everything as it was\"",
              log_quote(slice_str(err->message), quoted, sizeof quoted));
    if (!report) return;
    api_refuse(&fault, 400, "reload_refused", NULL, "%s", err->message);
    api_fault_body(&fault, report);
}

/* The options' lists for report and log. */
static void tell(const struct config *old, const struct config *first, const struct config *fresh,
                 bool other_zmq_key, struct buf *report)
{
    struct buf changed, kept;

    buf_init(&changed, 0);
    buf_init(&kept, 0);
    uint32_t count = list_changes(old, fresh, true, &changed);
    uint32_t kept_count = list_changes(first, fresh, false, &kept);

    if (other_zmq_key && !strstr(buf_cstr(&kept), "zmq_server_key_file"))
        put_name("zmq_server_key_file", &kept_count, &kept);
    log_info("reloaded", "options_changed=%u names=[%s]", count, buf_cstr(&changed));
    if (report) {
        buf_append_str(report, "{\"status\":\"reloaded\",\"changed\":[");
        buf_append_slice(report, buf_slice(&changed));
        buf_append_str(report, "],\"not_changed\":[");
        buf_append_slice(report, buf_slice(&kept));
        buf_append_str(report, "]}");
    }
    buf_fini(&changed);
    buf_fini(&kept);
}

bool reload_run(struct reload *r, struct frontend *frontend, struct buf *report)
{
    struct config fresh;
    struct error err = {0};
    bool parsed, taken, other_zmq_key = false;

    pthread_mutex_lock(&r->lock);
    parsed = !config_parse(r->argc, r->argv, &fresh, &err);
    taken = parsed && !apply(r, frontend, &fresh, &other_zmq_key, &err);
    if (taken) {
        tell(in_force(r), r->first, &fresh, other_zmq_key, report);
        log_set_level_named(fresh.log_level);
        if (r->has_now) config_fini(&r->now);
        r->now = fresh;
        r->has_now = true;
    } else {
        put_error(&err, report);
        if (parsed) config_fini(&fresh);
    }
    pthread_mutex_unlock(&r->lock);
    return taken;
}
