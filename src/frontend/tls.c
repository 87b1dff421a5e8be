#include "frontend/tls.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file_map.h"

enum { CHAIN_MAX = 16, FILE_BYTES_MAX = 1 << 20 };
static const int64_t keep_ns =
    3700000000000; /* no handshake takes longer: an hour is the most that --header-timeout-s may be */

const char tls_priorities[] = "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:-SHA1";

struct identity {
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned chain_count;
    gnutls_privkey_t key;
    struct identity *replaced; /* older ones, newest first */
    int64_t replaced_ns;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct identity *current; /* under lock */

static void free_identity(struct identity *id)
{
    if (!id) return;
    for (unsigned i = 0; i < id->chain_count; i++)
        gnutls_pcert_deinit(&id->chain[i]);
    if (id->key) gnutls_privkey_deinit(id->key);
    free(id);
}

void tls_send_last(gnutls_session_t session, const void *bytes, size_t len)
{
    const char *at = bytes, *end = at + len;
    ssize_t sent = 0;

    while (at < end && (sent >= 0 || sent == GNUTLS_E_INTERRUPTED)) {
        sent = gnutls_record_send(session, at, (size_t)(end - at));
        if (sent > 0) at += sent;
    }
    if (at == end) gnutls_bye(session, GNUTLS_SHUT_WR);
}

int tls_certificate(gnutls_session_t session, const gnutls_datum_t *ca, int ca_count,
                    const gnutls_pk_algorithm_t *algorithms, int algorithm_count,
                    gnutls_pcert_st **chain, unsigned *chain_count, gnutls_privkey_t *key)
{
    (void)session, (void)ca, (void)ca_count, (void)algorithms, (void)algorithm_count;
    pthread_mutex_lock(&lock);
    *chain = current->chain;
    *chain_count = current->chain_count;
    *key = current->key;
    pthread_mutex_unlock(&lock);
    return 0;
}

static enum status fault(struct error *err, const char *path, const char *what, int code)
{
    return error_set(err, STATUS_INVALID, "%s: %s: %s", path, what, gnutls_strerror(code));
}

static enum status read_chain(struct identity *id, const char *path, struct error *err)
{
    char *text;
    uint64_t len;
    unsigned count = CHAIN_MAX;
    enum status st = file_read(path, FILE_BYTES_MAX, &text, &len, err);

    if (st) return st;
    gnutls_datum_t data = {(unsigned char *)text, (unsigned)len};
    int code = gnutls_pcert_list_import_x509_raw(id->chain, &count, &data, GNUTLS_X509_FMT_PEM, 0);

    free(text);
    if (code) return fault(err, path, "no certificate chain in PEM form", code);
    id->chain_count = count;
    return STATUS_OK;
}

static enum status read_key(struct identity *id, const char *path, struct error *err)
{
    char *text;
    uint64_t len;
    enum status st = file_read(path, FILE_BYTES_MAX, &text, &len, err);

    if (st) return st;
    gnutls_datum_t data = {(unsigned char *)text, (unsigned)len};
    int code = gnutls_privkey_init(&id->key);

    if (!code) code = gnutls_privkey_import_x509_raw(id->key, &data, GNUTLS_X509_FMT_PEM, NULL, 0);
    explicit_bzero(text, len);
    free(text);
    return code ? fault(err, path, "no private key in PEM form", code) : STATUS_OK;
}

/* The key signs, the certificate verifies. */
static enum status check_pair(struct identity *id, const char *cert_path, const char *key_path,
                              struct error *err)
{
    gnutls_pubkey_t of_key;
    unsigned char a[64], b[64];
    size_t a_len = sizeof a, b_len = sizeof b;
    int code = gnutls_pubkey_init(&of_key);

    if (code) return error_set(err, STATUS_NOMEM, "no memory for a key");
    code = gnutls_pubkey_import_privkey(of_key, id->key, 0, 0);
    if (!code) code = gnutls_pubkey_get_key_id(of_key, GNUTLS_KEYID_USE_SHA256, a, &a_len);
    if (!code)
        code = gnutls_pubkey_get_key_id(id->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, b, &b_len);
    gnutls_pubkey_deinit(of_key);
    if (code) return fault(err, key_path, "unusable key", code);
    if (a_len == b_len && gnutls_memcmp(a, b, a_len) == 0) return STATUS_OK;
    return error_set(err, STATUS_INVALID, "%s is not the key of the first certificate in %s",
                     key_path, cert_path);
}

/* Ends what was replaced so long ago that no handshake uses it. Under the lock. */
static void end_old(struct identity *id, int64_t now)
{
    for (struct identity **at = &id->replaced; *at;) {
        struct identity *old = *at;

        if (now - old->replaced_ns > keep_ns) {
            *at = old->replaced;
            free_identity(old);
        } else {
            at = &old->replaced;
        }
    }
}

enum status tls_load(const char *cert_path, const char *key_path, struct error *err)
{
    struct identity *id = calloc(1, sizeof *id);
    enum status st = id ? STATUS_OK : error_set(err, STATUS_NOMEM, "no memory for a certificate");

    if (!st) st = read_chain(id, cert_path, err);
    if (!st) st = read_key(id, key_path, err);
    if (!st) st = check_pair(id, cert_path, key_path, err);
    if (st) {
        free_identity(id);
        return st;
    }
    pthread_mutex_lock(&lock);
    if (current) current->replaced_ns = clock_mono_ns();
    id->replaced = current;
    current = id;
    end_old(id, clock_mono_ns());
    pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

void tls_unload(void)
{
    pthread_mutex_lock(&lock);
    for (struct identity *next; current; current = next) {
        next = current->replaced;
        free_identity(current);
    }
    pthread_mutex_unlock(&lock);
}
