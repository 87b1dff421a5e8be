/* address_count.h - how many connections each address has open. Private to frontend/.
 *
 * An address is an IPv4 address or the /64 of an IPv6 one (whoever has one of its addresses has them all). Exact: a
 * chained table under a lock, an entry lives while its count is not 0. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct address_count; /* opaque */

struct address_count *address_count_create(void);        /* NULL: no memory */
void address_count_destroy(struct address_count *table); /* takes NULL */

/* A number for the address, never 0; 0 for what has none (a unix socket). */
uint64_t address_key(const struct sockaddr *address);
/* Counts one more, unless the address has `limit` already (0: no limit). False: it has, or no memory. */
bool address_count_enter(struct address_count *table, uint64_t key, uint32_t limit);
void address_count_leave(struct address_count *table, uint64_t key);
