#include "cli/check.h"

#include <stdio.h>

#include "cli/cli.h"
#include "cli/load.h"
#include "cli/observe_setup.h"
#include "device/cpu/cpu_limit.h"
#include "frontend/frontend.h"

static enum status check_device(const struct config *config, struct error *err)
{
    struct device_options options;
    enum status st = load_device_options(config, &options, err);

    if (!st && options.cpu_set) st = cpu_list_check(options.cpu_set, err);
    if (st || !config->io_cpu_set || !*config->io_cpu_set) return st;
    st = cpu_list_check(config->io_cpu_set, err);
    return st ? error_prefix(err, "--io-cpu-set") : STATUS_OK;
}

static enum status check_zmq(const struct config *c, struct error *err)
{
    const char *alone = c->zmq_server_key_file    ? "--zmq-server-key-file"
                        : c->zmq_client_keys_file ? "--zmq-client-keys-file"
                                                  : NULL;
    enum status st = STATUS_OK;

    if (alone && !c->zmq_listen.count)
        return error_set(err, STATUS_INVALID, "%s is for --zmq-listen, which is not given", alone);
    if (c->zmq_client_keys_file && !c->zmq_server_key_file)
        return error_set(
            err, STATUS_INVALID,
            "--zmq-client-keys-file needs --zmq-server-key-file, the server's own key");
    for (uint32_t i = 0; !st && i < c->zmq_listen.count; i++)
        st = frontend_check_endpoint(c->zmq_listen.items[i], err);
    return st;
}

enum status check_options(const struct config *c, struct error *err)
{
    enum status st = check_device(c, err);

    if (!st) st = load_check_names(c, err);
    if (!st) st = check_zmq(c, err);
    if (!st) st = observe_check(c, err);
    if (!st && !c->tls_cert != !c->tls_key)
        st = error_set(err, STATUS_INVALID, "--tls-cert and --tls-key go together; --%s is missing",
                       c->tls_cert ? "tls-key" : "tls-cert");
    if (!st && c->uds && c->reuse_port)
        st = error_set(err, STATUS_INVALID, "--reuse-port is for a TCP port; --uds has none");
    return st;
}

int check_parse(int argc, char **argv, struct config *out)
{
    struct error err;
    enum status st = config_parse(argc, argv, out, &err);

    if (!st && !out->help) {
        st = check_options(out, &err);
        if (st) config_fini(out);
    }
    return st ? cli_fail(&err) + 1 : 0;
}

int check_one_model(const struct config *c, const char *command, const char *usage)
{
    struct error err;

    if (!c->help && c->model && !c->rest.count) return -1;
    if (c->help) {
        fputs(usage, stdout);
        return 0;
    }
    if (c->model)
        error_set(&err, STATUS_INVALID, "%s takes one model; '%.100s' is too many", command,
                  c->rest.items[0]);
    else
        error_set(&err, STATUS_INVALID, "%s needs a MODEL", command);
    cli_fail(&err);
    fputs(usage, stderr);
    return 2;
}
