/* zmq_auth.c - who may talk to the ROUTER: CURVE's keys by ZAP (RFC 27), API keys in requests. */
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/log.h"
#include "frontend/zmq.h"

enum { KEY_BYTES = 32, KEY_TEXT = ZMQ_KEY_TEXT, KEYS_MAX = 65536 };

/* Public keys, no secrets: sorted. */
struct zmq_clients {
    uint32_t count;
    char keys[][KEY_TEXT + 1]; /* [count] */
};

struct zmq_auth {
    char server_key[KEY_TEXT + 1]; /* the public one */
    bool has_list;                 /* for life; false: any client that knows the server's key */
    pthread_mutex_t lock;
    struct zmq_clients *clients; /* under lock */
};

enum status frontend_make_zmq_keys(char public_text[ZMQ_KEY_TEXT + 1],
                                   char secret_text[ZMQ_KEY_TEXT + 1], struct error *err)
{
    return zmq_curve_keypair(public_text, secret_text)
               ? error_set(err, STATUS_UNSUPPORTED, "this libzmq makes no CURVE keys: %s",
                           zmq_strerror(zmq_errno()))
               : STATUS_OK;
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

/* The secret key of the file and the public one that goes with it. */
static enum status read_server_key(const char *path, unsigned char key[KEY_BYTES],
                                   char public_text[KEY_TEXT + 1], struct error *err)
{
    char *text, *at, *line;
    uint64_t len;
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
    else if (zmq_curve_public(public_text, line))
        st = error_set(err, STATUS_UNSUPPORTED, "this libzmq has no CURVE: %s",
                       zmq_strerror(zmq_errno()));
    explicit_bzero(text, len);
    free(text);
    return st;
}

static enum status use_server_key(struct zmq_front *z, struct zmq_auth *auth, const char *path,
                                  struct error *err)
{
    unsigned char key[KEY_BYTES];
    int one = 1;
    enum status st = read_server_key(path, key, auth->server_key, err);

    if (!st && (zmq_setsockopt(z->router, ZMQ_CURVE_SERVER, &one, sizeof one) ||
                zmq_setsockopt(z->router, ZMQ_CURVE_SECRETKEY, key, sizeof key)))
        st = error_set(err, STATUS_UNSUPPORTED, "this libzmq has no CURVE: %s",
                       zmq_strerror(zmq_errno()));
    explicit_bzero(key, sizeof key);
    if (!st) log_info("zmq key", "public=\"%s\"", auth->server_key); /* what clients must know */
    return st;
}

static int by_key(const void *a, const void *b)
{
    return memcmp(a, b, KEY_TEXT);
}

static enum status read_clients(const char *path, struct zmq_clients **out, struct error *err)
{
    unsigned char key[KEY_BYTES];
    struct zmq_clients *clients;
    char *text, *at, *line;
    uint64_t len;
    enum status st = file_read(path, (uint64_t)KEYS_MAX * 128, &text, &len, err);

    if (st) return st;
    clients = calloc(1, sizeof *clients + (len / KEY_TEXT + 1) * sizeof *clients->keys);
    if (!clients) st = error_set(err, STATUS_NOMEM, "no memory for the keys of %s", path);
    for (at = text; !st && (line = next_line(&at));)
        if (read_key(line, key)) /* a text of our own: one key has several */
            zmq_z85_encode(clients->keys[clients->count++], key, KEY_BYTES);
        else
            st = error_set(err, STATUS_INVALID,
                           "%s: '%.60s' is no CURVE public key; it must be 40 characters of Z85",
                           path, line);
    if (!st && !clients->count)
        st = error_set(err, STATUS_INVALID, "%s has no key; it must have one per line", path);
    free(text);
    if (st) {
        free(clients);
        return st;
    }
    qsort(clients->keys, clients->count, sizeof *clients->keys, by_key);
    *out = clients;
    return STATUS_OK;
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
    struct zmq_auth *auth;
    enum status st;

    *out = NULL;
    if (!o->zmq_server_key_file && o->zmq_client_keys_file)
        return error_set(
            err, STATUS_INVALID,
            "--zmq-client-keys-file needs --zmq-server-key-file, the server's own key");
    if (!o->zmq_server_key_file) return STATUS_OK;
    auth = *out = calloc(1, sizeof *auth);
    if (!auth) return error_set(err, STATUS_NOMEM, "no memory for the keys of ZeroMQ");
    pthread_mutex_init(&auth->lock, NULL);
    st = use_server_key(z, auth, o->zmq_server_key_file, err);
    if (!st && o->zmq_client_keys_file)
        st = read_clients(o->zmq_client_keys_file, &auth->clients, err);
    auth->has_list = auth->clients != NULL;
    return !st && auth->has_list ? open_zap(z, err) : st;
}

void zmq_auth_destroy(struct zmq_auth *auth)
{
    if (!auth) return;
    pthread_mutex_destroy(&auth->lock);
    zmq_auth_drop(auth->clients);
    free(auth);
}

/* --- reload --- */

enum status zmq_auth_read(const struct zmq_auth *auth, const struct frontend_options *o,
                          struct zmq_clients **out, struct error *err)
{
    *out = NULL;
    return auth->has_list ? read_clients(o->zmq_client_keys_file, out, err) : STATUS_OK;
}

bool zmq_auth_has_key(const struct zmq_auth *auth, const char *path)
{
    unsigned char key[KEY_BYTES];
    char public_text[KEY_TEXT + 1] = "", quoted[1024];
    struct error err;
    enum status st = read_server_key(path, key, public_text, &err);

    explicit_bzero(key, sizeof key);
    if (!st && memcmp(public_text, auth->server_key, KEY_TEXT) == 0) return true;
    if (!st) error_set(&err, STATUS_INVALID, "its key has changed, which takes a restart");
    log_warn("option not reloaded", "option=zmq_server_key_file why=%s",
             log_quote(slice_str(err.message), quoted, sizeof quoted));
    return false;
}

void zmq_auth_take(struct zmq_auth *auth, struct zmq_clients *clients)
{
    struct zmq_clients *old;
    uint32_t count = clients->count;

    pthread_mutex_lock(&auth->lock);
    old = auth->clients;
    auth->clients = clients;
    pthread_mutex_unlock(&auth->lock);
    zmq_auth_drop(old);
    log_info("zmq client keys read", "count=%u", count);
}

void zmq_auth_drop(struct zmq_clients *clients)
{
    free(clients);
}

static bool is_listed(struct zmq_auth *auth, const char *key)
{
    pthread_mutex_lock(&auth->lock);
    const struct zmq_clients *c = auth->clients;
    bool found = bsearch(key, c->keys, c->count, sizeof *c->keys, by_key) != NULL;

    pthread_mutex_unlock(&auth->lock);
    return found;
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

/* key: written if the answer is yes. */
static bool is_allowed(struct zmq_auth *auth, const struct zap_request *r, char key[KEY_TEXT + 1])
{
    return r->count == ZAP_FRAMES && r->lens[5] == 5 && memcmp(r->frames[5], "CURVE", 5) == 0 &&
           r->lens[6] == KEY_BYTES && zmq_z85_encode(key, r->frames[6], KEY_BYTES) &&
           is_listed(auth, key);
}

/* The key is the user's name: libzmq notes it on each message of the connection. */
static void answer(void *zap, const struct zap_request *r, bool ok, const char *key)
{
    zmq_send(zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(zap, r->frames[1],
             r->count > 1 && r->lens[1] <= ZAP_FRAME_MAX ? (size_t)r->lens[1] : 0, ZMQ_SNDMORE);
    zmq_send(zap, ok ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(zap, ok ? "OK" : "No", 2, ZMQ_SNDMORE);
    zmq_send(zap, key, ok ? KEY_TEXT : 0, ZMQ_SNDMORE);
    zmq_send(zap, "", 0, 0); /* metadata: none */
}

void zmq_auth_answer(struct zmq_front *z)
{
    struct zap_request request;
    char key[KEY_TEXT + 1];

    while (take_request(z->zap, &request)) {
        bool ok = is_allowed(z->auth, &request, key);

        if (!ok) atomic_fetch_add_explicit(&z->stats->keys_refused, 1, memory_order_relaxed);
        answer(z->zap, &request, ok, key);
    }
}

bool zmq_auth_listed(struct zmq_auth *auth, zmq_msg_t *message)
{
    if (!auth || !auth->has_list) return true;
    const char *key = zmq_msg_gets(message, "User-Id");

    return key && strlen(key) == KEY_TEXT && is_listed(auth, key);
}
