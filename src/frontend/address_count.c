#include "frontend/address_count.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { BUCKETS = 4096 };

struct entry {
    struct entry *next;
    uint64_t key;
    uint32_t count;
};

struct address_count {
    pthread_mutex_t lock;
    struct entry *buckets[BUCKETS];
};

struct address_count *address_count_create(void)
{
    struct address_count *table = calloc(1, sizeof *table);

    if (table) pthread_mutex_init(&table->lock, NULL);
    return table;
}

void address_count_destroy(struct address_count *table)
{
    if (!table) return;
    for (uint32_t i = 0; i < BUCKETS; i++)
        for (struct entry *next, *e = table->buckets[i]; e; e = next) {
            next = e->next;
            free(e);
        }
    pthread_mutex_destroy(&table->lock);
    free(table);
}

uint64_t address_key(const struct sockaddr *address)
{
    uint64_t high = 0;

    if (address->sa_family == AF_INET)
        return (uint64_t)1 << 32 | ((const struct sockaddr_in *)address)->sin_addr.s_addr;
    if (address->sa_family != AF_INET6) return 0;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;

    if (IN6_IS_ADDR_V4MAPPED(v6)) {
        uint32_t v4;

        memcpy(&v4, v6->s6_addr + 12, sizeof v4);
        return (uint64_t)1 << 32 | v4;
    }
    memcpy(&high, v6->s6_addr, sizeof high);
    return high | (uint64_t)1 << 63; /* differs from every IPv4 key, and is not 0 for ::1 */
}

/* Where the key's entry hangs, or would. */
static struct entry **find(struct address_count *table, uint64_t key)
{
    struct entry **at = &table->buckets[hash_bytes(&key, sizeof key, hash_secret()) % BUCKETS];

    while (*at && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

bool address_count_enter(struct address_count *table, uint64_t key, uint32_t limit)
{
    bool entered = false;

    pthread_mutex_lock(&table->lock);
    struct entry **at = find(table, key), *e = *at;

    if (!e && (e = calloc(1, sizeof *e))) {
        e->key = key;
        *at = e;
    }
    if (e && (!limit || e->count < limit)) {
        e->count++;
        entered = true;
    }
    pthread_mutex_unlock(&table->lock);
    return entered;
}

void address_count_leave(struct address_count *table, uint64_t key)
{
    pthread_mutex_lock(&table->lock);
    struct entry **at = find(table, key), *e = *at;

    if (e && --e->count == 0) {
        *at = e->next;
        free(e);
    }
    pthread_mutex_unlock(&table->lock);
}
