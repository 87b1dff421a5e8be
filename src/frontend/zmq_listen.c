/* zmq_listen.c - where ZeroMQ clients come in: endpoints, and the socket files that are to go with them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "frontend/listen.h"
#include "frontend/zmq.h"

enum { SUN_PATH_MAX = sizeof((struct sockaddr_un *)0)->sun_path };

/* The socket file of an endpoint; NULL: it has none. */
static const char *path_of(const char *endpoint)
{
    bool named = strncmp(endpoint, "ipc://", 6) == 0 && endpoint[6] && endpoint[6] != '@' &&
                 endpoint[6] != '*';

    return named ? endpoint + 6 : NULL;
}

static uint64_t inode_of(const char *endpoint)
{
    const char *path = path_of(endpoint);
    struct stat about;

    return path && !stat(path, &about) ? about.st_ino : 0;
}

static bool port_ok(const char *text)
{
    unsigned long port = 0;
    const char *at = text;

    if (strcmp(text, "*") == 0) return true;
    while (*at >= '0' && *at <= '9' && at - text < 6)
        port = port * 10 + (unsigned long)(*at++ - '0');
    return at > text && !*at && port <= 65535;
}

/* libzmq would take the low 16 bits of any port, and say "Invalid argument" of the rest. */
enum status frontend_check_endpoint(const char *wanted, struct error *err)
{
    const char *rest = wanted + 6, *colon;

    if (strlen(wanted) >= ZMQ_ENDPOINT_MAX)
        return error_set(err, STATUS_INVALID,
                         "--zmq-listen is '%.100s...'; it must have at most %d characters", wanted,
                         ZMQ_ENDPOINT_MAX - 1);

    if (strncmp(wanted, "ipc://", 6) == 0)
        return *rest && strcmp(rest, "*") != 0
                   ? STATUS_OK
                   : error_set(err, STATUS_INVALID,
                               "--zmq-listen is '%.100s'; it must be ipc://PATH", wanted);
    if (strncmp(wanted, "tcp://", 6) != 0)
        return error_set(err, STATUS_INVALID,
                         "--zmq-listen is '%.100s'; it must begin with tcp:// or ipc://", wanted);
    colon = strrchr(rest, ':');
    if (!colon || colon == rest)
        return error_set(err, STATUS_INVALID,
                         "--zmq-listen is '%.100s'; it must be tcp://HOST:PORT", wanted);
    if (!port_ok(colon + 1))
        return error_set(err, STATUS_INVALID,
                         "--zmq-listen is '%.100s'; its port must be 1 to 65535, or * for any",
                         wanted);
    return STATUS_OK;
}

/* A relative path of ipc becomes absolute, for the log and for whoever removes the file; unless that is too long for the
 * address of a socket. */
static void make_absolute(const char *wanted, char out[ZMQ_ENDPOINT_MAX])
{
    const char *path = path_of(wanted);
    char here[SUN_PATH_MAX]; /* of a longer one the address would have no room */

    snprintf(out, ZMQ_ENDPOINT_MAX, "%s", wanted);
    if (!path || *path == '/' || !getcwd(here, sizeof here)) return;
    if (strlen(here) + 1 + strlen(path) < sizeof here)
        snprintf(out, ZMQ_ENDPOINT_MAX, "ipc://%s/%s", strcmp(here, "/") == 0 ? "" : here, path);
}

static enum status bind_one(struct zmq_front *z, const char *wanted, struct error *err)
{
    struct zmq_endpoint *e = &z->endpoints[z->endpoint_count];
    size_t size = sizeof e->text;
    int ipv6 = strchr(wanted, '[') || strstr(wanted, "//*");
    enum status st = frontend_check_endpoint(wanted, err);

    if (st) return st;
    make_absolute(wanted, e->text);
    zmq_setsockopt(z->router, ZMQ_IPV6, &ipv6, sizeof ipv6);
    /* libzmq itself would remove any file that is in its way */
    if (path_of(e->text)) st = listen_clear(path_of(e->text), err);
    if (st) return st;
    if (zmq_bind(z->router, e->text))
        return error_set(err, STATUS_IO, "cannot listen on %.200s: %s", wanted,
                         zmq_strerror(zmq_errno()));
    zmq_getsockopt(z->router, ZMQ_LAST_ENDPOINT, e->text, &size);
    e->inode = inode_of(e->text);
    z->endpoint_count++;
    log_info("listening", "zmq=%s curve=%s", e->text, z->auth ? "yes" : "no");
    return STATUS_OK;
}

enum status zmq_listen_all(struct zmq_front *z, struct error *err)
{
    const struct frontend_options *o = &z->frontend->options;
    enum status st = STATUS_OK;

    z->endpoints = calloc(o->zmq_endpoint_count, sizeof *z->endpoints);
    if (!z->endpoints) return error_set(err, STATUS_NOMEM, "no memory for the ZeroMQ front end");
    for (uint32_t i = 0; !st && i < o->zmq_endpoint_count; i++)
        st = bind_one(z, o->zmq_endpoints[i], err);
    return st;
}

void zmq_listen_remove_files(const struct zmq_front *z)
{
    for (uint32_t i = 0; i < z->endpoint_count; i++)
        if (z->endpoints[i].inode && inode_of(z->endpoints[i].text) == z->endpoints[i].inode)
            unlink(path_of(z->endpoints[i].text));
}
