/* tls.h - the certificate that HTTPS shows, and its replacement while the daemon serves. Private to frontend/.
 *
 * libmicrohttpd asks for it at each handshake and passes no pointer of ours on, so there is one for the process. A
 * replaced one lives on for as long as a handshake may take. Thread: any. */
#pragma once

#include <gnutls/abstract.h>

#include "base/status.h"

/* Reads chain and key (PEM) and checks that they belong together. From here on handshakes get them; on an error they
 * get what they got before. Errors: STATUS_IO, STATUS_NOT_FOUND, STATUS_INVALID with file and reason. */
enum status tls_load(const char *cert_path, const char *key_path, struct error *err);
void tls_unload(void); /* when no handshake is left */

/* TLS 1.2 and 1.3 with forward secrecy, as GnuTLS writes it. */
extern const char tls_priorities[];
/* Sends the bytes and the end of what is sent; to a session whose socket takes them at once, whoever else may read from it. */
void tls_send_last(gnutls_session_t session, const void *bytes, size_t len);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK. */
gnutls_certificate_retrieve_function2 tls_certificate;
