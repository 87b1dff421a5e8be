/* config_args.c - defaults, then environment, file and flags in the order of their rank. */
#include "config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config_private.h"

static enum status set_defaults(struct config *c, struct error *err)
{
    enum status st = STATUS_OK;

    for (uint32_t i = 0; i < config_option_count && !st; i++)
        if (*config_options[i].def)
            st = config_set(c, config_options[i].field, config_options[i].def, CONFIG_DEFAULT,
                            config_options[i].field, err);
    return st;
}

extern char **environ;

/* A variable INFERD_X that is no option but nearly one is a slip of the pen; other programs' INFERD_X are theirs. */
static enum status check_environment(struct error *err)
{
    for (char **v = environ; *v; v++) {
        char name[80];
        size_t n = strcspn(*v, "=");
        if (strncmp(*v, "INFERD_", 7) != 0 || n < 8 || n - 7 >= sizeof name) continue;
        for (size_t i = 7; i <= n; i++)
            name[i - 7] =
                i == n ? '\0' : (char)((*v)[i] >= 'A' && (*v)[i] <= 'Z' ? (*v)[i] + 32 : (*v)[i]);
        const char *near = config_find(name) < 0 ? config_nearest_within(name, 2) : NULL;
        if (near)
            return error_set(err, STATUS_INVALID,
                             "%.*s: there is no such option; did you mean the variable of --%s?",
                             (int)n, *v, near);
    }
    return STATUS_OK;
}

void config_unknown_variables(void (*tell)(const char *name))
{
    for (char **v = environ; *v; v++) {
        char name[80];
        size_t n = strcspn(*v, "=");

        if (strncmp(*v, "INFERD_", 7) != 0 || n < 8 || n >= sizeof name) continue;
        for (size_t i = 0; i <= n; i++)
            name[i] =
                i == n ? '\0' : (char)((*v)[i] >= 'A' && (*v)[i] <= 'Z' ? (*v)[i] + 32 : (*v)[i]);
        if (config_find(name + 7) >= 0) continue;
        memcpy(name, *v, n);
        tell(name);
    }
}

/* What OTEL_TRACES_SAMPLER and its argument say as a share; NULL: nothing, or a sampler that we do not have. */
static const char *otel_ratio(void)
{
    const char *sampler = getenv("OTEL_TRACES_SAMPLER"), *ratio = getenv("OTEL_TRACES_SAMPLER_ARG");

    if (!sampler || !*sampler || strstr(sampler, "traceidratio")) return ratio;
    if (strstr(sampler, "always_off")) return "0";
    return strstr(sampler, "always_on") ? "1" : NULL;
}

/* OpenTelemetry's own variables: they rank below ours, so they come first. */
static enum status set_from_otel(struct config *c, struct error *err)
{
    static const struct {
        const char *variable, *field;
    } names[] = {
        {"OTEL_EXPORTER_OTLP_ENDPOINT", "otlp_endpoint"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "otlp_traces_endpoint"},
        {"OTEL_EXPORTER_OTLP_HEADERS", "otlp_headers"},
        {"OTEL_SERVICE_NAME", "otlp_service_name"},
        {"OTEL_RESOURCE_ATTRIBUTES", "otlp_resource_attributes"},
        {"OTEL_TRACES_SAMPLER_ARG", "otlp_sample_ratio"},
    };
    const char *off = getenv("OTEL_SDK_DISABLED");
    enum status st = STATUS_OK;

    if (off && strcasecmp(off, "true") == 0) return STATUS_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !st; i++) {
        bool ratio = strcmp(names[i].field, "otlp_sample_ratio") == 0;
        const char *value = ratio ? otel_ratio() : getenv(names[i].variable);

        if (value && *value)
            st = config_set(c, names[i].field, value, CONFIG_ENVIRONMENT, names[i].variable, err);
    }
    return st;
}

/* "port" -> "INFERD_PORT" in `out`. */
static const char *variable_of(const char *field, char out[static 80])
{
    size_t n = 0;

    memcpy(out, "INFERD_", 7);
    for (; field[n] && n < 64; n++)
        out[7 + n] = (char)(field[n] >= 'a' && field[n] <= 'z' ? field[n] - 32 : field[n]);
    out[7 + n] = '\0';
    return out;
}

static enum status set_from_environment(struct config *c, struct error *err)
{
    enum status st = check_environment(err);
    char name[80];

    if (!st) st = set_from_otel(c, err);

    for (uint32_t i = 0; i < config_option_count && !st; i++) {
        const char *field = config_options[i].field;
        const char *value = getenv(variable_of(field, name));
        if (value && *value) st = config_set(c, field, value, CONFIG_ENVIRONMENT, name, err);
    }
    return st;
}

static enum status add_plain(struct config *c, const char *text, bool *model_seen,
                             struct error *err)
{
    if (!*model_seen) {
        *model_seen = true;
        return config_set(c, "model", text, CONFIG_FLAG, "MODEL", err);
    }
    const char **grown = arena_alloc(&c->arena, (c->rest.count + 1) * sizeof *grown);
    char *copy = arena_strdup(&c->arena, slice_str(text));
    if (!grown || !copy) return error_set(err, STATUS_NOMEM, "no memory for the arguments");
    if (c->rest.count) memcpy(grown, c->rest.items, c->rest.count * sizeof *grown);
    grown[c->rest.count++] = copy;
    c->rest.items = grown;
    return STATUS_OK;
}

/* One flag at argv[*i]: --name value, --name=value, --bool, --no-bool, -x value. Moves *i past what it used. */
static enum status take_flag(struct config *c, int argc, char **argv, int *i, bool *model_seen,
                             struct error *err)
{
    char name[80];
    const char *arg = argv[*i], *value = strchr(arg, '=');
    size_t len = value ? (size_t)(value - arg) : strlen(arg);

    if (len >= sizeof name)
        return error_set(err, STATUS_INVALID, "%.40s...: there is no such option", arg);
    memcpy(name, arg, len);
    name[len] = '\0';
    if (value) value++;
    int option = config_find(name);
    if (option < 0 && strncmp(name, "--no-", 5) == 0 && !value) {
        option = config_find(name + 5);
        if (option >= 0 && config_options[option].type == OPT_BOOL)
            return config_set(c, config_options[option].field, "false", CONFIG_FLAG, name, err);
        option = -1;
    }
    if (option >= 0 && !value && config_options[option].type == OPT_BOOL) value = "true";
    if (option >= 0 && !value) {
        if (*i + 1 >= argc) return error_set(err, STATUS_INVALID, "%s needs a value", name);
        value = argv[++*i];
    }
    if (option >= 0 && strcmp(config_options[option].field, "model") == 0) *model_seen = true;
    enum status st = config_set(c, name, value ? value : "", CONFIG_FLAG, name, err);
    /* vLLM's --api-key and --served-model-name take several words after one flag */
    while (!st && option >= 0 && config_options[option].type == OPT_STRINGS && *model_seen &&
           *i + 1 < argc && argv[*i + 1][0] != '-')
        st = config_set(c, name, argv[++*i], CONFIG_FLAG, name, err);
    return st;
}

static enum status set_from_flags(struct config *c, int argc, char **argv, struct error *err)
{
    enum status st = STATUS_OK;
    bool model_seen = false, plain = false;

    for (int i = 1; i < argc && !st; i++) {
        if (!plain && strcmp(argv[i], "--") == 0)
            plain = true;
        else if (!plain && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0))
            c->help = true;
        else if (!plain && argv[i][0] == '-' && argv[i][1])
            st = take_flag(c, argc, argv, &i, &model_seen, err);
        else
            st = add_plain(c, argv[i], &model_seen, err);
    }
    return st;
}

enum status config_parse(int argc, char **argv, struct config *out, struct error *err)
{
    enum status st;

    memset(out, 0, sizeof *out);
    arena_init(&out->arena, 16 << 20);
    st = set_defaults(out, err);
    if (!st) st = set_from_flags(out, argc, argv, err);
    if (!st && !out->help)
        st = set_from_environment(out, err); /* ranks below flags: config_set keeps theirs */
    if (!st && !out->help && out->config) st = config_read_file(out, out->config, err);
    if (st) config_fini(out);
    return st;
}

/* The same of flags and the environment. */
static const char *peek_given(int argc, char **argv, const char *field)
{
    char name[80];
    const char *found = NULL;

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        size_t len = strcspn(argv[i], "=");
        if (len >= sizeof name || argv[i][0] != '-') continue;
        memcpy(name, argv[i], len);
        name[len] = '\0';
        int option = config_find(name);
        if (option < 0 || strcmp(config_options[option].field, field) != 0) continue;
        found = argv[i][len] ? argv[i] + len + 1 : i + 1 < argc ? argv[i + 1] : NULL;
    }
    return found ? found : getenv(variable_of(field, name));
}

const char *config_peek(int argc, char **argv, const char *field, char out[static 64])
{
    const char *found = peek_given(argc, argv, field);
    const char *file = found ? NULL : peek_given(argc, argv, "config");

    if (!found) return file ? config_peek_file(file, field, out) : NULL;
    if (strlen(found) >= 64) return NULL;
    return strcpy(out, found);
}

bool config_stderr_is_journal(void)
{
    const char *stream = getenv(
        "JOURNAL_STREAM"); /* "device:inode" of the socket that the service manager gave us */
    unsigned long long device, inode;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}
