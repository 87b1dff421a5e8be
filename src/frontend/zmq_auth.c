/* zmq_auth.c - who may talk to the ROUTER: CURVE's keys by ZAP (RFC 27), API keys in requests. */
#include <stdlib.h>

#include "base/file_map.h"
#include "base/log.h"
#include "frontend/zmq.h"

enum { KEY_BYTES = 32, KEY_TEXT = 40, KEYS_MAX = 65536 };

struct zmq_auth {
    unsigned char (*clients)
        [KEY_BYTES]; /* [client_count] public keys; 0: any client that knows the server's */
    uint32_t client_count;
};

/* Every byte is looked at, whatever differs. */
static bool same_bytes(const void *a, const void *b, size_t len)
{
    volatile unsigned char differs = 0;

    for (size_t i = 0; i < len; i++)
        differs |= (unsigned char)(((const unsigned char *)a)[i] ^ ((const unsigned char *)b)[i]);
    return !differs;
}

static bool same_secret(struct slice a, struct slice b)
{
    size_t len = a.len > b.len ? a.len : b.len;
    volatile unsigned char differs = a.len != b.len;

    for (size_t i = 0; i < len; i++)
        differs |= (unsigned char)((i < a.len ? a.ptr[i] : 0) ^ (i < b.len ? b.ptr[i] : 0));
    return !differs;
}

bool zmq_auth_key_ok(const struct frontend_options *o, struct slice key)
{
    bool ok = false;

    for (uint32_t i = 0; i < o->api_key_count; i++)
        ok |= same_secret(key, slice_str(o->api_keys[i]));
    return ok && key.len;
}

/* --- key files: a key of 40 characters (Z85, which has # too) begins a line; other lines that begin with # are comments --- */

static char *next_line(char **at)
{
    char *line;

    while ((line = strsep(at, "\r\n"))) {
        line += strspn(line, " \t");
        line[strcspn(line, " \t")] = 0;
        if (*line && (*line != '#' || strlen(line) == KEY_TEXT)) return line;
    }
    return NULL;
}

static bool read_key(const char *text, unsigned char out[KEY_BYTES])
{
    return strlen(text) == KEY_TEXT && zmq_z85_decode(out, text);
}

static enum status use_server_key(struct zmq_front *z, const char *path, struct error *err)
{
    unsigned char key[KEY_BYTES];
    char *text, *at, *line, public_text[KEY_TEXT + 1] = "";
    uint64_t len;
    int one = 1;
    enum status st = file_read(path, 1 << 16, &text, &len, err);

    if (st) return st;
    at = text;
    line = next_line(&at);
    if (!line || !read_key(line, key))
        st = error_set(err, STATUS_INVALID,
                       "%s must hold a CURVE secret key: 40 characters of Z85 on a line", path);
    else if (next_line(&at))
        st =
            error_set(err, STATUS_INVALID,
                      "%s must hold the server's secret key alone: it has a second line, and which "
                      "of them is the secret one cannot be seen",
                      path);
    else if (zmq_setsockopt(z->router, ZMQ_CURVE_SERVER, &one, sizeof one) ||
             zmq_setsockopt(z->router, ZMQ_CURVE_SECRETKEY, key, sizeof key))
        st = error_set(err, STATUS_UNSUPPORTED, "this libzmq has no CURVE: %s",
                       zmq_strerror(zmq_errno()));
    else if (!zmq_curve_public(public_text, line))
        log_info("zmq key", "public=\"%s\"", public_text); /* what clients must know */
    explicit_bzero(text, len);
    explicit_bzero(key, sizeof key);
    free(text);
    return st;
}

static enum status read_clients(struct zmq_auth *auth, const char *path, struct error *err)
{
    char *text, *at, *line;
    uint64_t len;
    enum status st = file_read(path, (uint64_t)KEYS_MAX * 128, &text, &len, err);

    if (st) return st;
    auth->clients = calloc(len / KEY_TEXT + 1, sizeof *auth->clients);
    if (!auth->clients) st = error_set(err, STATUS_NOMEM, "no memory for the keys of %s", path);
    for (at = text; !st && (line = next_line(&at));)
        if (read_key(line, auth->clients[auth->client_count]))
            auth->client_count++;
        else
            st = error_set(err, STATUS_INVALID,
                           "%s: '%.60s' is no CURVE public key; it must be 40 characters of Z85",
                           path, line);
    if (!st && !auth->client_count)
        st = error_set(err, STATUS_INVALID, "%s has no key; it must have one per line", path);
    free(text);
    return st;
}

static enum status open_zap(struct zmq_front *z, struct error *err)
{
    z->zap = zmq_socket(z->context, ZMQ_REP);
    if (!z->zap || zmq_bind(z->zap, "inproc://zeromq.zap.01") ||
        zmq_setsockopt(z->router, ZMQ_ZAP_DOMAIN, "inferd", 6))
        return error_set(err, STATUS_IO, "ZeroMQ's authentication could not start: %s",
                         zmq_strerror(zmq_errno()));
    return STATUS_OK;
}

enum status zmq_auth_create(struct zmq_front *z, struct zmq_auth **out, struct error *err)
{
    const struct frontend_options *o = &z->frontend->options;
    enum status st;

    *out = NULL;
    if (!o->zmq_server_key_file && o->zmq_client_keys_file)
        return error_set(err, STATUS_INVALID,
                         "zmq_client_keys_file needs zmq_server_key_file, the server's own key");
    if (!o->zmq_server_key_file) return STATUS_OK;
    *out = calloc(1, sizeof **out);
    if (!*out) return error_set(err, STATUS_NOMEM, "no memory for the keys of ZeroMQ");
    st = use_server_key(z, o->zmq_server_key_file, err);
    if (!st && o->zmq_client_keys_file) st = read_clients(*out, o->zmq_client_keys_file, err);
    if (!st && o->zmq_client_keys_file) st = open_zap(z, err);
    return st;
}

void zmq_auth_destroy(struct zmq_auth *auth)
{
    if (!auth) return;
    free(auth->clients);
    free(auth);
}

/* --- ZAP: version, request id, domain, address, identity, mechanism, credentials --- */

enum { ZAP_FRAMES = 7, ZAP_FRAME_MAX = 255 };
struct zap_request {
    unsigned char frames[ZAP_FRAMES][ZAP_FRAME_MAX];
    int lens[ZAP_FRAMES];
    int count;
};

static bool take_request(void *zap, struct zap_request *r)
{
    int more = 1;
    size_t size = sizeof more;
    unsigned char ignored[1];

    for (r->count = 0; more; r->count++) {
        bool keep = r->count < ZAP_FRAMES;
        int got = zmq_recv(zap, keep ? r->frames[r->count] : ignored,
                           keep ? ZAP_FRAME_MAX : sizeof ignored, ZMQ_DONTWAIT);

        if (got < 0) return false;
        if (keep) r->lens[r->count] = got;
        if (zmq_getsockopt(zap, ZMQ_RCVMORE, &more, &size)) return false;
    }
    return true;
}

static bool is_allowed(const struct zmq_auth *auth, const struct zap_request *r)
{
    bool ok = false;

    if (r->count != ZAP_FRAMES || r->lens[5] != 5 || memcmp(r->frames[5], "CURVE", 5) != 0 ||
        r->lens[6] != KEY_BYTES)
        return false;
    for (uint32_t i = 0; i < auth->client_count; i++)
        ok |= same_bytes(auth->clients[i], r->frames[6], KEY_BYTES);
    return ok;
}

static void answer(void *zap, const struct zap_request *r, bool ok)
{
    zmq_send(zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(zap, r->frames[1],
             r->count > 1 && r->lens[1] <= ZAP_FRAME_MAX ? (size_t)r->lens[1] : 0, ZMQ_SNDMORE);
    zmq_send(zap, ok ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(zap, ok ? "OK" : "No", 2, ZMQ_SNDMORE);
    zmq_send(zap, "", 0, ZMQ_SNDMORE); /* user id, metadata: none */
    zmq_send(zap, "", 0, 0);
}

void zmq_auth_answer(struct zmq_front *z)
{
    struct zap_request request;

    while (take_request(z->zap, &request)) {
        bool ok = is_allowed(z->auth, &request);

        if (!ok) atomic_fetch_add_explicit(&z->stats->keys_refused, 1, memory_order_relaxed);
        answer(z->zap, &request, ok);
    }
}
