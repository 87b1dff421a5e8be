/* test_address_count.c - each address has its own count, and a table without connections holds nothing.
 * Method: random entering and leaving of 300 addresses beside a plain array; limits; forms of one address. */
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "frontend/address_count.h"

static uint64_t key4(const char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET};

    EXPECT_EQ(inet_pton(AF_INET, text, &a.sin_addr), 1);
    return address_key((struct sockaddr *)&a);
}

static uint64_t key6(const char *text)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};

    EXPECT_EQ(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
    return address_key((struct sockaddr *)&a);
}

TEST(forms_of_one_address_are_one_and_others_differ)
{
    struct sockaddr_un path = {.sun_family = AF_UNIX};

    EXPECT_TRUE(key4("10.0.0.1") == key6("::ffff:10.0.0.1"));
    EXPECT_TRUE(key4("10.0.0.1") != key4("10.0.0.2"));
    EXPECT_TRUE(key6("2001:db8:1:2:aaaa::1") == key6("2001:db8:1:2:bbbb::9")); /* one /64 */
    EXPECT_TRUE(key6("2001:db8:1:2::1") != key6("2001:db8:1:3::1"));
    EXPECT_TRUE(key6("::1") != 0 && key4("0.0.0.0") != 0);
    EXPECT_TRUE(key6("::1") != key4("0.0.0.1"));
    EXPECT_EQ(address_key((struct sockaddr *)&path), 0);
}

TEST(counts_are_exact_and_limits_hold)
{
    enum { ADDRESSES = 300, LIMIT = 7 };
    struct address_count *table = address_count_create();
    uint32_t counts[ADDRESSES] = {0}, refused = 0;

    for (int i = 0; i < 100000; i++) {
        uint32_t a = (uint32_t)(test_rand() % ADDRESSES);
        uint64_t key = (uint64_t)1 << 32 | a;

        if (test_rand() % 2 && counts[a]) {
            address_count_leave(table, key);
            counts[a]--;
        } else if (address_count_enter(table, key, LIMIT)) {
            EXPECT_TRUE(counts[a] < LIMIT);
            counts[a]++;
        } else {
            EXPECT_EQ(counts[a], LIMIT);
            refused++;
        }
    }
    EXPECT_TRUE(refused > 0);
    for (uint32_t a = 0; a < ADDRESSES; a++)
        for (; counts[a]; counts[a]--)
            address_count_leave(table, (uint64_t)1 << 32 | a);
    for (uint32_t a = 0; a < ADDRESSES; a++) /* none is left over: there is room for LIMIT again */
        for (int i = 0; i < LIMIT; i++)
            EXPECT_TRUE(address_count_enter(table, (uint64_t)1 << 32 | a, LIMIT));
    EXPECT_TRUE(address_count_enter(table, 5, 0)); /* 0: no limit */
    address_count_leave(table, 6);                 /* never entered: nothing happens */
    address_count_destroy(table);
    address_count_destroy(NULL);
}
